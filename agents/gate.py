"""A limit on what runs at the same time, whichever event loop it runs in."""

import asyncio
import weakref


class Gate:
    """Lets in at most `most` at a time, in each event loop that uses it; a semaphore cannot leave its own."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]
        self._by_loop = weakref.WeakKeyDictionary()

    async def __aenter__(self) -> None:
        await self._by_loop.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self._most)).acquire()

    async def __aexit__(self, *_: object) -> None:
        self._by_loop[asyncio.get_running_loop()].release()
