"""What pools count."""

import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Seconds:
    """How long calls took, those that failed included."""

    count: int = 0
    mean: float = 0.0
    longest: float = 0.0


class Clock:
    """Adds up `Seconds`."""

    __slots__ = ("_count", "_longest", "_total")

    def __init__(self) -> None:
        self._count = 0
        self._total = 0.0
        self._longest = 0.0

    def add_since(self, start: float) -> None:
        """A call that began at `started` (of `time.perf_counter`) has ended."""
        seconds = time.perf_counter() - start
        self._count += 1
        self._total += seconds
        if seconds > self._longest:
            self._longest = seconds

    @property
    def seconds(self) -> Seconds:
        """Of all calls so far."""
        return Seconds(self._count, self._total / max(1, self._count), self._longest)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolMetrics:
    """A pool at one moment."""

    live: int
    """Instances that hold resources: lent, idle, being made ready or closed. Never above the capacity."""
    idle: int
    waiting: int
    """Callers in the queue."""
    created: int
    """Instances made so far."""
    replaced: int
    """Instances closed so far because a lease ended in an exception or asked for a fresh one, because they
    had died, or because a tool that ran out of time may still be at work on them."""
    recycled: int
    """Healthy instances closed so far: after `max_episodes`, or to make room for another kind."""
    reset: Seconds
    step: Seconds
