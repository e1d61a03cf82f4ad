"""What the pages of one context ask of their sites: whether they are done with it, and what failed."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from envs.browser.chromium import origin_of

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, Frame, Page, Request

QUIET_S, SETTLE_S, LOADING_S = 0.08, 5.0, 30.0
"""A context is quiet when for so long nothing has been asked of a site; it is waited for no longer than the
second of these, or the third where a page has yet to come: on a busy machine half a page is soon seen."""


class Traffic:
    """Listens to a context from now on."""

    def __init__(self, context: "BrowserContext", origins: frozenset[str]) -> None:
        """`origins`: of the sites whose failures are faults."""
        self.fault = ""
        """What a site or a page has failed at; empty as long as there is nothing."""
        self._origins = origins
        self._pending: dict[Request, Page | None] = {}
        self._leaving: set[Page] = set()
        """Pages that have asked for another one, which has yet to take their place."""
        self._heard = time.monotonic()
        context.on("request", self._asked)
        context.on("requestfinished", self._answered)
        context.on("requestfailed", self._failed)

    async def quiet(self, is_still: Callable[[], Awaitable[bool]]) -> float:
        """Wait until the context is quiet; returns the seconds that are left for a page that is loading.

        `is_still` asks the page itself: on a busy machine, what a click sets off may begin later than
        `QUIET_S` after it.
        """
        self._heard = now = began = time.monotonic()
        while (now := time.monotonic()) < (until := began + (LOADING_S if self._leaving else SETTLE_S)):
            if self._is_silent(now):
                heard = self._heard
                with suppress(TimeoutError):  # a page that never answers is seen as it is
                    async with asyncio.timeout(until - now):
                        if await is_still() and self._heard == heard and self._is_silent(now):
                            break
            await asyncio.sleep(QUIET_S / 4)
        return max(0.0, began + LOADING_S - now)

    def _is_silent(self, now: float) -> bool:
        return not self._pending and not self._leaving and now - self._heard >= QUIET_S

    def watch(self, page: "Page") -> None:
        """Note where it goes, and how it ends."""
        page.on("framenavigated", self._arrived)
        page.on("crash", self._crashed)
        page.on("close", self._closed)

    def _asked(self, request: "Request") -> None:
        self._heard = time.monotonic()
        frame = _frame(request)
        self._pending[request] = frame.page if frame else None
        if frame is not None and _is_of_tab(request, frame):
            self._leaving.add(frame.page)

    def _answered(self, request: "Request") -> None:
        self._heard = time.monotonic()
        self._pending.pop(request, None)

    def _failed(self, request: "Request") -> None:
        self._answered(request)
        frame, failure = _frame(request), request.failure or ""
        if frame is None or not _is_of_tab(request, frame):
            return
        if "ERR_ABORTED" in failure or "ERR_BLOCKED" in failure:  # a download, or nothing: the page stays
            self._leaving.discard(frame.page)
            return
        with suppress(ValueError, KeyError):
            if origin_of(request.url) in self._origins:
                self.fault = f"{origin_of(request.url)} does not answer: {failure}"

    def _arrived(self, frame: "Frame") -> None:
        self._heard = time.monotonic()
        if frame.parent_frame is None:
            self._leaving.discard(frame.page)

    def _crashed(self, page: "Page") -> None:
        self.fault = "a page has crashed"

    def _closed(self, page: "Page") -> None:
        self._leaving.discard(page)
        self._pending = {request: of for request, of in self._pending.items() if of is not page}


def _frame(request: "Request") -> "Frame | None":
    """Where it was asked for; None for the first request of a tab that has yet to open."""
    from playwright.async_api import Error

    with suppress(Error):
        return request.frame
    return None


def _is_of_tab(request: "Request", frame: "Frame") -> bool:
    """Whether the answer takes the place of the whole page."""
    return request.is_navigation_request() and frame.parent_frame is None
