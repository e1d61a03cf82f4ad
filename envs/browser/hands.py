"""The mouse and the keyboard: what is done to an element of a page."""

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from envs.browser.actions import Click, Hover, Type
from envs.browser.chromium import VIEWPORT
from envs.browser.tree import Element

if TYPE_CHECKING:
    from playwright.async_api import CDPSession, Page

_IS_LIST = "function () { return this instanceof HTMLSelectElement && !this.multiple }"
_CHOOSE = """function (text) {
  const wanted = text.trim().toLowerCase(), options = [...this.options].filter(one => !one.disabled);
  const by = test => options.find(one => test(one.label.trim().toLowerCase()));
  const found = by(label => label === wanted) || by(label => label.startsWith(wanted));
  if (!found || found.selected) return;
  found.selected = true;
  for (const kind of ['input', 'change']) this.dispatchEvent(new Event(kind, {bubbles: true}));
}"""
_SCROLL = """direction => {
  const box = document.scrollingElement || document.body;
  box.scrollTop += direction * window.innerHeight;
}"""


async def touch(page: "Page", wire: "CDPSession", element: Element, action: Click | Hover | Type) -> None:
    """Carry out an action on an element."""
    x, y = await _centre(wire, element)
    match action:
        case Hover():
            await page.mouse.move(x, y)
        case Click():
            await page.mouse.click(x, y)
        case Type(_, text, enter):
            if await _on(wire, element, _IS_LIST):
                # Its popup is a window of the system's, which keys may or may not reach.
                await _on(wire, element, _CHOOSE, text)
                return
            await page.mouse.click(x, y)
            await page.keyboard.type(text)
            if enter:
                await page.keyboard.press("Enter")


async def press(page: "Page", keys: str) -> None:
    """Press keys; a name that is no key's changes nothing."""
    from playwright.async_api import Error

    with suppress(Error):
        await page.keyboard.press(keys.replace("Meta", "Control"))


async def scroll(page: "Page", direction: str) -> None:
    """Move the page by the height of the window."""
    await page.evaluate(_SCROLL, 1 if direction == "down" else -1)


async def _centre(wire: "CDPSession", element: Element) -> tuple[float, float]:
    """Where an element's middle is, which is scrolled to if it is not in sight."""
    from playwright.async_api import Error

    left, top, width, height = element.box
    x, y = left + width / 2, top + height / 2
    if 0 <= x < VIEWPORT[0] and 0 <= y < VIEWPORT[1]:
        return x, y
    node = {"backendNodeId": element.backend_id}
    with suppress(Error):  # one that has gone is clicked where it was, to no effect
        await wire.send("DOM.scrollIntoViewIfNeeded", node)
        quad = (await wire.send("DOM.getContentQuads", node))["quads"][0]
        return sum(quad[0::2]) / 4, sum(quad[1::2]) / 4
    return x, y


async def _on(wire: "CDPSession", element: Element, function: str, *arguments: str) -> Any:
    """The value of a JavaScript function of an element; None where that has gone."""
    from playwright.async_api import Error

    with suppress(Error):
        found = await wire.send("DOM.resolveNode", {"backendNodeId": element.backend_id})
        called = {
            "objectId": found["object"]["objectId"],
            "functionDeclaration": function,
            "arguments": [{"value": value} for value in arguments],
            "returnByValue": True,
        }
        return (await wire.send("Runtime.callFunctionOn", called))["result"].get("value")
    return None
