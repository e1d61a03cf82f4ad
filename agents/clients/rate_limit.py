"""Limits on how much runs at once and how soon one call follows another, in any event loop."""

import asyncio
import threading
import time
import weakref


class ConcurrencyLimiter:
    """Lets at most `limit` in at a time, per event loop: a semaphore is bound to one loop."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]
        self._by_loop = weakref.WeakKeyDictionary()

    async def __aenter__(self) -> None:
        await self._by_loop.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self._limit)).acquire()

    async def __aexit__(self, *_: object) -> None:
        self._by_loop[asyncio.get_running_loop()].release()


class RateLimiter:
    """Spaces requests evenly over time, across threads; `per_s=None` does not limit them."""

    def __init__(self, per_s: float | None) -> None:
        self._interval_s = 0.0 if per_s is None else 1.0 / per_s
        self._next_s = 0.0
        self._lock = threading.Lock()

    def wait_s(self) -> float:
        """Reserve the next place; returns the seconds to wait for it."""
        with self._lock:
            now = time.monotonic()
            start = max(now, self._next_s)
            self._next_s = start + self._interval_s
            return start - now
