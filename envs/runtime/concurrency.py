"""Concurrent work: it ends as soon as one part fails, and leaves the event loop free for others."""

import asyncio
from collections import deque
from collections.abc import Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")

TURNS_S = 0.01
"""Seconds of an event loop's iteration after which `take_turn` lets no further task pass."""
TURNS_PER_ITERATION = 128
"""Tasks that are started, or woken to pass, in one iteration."""


async def gather_or_cancel(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return the results in order; the first exception cancels the rest and is raised when they end.

    `work` is best made as it is iterated: then a coroutine that is never started is never made either.
    """
    tasks: list[asyncio.Task[T]] = []
    try:
        async with asyncio.TaskGroup() as group:
            for coroutine in work:
                tasks.append(group.create_task(coroutine))
                if len(tasks) % TURNS_PER_ITERATION == 0:
                    await asyncio.sleep(0)  # thousands of new tasks would hold the event loop
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None  # others, if any, failed while they were being cancelled
    return [task.result() for task in tasks]


def run_blocking(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in another thread, because the caller's may run an event loop; blocks."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


async def take_turn() -> None:
    """Return at once, or in a later iteration of the event loop if this one has lasted for `TURNS_S`.

    An event loop runs all tasks that are ready before it looks at anything else. Where thousands of episodes
    are ready at once, each calls this before its share of work, so that requests, timers and cancellations
    are served meanwhile. Tasks pass in the order in which they came, roughly.
    """
    loop = asyncio.get_running_loop()
    turns = _TURNS.get(loop)
    if turns is None:
        turns = _TURNS[loop] = _Turns()
    await turns.take(loop)


class _Turns:
    """The order of the tasks of one event loop, to which it has no reference: the loop is the key under which
    it is kept."""

    def __init__(self) -> None:
        self._end: float | None = None
        """The time at which this iteration lets no further task pass; None before the first one."""
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def take(self, loop: asyncio.AbstractEventLoop) -> None:
        is_new = True
        while not self._passes(loop, is_new=is_new):
            future = loop.create_future()
            if is_new:
                self._waiting.append(future)
            else:
                self._waiting.appendleft(future)
            await future
            is_new = False

    def _passes(self, loop: asyncio.AbstractEventLoop, *, is_new: bool) -> bool:
        now = loop.time()
        if self._end is None:
            self._end = now + TURNS_S
            loop.call_soon(self._end_iteration, loop)
        return now < self._end and not (is_new and self._waiting)

    def _end_iteration(self, loop: asyncio.AbstractEventLoop) -> None:
        for _ in range(min(len(self._waiting), TURNS_PER_ITERATION)):
            future = self._waiting.popleft()
            if not future.done():  # it may be cancelled
                future.set_result(None)
        self._end = None
        if self._waiting:  # those that were woken may be cancelled before they ask again
            self._end = loop.time() + TURNS_S
            loop.call_soon(self._end_iteration, loop)


_TURNS: WeakKeyDictionary[asyncio.AbstractEventLoop, _Turns] = WeakKeyDictionary()
