"""Work that several want at the same time is done once."""

import asyncio
import weakref
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _Flight(Generic[T]):
    task: "asyncio.Task[T]"
    waiting: int = 0


class SingleFlight(Generic[T]):
    """By keys, in each event loop that uses it."""

    def __init__(self) -> None:
        self._by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, _Flight[T]]]
        self._by_loop = weakref.WeakKeyDictionary()

    async def do(self, key: str, work: Callable[[], Coroutine[Any, Any, T]]) -> tuple[T, bool]:
        """What `work` returns or raises, and whether this call began it. It is broken off when nobody waits
        for it any more, not when one of several leaves."""
        flights = self._by_loop.setdefault(asyncio.get_running_loop(), {})
        flight = flights.get(key)
        first = flight is None
        if flight is None:
            flight = flights[key] = _Flight(asyncio.create_task(work()))
        flight.waiting += 1
        try:
            return await asyncio.shield(flight.task), first
        finally:
            flight.waiting -= 1
            if flights.get(key) is flight and (flight.task.done() or not flight.waiting):
                del flights[key]
            if not flight.waiting:
                flight.task.cancel()  # nothing, where it has ended
