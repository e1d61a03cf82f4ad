"""One episode's browser: a context of its own with its tabs, how they are observed and acted on.

After each action the session waits until the page is quiet, not for a fixed time as WebArena does. A failure
of a site or of the browser is a fault (`EnvCrashed`); a failure of the policy is not.
"""

import asyncio
import mimetypes
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from envs.builtin.browser.accessibility_tree import AccessibilityTree, ElementNumbers, read_accessibility_tree
from envs.builtin.browser.actions import Action, ElementAction, InvalidAction, PageAction
from envs.builtin.browser.chromium import VIEWPORT, Chromium, abort_on_death, explain, first_line, origin_of
from envs.builtin.browser.input import press, scroll, use_element
from envs.builtin.browser.traffic import Traffic
from envs.errors import EnvCrashed

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, CDPSession, Page, Route, StorageState

MAX_TABS = 12
NAVIGATION_S, ANSWER_S = 60.0, 30.0
"""Limits for a site to answer and for a page to be read; exceeding one is a fault."""


@dataclass(frozen=True, slots=True)
class StaticFolder:
    """Files that stand for a site: requests to `origin` are answered from `folder`, without a server."""

    origin: str
    """`http://host`; nothing is sent there."""
    folder: Path

    async def serve(self, route: "Route") -> None:
        """Answer a request with its file."""
        folder = self.folder.resolve()
        path = (folder / unquote(urlsplit(route.request.url).path).lstrip("/")).resolve()
        if path.is_relative_to(folder) and path.is_file():
            content_type = mimetypes.guess_type(path)[0] or "application/octet-stream"
            await route.fulfill(path=path, content_type=f"{content_type}; charset=utf-8")
        else:
            await route.fulfill(status=404, body="not found")


class BrowserSession:
    """One context; created by `open`."""

    def __init__(self, context: "BrowserContext", origins: Sequence[str]) -> None:
        assert context.browser is not None  # only a persistent context has none
        self.context = context
        self._browser = context.browser
        self.page: Page
        """The tab that has the focus."""
        self._origins = frozenset(origins)
        self._cdp_sessions: dict[Page, CDPSession] = {}
        self._numbers = ElementNumbers()
        self.tree = AccessibilityTree("", {})
        """The result of the last `observe`."""
        self._closing_tabs: set[asyncio.Task[None]] = set()
        self._max_tabs = MAX_TABS
        self._traffic = Traffic(context, self._origins)
        context.on("page", self._on_page)

    @classmethod
    async def open(
        cls,
        chromium: Chromium,
        *,
        origins: Sequence[str],
        urls: Sequence[str],
        storage_state: "StorageState | None" = None,
        static_folder: StaticFolder | None = None,
    ) -> "BrowserSession":
        """Open a context with a tab for each of `urls`, the first in front. It reaches the hosts and ports of
        `origins`, the static folder, and nothing else. `storage_state`: cookies and storage of a login."""
        allowed_origins = sorted({origin_of(url) for url in origins})
        context = await chromium.context(origins=allowed_origins, storage_state=storage_state)
        session = cls(context, allowed_origins)
        try:
            async with session._guard(max(1, len(urls)) * NAVIGATION_S + ANSWER_S):
                if static_folder is not None:
                    # Playwright sets an attribute on the owner of a method; a frozen object refuses that.
                    await context.route(
                        f"{static_folder.origin}/**", lambda route: static_folder.serve(route)
                    )
                for url in urls or ("about:blank",):
                    session.page = await context.new_page()
                    await session._load(url)
                session.page = context.pages[0]
                await session.page.bring_to_front()
                await session._settle()
        except BaseException:
            await session.close()
            raise
        return session

    @property
    def is_alive(self) -> bool:
        """False once a site, a page or the browser is known to have failed."""
        return not self._traffic.fault and self._browser.is_connected()

    async def observe(self) -> str:
        """The titles of all tabs and the accessibility tree of the tab in front."""
        async with self._guard(ANSWER_S):
            for attempt in range(5):  # a page that is being replaced cannot be read
                try:
                    self.tree = await self._read()
                    return f"{await self._titles()}\n\n{self.tree.text}"
                except self._errors():
                    if attempt == 4 or self.page.is_closed():
                        raise
                    await self._settle()
        raise AssertionError("the last attempt returns or raises")

    async def act(self, action: Action) -> None:
        """Carry out any action but `stop`; an action on a missing element or tab changes nothing. Raises
        `InvalidAction` for an address outside the allowed origins."""
        async with self._guard(NAVIGATION_S + ANSWER_S):
            await self._act(action)
            await self._settle()

    @asynccontextmanager
    async def open_tab(self, url: str) -> AsyncIterator["BrowserSession"]:
        """Open a new tab at `url` in front, loaded and quiet; on exit, close it and return to the tab that
        was in front before. Other tabs are not touched."""
        previous_page = self.page
        self._max_tabs += 1
        try:
            async with self._guard(NAVIGATION_S + ANSWER_S):
                self.page = tab = await self.context.new_page()
                await self._load(url)
                await self._settle()
            yield self
            async with self._guard(ANSWER_S):
                await tab.close()
        finally:
            self.page = previous_page
            self._max_tabs -= 1

    async def settle(self) -> None:
        """Wait until the tab in front is quiet."""
        async with self._guard(NAVIGATION_S):
            await self._settle()

    @property
    def url(self) -> str:
        """The address of the tab in front."""
        return self.page.url

    async def content(self) -> str:
        """The HTML of the tab in front."""
        async with self._guard(ANSWER_S):
            return await self.page.content()

    async def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the tab in front; raises `ValueError` where it throws."""
        async with self._guard(ANSWER_S):
            try:
                return await self.page.evaluate(f"() => {expression}")
            except self._errors() as error:
                if self.page.is_closed() or not self.is_alive:
                    raise
                raise ValueError(first_line(error)) from None

    async def close(self) -> None:
        """End the context. Idempotent."""
        with suppress(TimeoutError, *self._errors()):
            async with abort_on_death(self._browser, limit_s=ANSWER_S):
                await self.context.close()

    async def _act(self, action: Action) -> None:
        page = self.page
        match action:
            case ElementAction(_, number):
                element = self.tree.elements.get(number)
                if element is not None:
                    await use_element(page, await self._cdp_session(page), element, action)
            case PageAction("press", keys):
                await press(page, keys)
            case PageAction("scroll", direction):
                await scroll(page, direction)
            case PageAction("goto", url):
                await self._go_to(url)
            case PageAction("tab_focus", tab):
                if int(tab) < len(self.context.pages):
                    self.page = self.context.pages[int(tab)]
                    await self.page.bring_to_front()
            case PageAction("new_tab"):
                if len(self.context.pages) < MAX_TABS:
                    self.page = await self.context.new_page()
            case PageAction("close_tab"):
                await page.close()
                await self._focus_last_tab()
            case PageAction("go_back"):
                with _ignore_failed_navigation():  # to a page that was refused before
                    await page.go_back(timeout=NAVIGATION_S * 1000)
            case PageAction("go_forward"):
                with _ignore_failed_navigation():
                    await page.go_forward(timeout=NAVIGATION_S * 1000)
            case _:
                raise ValueError("a session cannot carry out stop; the caller ends the episode")

    async def _go_to(self, url: str) -> None:
        try:
            origin = origin_of(url)
        except (ValueError, KeyError):
            origin = ""
        if origin not in self._origins:
            raise InvalidAction(f"{url[:80]!r} is no page of the sites that can be visited.")
        with _ignore_failed_navigation():  # a download, or a response without content
            await self.page.goto(url, timeout=NAVIGATION_S * 1000)

    async def _load(self, url: str) -> None:
        """Load a page that the episode or its evaluation needs; an answer of 500 or above is a fault."""
        response = await self.page.goto(url, timeout=NAVIGATION_S * 1000)
        if response is not None and response.status >= 500:
            self._traffic.fault = f"{origin_of(response.url)} answers {response.status}"
            raise EnvCrashed(self._traffic.fault)

    async def _read(self) -> AccessibilityTree:
        cdp = await self._cdp_session(self.page)
        frames, tree, snapshot = await asyncio.gather(
            cdp.send("Page.getFrameTree"),
            cdp.send("Accessibility.getFullAXTree"),
            cdp.send("DOMSnapshot.captureSnapshot", {"computedStyles": []}),
        )
        return read_accessibility_tree(
            tree["nodes"],
            snapshot,
            document=frames["frameTree"]["frame"]["loaderId"],
            numbers=self._numbers,
            viewport=VIEWPORT,
        )

    async def _titles(self) -> str:
        pages = self.context.pages
        titles = await asyncio.gather(*(page.title() for page in pages))
        return " | ".join(
            f"Tab {number}{' (current)' if page is self.page else ''}: {title}"
            for number, (page, title) in enumerate(zip(pages, titles, strict=True))
        )

    async def _cdp_session(self, page: "Page") -> "CDPSession":
        if page not in self._cdp_sessions:
            cdp = await self.context.new_cdp_session(page)
            await cdp.send("Accessibility.enable")  # without it, nodes get other ids at each reading
            self._cdp_sessions[page] = cdp
        return self._cdp_sessions[page]

    async def _focus_last_tab(self) -> None:
        tabs = self.context.pages
        self.page = tabs[-1] if tabs else await self.context.new_page()

    async def _settle(self) -> None:
        remaining_s = await self._traffic.wait_until_quiet(self._is_loaded)
        if self.page.is_closed():  # it closed itself
            await self._focus_last_tab()
        with suppress(*self._errors()):  # a page that never finishes loading is observed as it is
            await self.page.wait_for_load_state("load", timeout=max(1.0, remaining_s * 1000))

    @asynccontextmanager
    async def _guard(self, limit_s: float) -> AsyncIterator[None]:
        """Raise `EnvCrashed` for any error of Playwright within, for taking longer than `limit_s` seconds,
        for the browser's death, and for a failure of a site or page."""
        try:
            async with abort_on_death(self._browser, limit_s=limit_s):
                yield
        except Exception as error:
            if not isinstance(error, (TimeoutError, *self._errors())):
                raise
            cause = self._traffic.fault or f"the browser failed: {explain(self._browser, error)}"
            raise EnvCrashed(cause) from error
        if self._traffic.fault:
            raise EnvCrashed(self._traffic.fault)

    def _on_page(self, page: "Page") -> None:
        self._traffic.watch(page)
        page.on("close", self._forget_page)
        if len(self.context.pages) > self._max_tabs:
            closing = asyncio.get_running_loop().create_task(self._close_tab(page))
            self._closing_tabs.add(closing)
            closing.add_done_callback(self._closing_tabs.discard)

    def _forget_page(self, page: "Page") -> None:
        self._cdp_sessions.pop(page, None)

    async def _is_loaded(self) -> bool:
        """Whether the page has loaded, or is gone."""
        with suppress(*self._errors()):  # it is being replaced
            return bool(await self.page.evaluate("document.readyState") == "complete")
        return self.page.is_closed()

    async def _close_tab(self, page: "Page") -> None:
        with suppress(*self._errors()):
            await page.close()

    @staticmethod
    def _errors() -> tuple[type[Exception], ...]:
        """Playwright's errors; imported late, because Playwright may be missing."""
        from playwright.async_api import Error

        return (Error,)


@contextmanager
def _ignore_failed_navigation() -> Iterator[None]:
    """Suppress errors of a navigation within, but not its timeout: that is the site's fault."""
    from playwright.async_api import Error
    from playwright.async_api import TimeoutError as NavigationTimeout

    try:
        yield
    except NavigationTimeout:
        raise
    except Error:
        pass
