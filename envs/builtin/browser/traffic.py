"""Watches the requests of one context: whether its pages have settled, and what has failed."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from envs.builtin.browser.chromium import origin_of

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, Frame, Page, Request

QUIET_S, SETTLE_S, LOADING_S = 0.08, 5.0, 30.0
"""A context is quiet after `QUIET_S` without requests. The wait ends after `SETTLE_S`, or after `LOADING_S`
while a navigation is pending: on a busy machine, an earlier look would find half a page."""


class Traffic:
    """Listens to a context from its creation on."""

    def __init__(self, context: "BrowserContext", origins: frozenset[str]) -> None:
        """`origins`: the sites whose failures are faults."""
        self.fault = ""
        """The failure of a site or a page; empty if there is none."""
        self._origins = origins
        self._pending: dict[Request, Page | None] = {}
        self._navigating: set[Page] = set()
        """Pages whose next document was requested and has not replaced the current one yet."""
        self._last_event = time.monotonic()
        context.on("request", self._on_request)
        context.on("requestfinished", self._on_finished)
        context.on("requestfailed", self._on_failed)

    async def wait_until_quiet(self, is_loaded: Callable[[], Awaitable[bool]]) -> float:
        """Wait until the context is quiet; returns the seconds that remain for a page that is still loading.

        `is_loaded` asks the page itself: on a busy machine, the requests that a click causes may start later
        than `QUIET_S` after it.
        """
        self._last_event = now = start = time.monotonic()
        while (now := time.monotonic()) < (deadline := start + (LOADING_S if self._navigating else SETTLE_S)):
            if self._is_silent(now):
                last_event = self._last_event
                with suppress(TimeoutError):  # a page that never answers is observed as it is
                    async with asyncio.timeout(deadline - now):
                        if await is_loaded() and self._last_event == last_event and self._is_silent(now):
                            break
            await asyncio.sleep(QUIET_S / 4)
        return max(0.0, start + LOADING_S - now)

    def _is_silent(self, now: float) -> bool:
        return not self._pending and not self._navigating and now - self._last_event >= QUIET_S

    def watch(self, page: "Page") -> None:
        """Follow the navigations of `page`, and its end."""
        page.on("framenavigated", self._on_navigated)
        page.on("crash", self._on_crash)
        page.on("close", self._on_close)

    def _on_request(self, request: "Request") -> None:
        self._last_event = time.monotonic()
        frame = _find_frame(request)
        self._pending[request] = frame.page if frame else None
        if frame is not None and _replaces_page(request, frame):
            self._navigating.add(frame.page)

    def _on_finished(self, request: "Request") -> None:
        self._last_event = time.monotonic()
        self._pending.pop(request, None)

    def _on_failed(self, request: "Request") -> None:
        self._on_finished(request)
        frame, failure = _find_frame(request), request.failure or ""
        if frame is None or not _replaces_page(request, frame):
            return
        if "ERR_ABORTED" in failure or "ERR_BLOCKED" in failure:  # a download, or no content: the page stays
            self._navigating.discard(frame.page)
            return
        with suppress(ValueError, KeyError):
            if origin_of(request.url) in self._origins:
                self.fault = f"{origin_of(request.url)} does not answer: {failure}"

    def _on_navigated(self, frame: "Frame") -> None:
        self._last_event = time.monotonic()
        if frame.parent_frame is None:
            self._navigating.discard(frame.page)

    def _on_crash(self, page: "Page") -> None:
        self.fault = "a page has crashed"

    def _on_close(self, page: "Page") -> None:
        self._navigating.discard(page)
        self._pending = {request: sender for request, sender in self._pending.items() if sender is not page}


def _find_frame(request: "Request") -> "Frame | None":
    """The frame that sent a request; None for the first request of a tab that is not open yet."""
    from playwright.async_api import Error

    with suppress(Error):
        return request.frame
    return None


def _replaces_page(request: "Request", frame: "Frame") -> bool:
    """Whether the response replaces the whole page."""
    return request.is_navigation_request() and frame.parent_frame is None
