"""One episode's browser: a context of its own, its tabs, what is seen of them and what is done to them.

After each action the session waits until the page is quiet, not for a fixed time as WebArena does. What a
site or the browser fails at is a fault (`EnvCrashed`), what a policy fails at is not.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from envs.browser.actions import (
    Action,
    Click,
    Go,
    Goto,
    Hover,
    NoAction,
    Press,
    Scroll,
    Stop,
    TabFocus,
    Type,
)
from envs.browser.chromium import VIEWPORT, Chromium, answering, first_line, origin_of, why
from envs.browser.hands import press, scroll, touch
from envs.browser.shelf import Shelf
from envs.browser.traffic import Traffic
from envs.browser.tree import Numbers, Tree, read_tree
from envs.errors import EnvCrashed

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, CDPSession, Page, StorageState

MAX_TABS = 12
NAVIGATION_S, ANSWER_S = 60.0, 30.0
"""What a site may take to answer, and a page to be read: longer is a fault."""


class Session:
    """One context; make it by `open`."""

    def __init__(self, context: "BrowserContext", origins: Sequence[str]) -> None:
        assert context.browser is not None  # only a persistent context has none
        self.context = context
        self._browser = context.browser
        self.page: Page
        """The tab that has the focus."""
        self._origins = frozenset(origins)
        self._wires: dict[Page, CDPSession] = {}
        self._numbers = Numbers()
        self._tree = Tree("", {})
        self._closing: set[asyncio.Task[None]] = set()
        self._tabs_allowed = MAX_TABS
        self._traffic = Traffic(context, self._origins)
        context.on("page", self._opened)

    @classmethod
    async def open(
        cls,
        chromium: Chromium,
        *,
        origins: Sequence[str],
        urls: Sequence[str],
        storage_state: "StorageState | None" = None,
        shelf: Shelf | None = None,
    ) -> "Session":
        """A new context with a tab for each of `urls`, the first in front; it reaches `origins` (URLs, of
        which host and port count), what is on the shelf, and nothing else. `storage_state`: cookies and
        storage of a login."""
        known = sorted({origin_of(url) for url in origins})
        session = cls(await chromium.context(origins=known, storage_state=storage_state), known)
        try:
            async with session._watched(max(1, len(urls)) * NAVIGATION_S + ANSWER_S):
                if shelf is not None:
                    # Playwright keeps something on the owner of a method, which a frozen one refuses.
                    await session.context.route(f"{shelf.origin}/**", lambda route: shelf.serve(route))
                for url in urls or ("about:blank",):
                    session.page = await session.context.new_page()
                    await session.page.goto(url, timeout=NAVIGATION_S * 1000)
                session.page = session.context.pages[0]
                await session.page.bring_to_front()
                await session._settle()
        except BaseException:
            await session.close()
            raise
        return session

    @property
    def is_alive(self) -> bool:
        """False once the context, a page of it, or the browser is known to have died."""
        return not self._traffic.fault and self._browser.is_connected()

    @property
    def tree(self) -> Tree:
        """What was last seen."""
        return self._tree

    async def observe(self) -> str:
        """The titles of all tabs, and the tree of the one in front."""
        async with self._watched(ANSWER_S):
            for attempt in range(5):  # a page that is being replaced cannot be read
                try:
                    self._tree = await self._read()
                    return f"{await self._titles()}\n\n{self._tree.text}"
                except self._errors():
                    if attempt == 4 or self.page.is_closed():
                        raise
                    await self._settle()
        raise AssertionError("the last attempt returns or raises")

    async def act(self, action: Action) -> None:
        """Carry out anything but `Stop`; one that names what is not there changes nothing. Raises `NoAction`
        for a place that may not be gone to."""
        async with self._watched(NAVIGATION_S + ANSWER_S):
            await self._act(action)
            await self._settle()

    @asynccontextmanager
    async def another(self, url: str) -> AsyncIterator["Session"]:
        """While inside, a new tab at `url` is in front, loaded and quiet; then it is closed, and the one that
        was in front is so again. The others stay as they are."""
        before = self.page
        self._tabs_allowed += 1
        try:
            async with self._watched(NAVIGATION_S + ANSWER_S):
                self.page = opened = await self.context.new_page()
                await opened.goto(url, timeout=NAVIGATION_S * 1000)
                await self._settle()
            yield self
            async with self._watched(ANSWER_S):
                await opened.close()
        finally:
            self.page = before
            self._tabs_allowed -= 1

    async def quiet(self) -> None:
        """Wait until the tab in front is quiet."""
        async with self._watched(NAVIGATION_S):
            await self._settle()

    @property
    def url(self) -> str:
        """Where the tab in front is."""
        return self.page.url

    async def content(self) -> str:
        """The tab in front, as HTML."""
        async with self._watched(ANSWER_S):
            return await self.page.content()

    async def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the tab in front; raises `ValueError` where it throws."""
        async with self._watched(ANSWER_S):
            try:
                return await self.page.evaluate(f"() => {expression}")
            except self._errors() as error:
                if self.page.is_closed() or not self.is_alive:
                    raise
                raise ValueError(first_line(error)) from None

    async def close(self) -> None:
        """End the context. Idempotent."""
        with suppress(TimeoutError, *self._errors()):
            async with answering(self._browser, limit_s=ANSWER_S):
                await self.context.close()

    async def _act(self, action: Action) -> None:
        page = self.page
        match action:
            case Click(number) | Hover(number) | Type(number):
                element = self._tree.elements.get(number)
                if element is not None:
                    await touch(page, await self._wire(page), element, action)
            case Press(keys):
                await press(page, keys)
            case Scroll(direction):
                await scroll(page, direction)
            case Goto(url):
                await self._go_to(url)
            case TabFocus(tab):
                if tab < len(self.context.pages):
                    self.page = self.context.pages[tab]
                    await self.page.bring_to_front()
            case Go("new_tab"):
                if len(self.context.pages) < MAX_TABS:
                    self.page = await self.context.new_page()
            case Go("close_tab"):
                await page.close()
                left = self.context.pages
                self.page = left[-1] if left else await self.context.new_page()
            case Go("go_back"):
                with _forgiven():  # where it was refused before
                    await page.go_back(timeout=NAVIGATION_S * 1000)
            case Go("go_forward"):
                with _forgiven():
                    await page.go_forward(timeout=NAVIGATION_S * 1000)
            case Stop():
                raise ValueError("stop is whoever plays to carry out")

    async def _go_to(self, url: str) -> None:
        try:
            origin = origin_of(url)
        except (ValueError, KeyError):
            origin = ""
        if origin not in self._origins:
            raise NoAction(f"{url[:80]!r} is no page of the sites that can be visited.")
        with _forgiven():  # what is no page: a download, no content
            await self.page.goto(url, timeout=NAVIGATION_S * 1000)

    async def _read(self) -> Tree:
        wire = await self._wire(self.page)
        frames, tree, snapshot = await asyncio.gather(
            wire.send("Page.getFrameTree"),
            wire.send("Accessibility.getFullAXTree"),
            wire.send("DOMSnapshot.captureSnapshot", {"computedStyles": []}),
        )
        return read_tree(
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

    async def _wire(self, page: "Page") -> "CDPSession":
        if page not in self._wires:
            wire = await self.context.new_cdp_session(page)
            await wire.send("Accessibility.enable")  # else nodes have other ids each time
            self._wires[page] = wire
        return self._wires[page]

    async def _settle(self) -> None:
        """Wait until the page is quiet."""
        left_s = await self._traffic.quiet(self._is_still)
        if self.page.is_closed():  # it closed itself
            left = self.context.pages
            self.page = left[-1] if left else await self.context.new_page()
        with suppress(*self._errors()):  # one that loads for ever is seen as it is
            await self.page.wait_for_load_state("load", timeout=max(1.0, left_s * 1000))

    @asynccontextmanager
    async def _watched(self, limit_s: float) -> AsyncIterator[None]:
        """Within, what Playwright raises is a fault, and so is what takes longer than `limit_s` seconds, the
        browser's end, and what a site or a page failed at meanwhile."""
        try:
            async with answering(self._browser, limit_s=limit_s):
                yield
        except Exception as error:
            if not isinstance(error, (TimeoutError, *self._errors())):
                raise
            told = self._traffic.fault or f"the browser failed: {why(self._browser, error)}"
            raise EnvCrashed(told) from error
        if self._traffic.fault:
            raise EnvCrashed(self._traffic.fault)

    def _opened(self, page: "Page") -> None:
        self._traffic.watch(page)
        page.on("close", self._closed)
        if len(self.context.pages) > self._tabs_allowed:
            closing = asyncio.get_running_loop().create_task(self._shut(page))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    def _closed(self, page: "Page") -> None:
        self._wires.pop(page, None)

    async def _is_still(self) -> bool:
        """Whether the page has loaded, or is gone."""
        with suppress(*self._errors()):  # it is just being replaced
            return bool(await self.page.evaluate("document.readyState") == "complete")
        return self.page.is_closed()

    async def _shut(self, page: "Page") -> None:
        with suppress(*self._errors()):
            await page.close()

    @staticmethod
    def _errors() -> tuple[type[Exception], ...]:
        """What Playwright raises; imported late, for it may be missing."""
        from playwright.async_api import Error

        return (Error,)


@contextmanager
def _forgiven() -> Iterator[None]:
    """Within, a page that does not come is play, but one that takes too long is not."""
    from playwright.async_api import Error
    from playwright.async_api import TimeoutError as TooLong

    try:
        yield
    except TooLong:
        raise
    except Error:
        pass
