"""Which Chromium an instance of an environment has a seat in: as few browsers as there are seats.

A browser belongs to the event loop that started it. It comes with its first seat and ends with its last; when
it dies, all its seats are lost, each instance notices by `Seat.is_alive` or by the call under way, and the
next seat is in a new one.
"""

import asyncio
from weakref import WeakKeyDictionary

from envs.browser.chromium import Chromium

SEATS = 16
"""Contexts that one Chromium is given."""


class _Browser:
    """One Chromium, or the task that starts it, and the number of those who have a seat in it."""

    def __init__(self) -> None:
        self.starting = asyncio.get_running_loop().create_task(Chromium.start())
        self.taken = 0

    @property
    def has_room(self) -> bool:
        if self.taken >= SEATS:
            return False
        if not self.starting.done():
            return True
        failed = self.starting.cancelled() or self.starting.exception() is not None
        return not failed and self.starting.result().is_alive


_browsers: WeakKeyDictionary[asyncio.AbstractEventLoop, list[_Browser]] = WeakKeyDictionary()


class Seat:
    """A place in a running Chromium; make it by `take`."""

    def __init__(self, browser: _Browser, chromium: Chromium) -> None:
        self._browser: _Browser | None = browser
        self.chromium = chromium

    @classmethod
    async def take(cls) -> "Seat":
        """In a browser that runs or is starting, else in a new one. Raises what `Chromium.start` raises."""
        browsers = _browsers.setdefault(asyncio.get_running_loop(), [])
        browser = next((one for one in browsers if one.has_room), None)
        if browser is None:
            browser = _Browser()
            browsers.append(browser)
        browser.taken += 1
        try:
            return cls(browser, await asyncio.shield(browser.starting))
        except BaseException:
            await _leave(browser)
            raise

    @property
    def is_alive(self) -> bool:
        """False once the browser has died."""
        return self.chromium.is_alive

    async def leave(self) -> None:
        """Give the seat back; the last one ends the browser. Idempotent."""
        browser, self._browser = self._browser, None
        if browser is not None:
            await _leave(browser)


async def _leave(browser: _Browser) -> None:
    browser.taken -= 1
    if browser.taken:
        return
    _browsers[asyncio.get_running_loop()].remove(browser)
    await asyncio.shield(asyncio.get_running_loop().create_task(_end(browser.starting)))


async def _end(starting: "asyncio.Task[Chromium]") -> None:
    try:
        chromium = await starting
    except Exception:
        return  # it never came up; whoever waited for it was told
    await chromium.close()
