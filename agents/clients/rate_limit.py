"""Limits on what runs at the same time and how soon after another, whichever event loop it runs in."""

import asyncio
import threading
import time
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


class Pace:
    """Spreads requests evenly: `per_s` of them a second, None as they come; whatever thread asks."""

    def __init__(self, per_s: float | None) -> None:
        self._gap_s = 0.0 if per_s is None else 1.0 / per_s
        self._next = 0.0
        self._lock = threading.Lock()

    def wait_s(self) -> float:
        """Take the next turn: seconds until it comes."""
        with self._lock:
            now = time.monotonic()
            at = max(now, self._next)
            self._next = at + self._gap_s
            return at - now
