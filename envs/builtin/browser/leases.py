"""Leases of running browsers: instances of environments share as few of them as possible.

A browser belongs to the event loop that started it. It starts with its first lease and ends with its last.
If it dies, all its leases are lost: each instance notices by `BrowserLease.is_alive` or by the call under
way, and the next lease is on a new browser.
"""

import asyncio
from weakref import WeakKeyDictionary

from envs.builtin.browser.chromium import Chromium

MAX_LEASES = 16
"""The most leases of one Chromium; each lease has one context at a time."""


class _Browser:
    """A Chromium, or the task that starts it, and the number of its leases."""

    def __init__(self) -> None:
        self.startup = asyncio.get_running_loop().create_task(Chromium.start())
        self.leases = 0

    @property
    def has_room(self) -> bool:
        if self.leases >= MAX_LEASES:
            return False
        if not self.startup.done():
            return True
        if self.startup.cancelled() or self.startup.exception() is not None:
            return False
        return self.startup.result().is_alive


_browsers: WeakKeyDictionary[asyncio.AbstractEventLoop, list[_Browser]] = WeakKeyDictionary()


class BrowserLease:
    """The right to open a context in a running Chromium; obtained by `acquire`."""

    def __init__(self, browser: _Browser, chromium: Chromium) -> None:
        self._browser: _Browser | None = browser
        self.chromium = chromium

    @classmethod
    async def acquire(cls) -> "BrowserLease":
        """Lease a browser that is running or starting, else start one. Raises as `Chromium.start`."""
        browsers = _browsers.setdefault(asyncio.get_running_loop(), [])
        browser = next((browser for browser in browsers if browser.has_room), None)
        if browser is None:
            browser = _Browser()
            browsers.append(browser)
        browser.leases += 1
        try:
            return cls(browser, await asyncio.shield(browser.startup))
        except BaseException:
            await _release(browser)
            raise

    @property
    def is_alive(self) -> bool:
        """False once the browser has died."""
        return self.chromium.is_alive

    async def release(self) -> None:
        """Return the lease; the last one ends the browser. Idempotent."""
        browser, self._browser = self._browser, None
        if browser is not None:
            await _release(browser)


async def _release(browser: _Browser) -> None:
    browser.leases -= 1
    if browser.leases:
        return
    _browsers[asyncio.get_running_loop()].remove(browser)
    await asyncio.shield(asyncio.get_running_loop().create_task(_close(browser.startup)))


async def _close(startup: "asyncio.Task[Chromium]") -> None:
    try:
        chromium = await startup
    except Exception:
        return  # it never started, as all that awaited it have learned
    await chromium.close()
