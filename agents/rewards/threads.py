"""Where rewards wait for each other, and where blocking ones run: beside the event loop, never on it.

Threads are daemons, one a call: a function that hangs cannot be ended, only left behind, and must then
neither hold a place of a pool nor keep the program from ending.
"""

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

from envs.errors import described

T = TypeVar("T")


class TooSlow(Exception):
    """A call took longer than its limit; unlike `TimeoutError`, which may be the called function's own."""


class Gate:
    """Lets in at most `most` at a time, in each event loop that uses it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._by_loop: dict[asyncio.AbstractEventLoop, asyncio.Semaphore] = {}

    async def __aenter__(self) -> None:
        loop = asyncio.get_running_loop()
        if loop not in self._by_loop:
            for closed in [one for one in self._by_loop if one.is_closed()]:
                self._by_loop.pop(closed, None)
            self._by_loop[loop] = asyncio.Semaphore(self._most)
        await self._by_loop[loop].acquire()

    async def __aexit__(self, *_: object) -> None:
        self._by_loop[asyncio.get_running_loop()].release()


@asynccontextmanager
async def time_limit(timeout_s: float | None) -> AsyncIterator[None]:
    """Cut short what takes longer than `timeout_s` seconds, by `TooSlow`; None is for ever."""
    try:
        async with asyncio.timeout(timeout_s) as limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise TooSlow(f"it took longer than {timeout_s:g} s; raise its timeout_s") from None


_THREADS = Gate(16)


async def in_thread(call: Callable[[], T], *, timeout_s: float | None) -> T:
    """The value of `call()`, which may block.

    `timeout_s` counts from the call's start; None is for ever. Raises `TooSlow` when it has passed:
    nobody waits for the thread any more, but it goes on. What `call` raises passes through.
    """
    async with _THREADS:
        loop = asyncio.get_running_loop()
        context = contextvars.copy_context()
        done: asyncio.Future[tuple[T | None, BaseException | None]] = loop.create_future()

        def tell(value: T | None, error: BaseException | None) -> None:
            if not done.done():
                done.set_result((value, error))

        def work() -> None:
            value, error = None, None
            try:
                value = context.run(call)
            except BaseException as raised:  # the thread's only boundary: whatever it is goes to the loop
                error = raised
            with suppress(RuntimeError):  # the loop has closed meanwhile
                loop.call_soon_threadsafe(tell, value, error)

        threading.Thread(target=work, name="reward", daemon=True).start()
        async with time_limit(timeout_s):
            value, error = await done
        if isinstance(error, Exception):
            raise error
        if error is not None:  # SystemExit: of the function, not of this program
            raise RuntimeError(f"it raised {described(error)}") from error
        return value  # type: ignore[return-value]  # None only where T has it
