"""The metrics of environment pools."""

import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Seconds:
    """Durations of calls in seconds, failed ones included."""

    count: int = 0
    mean: float = 0.0
    longest: float = 0.0


class Clock:
    """Accumulates `Seconds`."""

    __slots__ = ("_count", "_longest", "_total")

    def __init__(self) -> None:
        self._count = 0
        self._total = 0.0
        self._longest = 0.0

    def add_since(self, start: float) -> None:
        """Count a call that began at `start` (of `time.perf_counter`) and ends now."""
        seconds = time.perf_counter() - start
        self._count += 1
        self._total += seconds
        if seconds > self._longest:
            self._longest = seconds

    @property
    def seconds(self) -> Seconds:
        """The durations of all calls so far."""
        return Seconds(self._count, self._total / max(1, self._count), self._longest)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolMetrics:
    """A pool at one moment."""

    live: int
    """Instances that hold resources: lent, idle, being prepared or closed. Never above the capacity."""
    idle: int
    waiting: int
    """Callers in the queue, and those whose instance waits for a session on a server."""
    created: int
    """Instances made so far."""
    replaced: int
    """Instances closed so far because a lease ended in an exception or asked for a fresh one, because they
    died, or because a tool that timed out may still be using them."""
    recycled: int
    """Healthy instances closed so far: after `max_episodes`, or to make room for another kind."""
    reset: Seconds
    step: Seconds
