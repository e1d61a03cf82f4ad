"""Where rewards wait for each other, and how long one may take."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


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
