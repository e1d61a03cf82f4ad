"""One episode's browser: a context of its own, its tabs, what is seen of them and what is done to them.

After each action the session waits until the page is quiet, not for a fixed time as WebArena does. What a
site or the browser fails at is a fault (`EnvCrashed`), what a policy fails at is not.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
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
from envs.browser.chromium import VIEWPORT, Chromium, first_line, origin_of
from envs.browser.shelf import Shelf
from envs.browser.tree import Element, Numbers, Tree, read_tree
from envs.errors import EnvCrashed

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, CDPSession, Page, Request, StorageState

MAX_TABS = 12
QUIET_S, SETTLE_S = 0.08, 5.0
"""A page is quiet when for so long nothing has been asked of a site; it is not waited for any longer than the
second of these."""
NAVIGATION_S, ANSWER_S = 60.0, 30.0
"""What a site may take to answer, and a page to be read: longer is a fault."""

_SCROLL = """direction => {
  const box = document.scrollingElement || document.body;
  box.scrollTop += direction * window.innerHeight;
}"""
_IS_LIST = "function () { return this instanceof HTMLSelectElement && !this.multiple }"
_CHOOSE = """function (text) {
  const wanted = text.trim().toLowerCase(), options = [...this.options].filter(one => !one.disabled);
  const by = test => options.find(one => test(one.label.trim().toLowerCase()));
  const found = by(label => label === wanted) || by(label => label.startsWith(wanted));
  if (!found || found.selected) return;
  found.selected = true;
  for (const kind of ['input', 'change']) this.dispatchEvent(new Event(kind, {bubbles: true}));
}"""


class Session:
    """One context; make it by `open`."""

    def __init__(self, context: "BrowserContext", origins: Sequence[str]) -> None:
        self.context = context
        self.page: Page
        """The tab that has the focus."""
        self._origins = frozenset(origins)
        self._wires: dict[Page, CDPSession] = {}
        self._numbers = Numbers()
        self._tree = Tree("", {})
        self._pending: set[Request] = set()
        self._heard = time.monotonic()
        self._fault = ""
        context.on("request", self._asked)
        context.on("requestfinished", self._answered)
        context.on("requestfailed", self._failed)
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
            async with session._watched():
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
    def alive(self) -> bool:
        """False once the context, a page of it, or the browser is known to have died."""
        browser = self.context.browser
        return not self._fault and browser is not None and browser.is_connected()

    @property
    def tree(self) -> Tree:
        """What was last seen."""
        return self._tree

    async def observe(self) -> str:
        """The titles of all tabs, and the tree of the one in front."""
        async with self._watched(), asyncio.timeout(ANSWER_S):
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
        async with self._watched(), asyncio.timeout(NAVIGATION_S + ANSWER_S):
            await self._act(action)
            await self._settle()

    async def goto(self, url: str) -> None:
        """Load `url` in the tab in front, and wait until it is quiet."""
        async with self._watched(), asyncio.timeout(NAVIGATION_S + ANSWER_S):
            await self.page.goto(url, timeout=NAVIGATION_S * 1000)
            await self._settle()

    async def quiet(self) -> None:
        """Wait until the tab in front is quiet."""
        async with self._watched(), asyncio.timeout(NAVIGATION_S):
            await self._settle()

    @property
    def url(self) -> str:
        """Where the tab in front is."""
        return self.page.url

    async def content(self) -> str:
        """The tab in front, as HTML."""
        async with self._watched(), asyncio.timeout(ANSWER_S):
            return await self.page.content()

    async def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the tab in front; raises `ValueError` where it throws."""
        async with self._watched(), asyncio.timeout(ANSWER_S):
            try:
                return await self.page.evaluate(f"() => {expression}")
            except self._errors() as error:
                if self.page.is_closed() or not self.alive:
                    raise
                raise ValueError(first_line(error)) from None

    async def close(self) -> None:
        """End the context. Idempotent."""
        with suppress(*self._errors()):
            await self.context.close()

    async def _act(self, action: Action) -> None:
        page = self.page
        match action:
            case Click(number) | Hover(number) | Type(number):
                element = self._tree.elements.get(number)
                if element is not None:
                    await self._touch(element, action)
            case Press(keys):
                with suppress(*self._errors()):  # a name that is no key's
                    await page.keyboard.press(keys.replace("Meta", "Control"))
            case Scroll(direction):
                await page.evaluate(_SCROLL, 1 if direction == "down" else -1)
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
                await page.go_back(timeout=NAVIGATION_S * 1000)
            case Go("go_forward"):
                await page.go_forward(timeout=NAVIGATION_S * 1000)
            case Stop():
                raise ValueError("stop is whoever plays to carry out")

    async def _touch(self, element: Element, action: Action) -> None:
        x, y = await self._centre(element)
        mouse, keyboard = self.page.mouse, self.page.keyboard
        match action:
            case Hover():
                await mouse.move(x, y)
            case Type(_, text, enter):
                if await self._on(element, _IS_LIST):
                    # Its popup is a window of the system's, which keys may or may not reach.
                    await self._on(element, _CHOOSE, text)
                    return
                await mouse.click(x, y)
                await keyboard.type(text)
                if enter:
                    await keyboard.press("Enter")
            case _:
                await mouse.click(x, y)

    async def _centre(self, element: Element) -> tuple[float, float]:
        """Where an element's middle is, which is scrolled to if it is not in sight."""
        left, top, width, height = element.box
        x, y = left + width / 2, top + height / 2
        if 0 <= x < VIEWPORT[0] and 0 <= y < VIEWPORT[1]:
            return x, y
        wire = await self._wire(self.page)
        node = {"backendNodeId": element.backend_id}
        with suppress(*self._errors()):  # one that has gone is clicked where it was, to no effect
            await wire.send("DOM.scrollIntoViewIfNeeded", node)
            quad = (await wire.send("DOM.getContentQuads", node))["quads"][0]
            return sum(quad[0::2]) / 4, sum(quad[1::2]) / 4
        return x, y

    async def _on(self, element: Element, function: str, *arguments: str) -> Any:
        """The value of a JavaScript function of an element; None where that has gone."""
        wire = await self._wire(self.page)
        with suppress(*self._errors()):
            found = await wire.send("DOM.resolveNode", {"backendNodeId": element.backend_id})
            called = {
                "objectId": found["object"]["objectId"],
                "functionDeclaration": function,
                "arguments": [{"value": value} for value in arguments],
                "returnByValue": True,
            }
            return (await wire.send("Runtime.callFunctionOn", called))["result"].get("value")
        return None

    async def _go_to(self, url: str) -> None:
        try:
            origin = origin_of(url)
        except (ValueError, KeyError):
            origin = ""
        if origin not in self._origins:
            raise NoAction(f"{url[:80]!r} is no page of the sites that can be visited.")
        with suppress(*self._errors()):  # what is no page: a download, no content
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
        self._heard = now = time.monotonic()
        until = now + SETTLE_S
        while (now := time.monotonic()) < until and not self.page.is_closed():
            if not self._pending and now - self._heard >= QUIET_S and await self._is_still():
                break
            await asyncio.sleep(QUIET_S / 4)
        if self.page.is_closed():  # it closed itself
            left = self.context.pages
            self.page = left[-1] if left else await self.context.new_page()
        with suppress(*self._errors()):  # one that loads for ever is seen as it is
            await self.page.wait_for_load_state("load", timeout=max(1.0, (until - now) * 1000))

    async def _is_still(self) -> bool:
        """Whether the page has loaded and nothing has been asked meanwhile. The question goes through the
        page itself: on a busy machine, what a click sets off may begin later than `QUIET_S` after it."""
        heard = self._heard
        with suppress(*self._errors()):  # it is just being replaced
            is_loaded = await self.page.evaluate("document.readyState") == "complete"
            return is_loaded and self._heard == heard and not self._pending
        return False

    @asynccontextmanager
    async def _watched(self) -> AsyncIterator[None]:
        """Within, what Playwright raises is a fault, and so is what a site or a page failed at meanwhile."""
        try:
            yield
        except Exception as error:
            if not isinstance(error, (TimeoutError, *self._errors())):
                raise
            raise EnvCrashed(self._fault or f"the browser failed: {first_line(error)}") from error
        if self._fault:
            raise EnvCrashed(self._fault)

    def _asked(self, request: "Request") -> None:
        self._heard = time.monotonic()
        self._pending.add(request)

    def _answered(self, request: "Request") -> None:
        self._heard = time.monotonic()
        self._pending.discard(request)

    def _failed(self, request: "Request") -> None:
        self._answered(request)
        failure = request.failure or ""
        aborted = "ERR_ABORTED" in failure or "ERR_BLOCKED" in failure
        if request.is_navigation_request() and request.frame.parent_frame is None and not aborted:
            with suppress(ValueError, KeyError):
                if origin_of(request.url) in self._origins:
                    self._fault = f"{origin_of(request.url)} does not answer: {failure}"

    def _opened(self, page: "Page") -> None:
        page.on("crash", self._crashed)
        page.on("close", self._closed)
        if len(self.context.pages) > MAX_TABS:
            self._closing = asyncio.get_running_loop().create_task(page.close())

    def _closed(self, page: "Page") -> None:
        self._wires.pop(page, None)

    def _crashed(self, page: "Page") -> None:
        self._fault = "a page has crashed"

    @staticmethod
    def _errors() -> tuple[type[Exception], ...]:
        """What Playwright raises; imported late, for it may be missing."""
        from playwright.async_api import Error

        return (Error,)
