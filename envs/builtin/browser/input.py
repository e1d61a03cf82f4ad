"""Mouse and keyboard: carries out actions on a page and its elements."""

from contextlib import suppress
from typing import TYPE_CHECKING

from envs.builtin.browser.accessibility_tree import Element
from envs.builtin.browser.actions import ElementAction
from envs.builtin.browser.chromium import VIEWPORT

if TYPE_CHECKING:
    from playwright.async_api import CDPSession, Page

_IS_SELECT = "function () { return this instanceof HTMLSelectElement && !this.multiple }"
_SELECT_OPTION = """function (text) {
  const target = text.trim().toLowerCase(), options = [...this.options].filter(option => !option.disabled);
  const find = test => options.find(option => test(option.label.trim().toLowerCase()));
  const match = find(label => label === target) || find(label => label.startsWith(target));
  if (!match || match.selected) return;
  match.selected = true;
  for (const kind of ['input', 'change']) this.dispatchEvent(new Event(kind, {bubbles: true}));
}"""
_SCROLL = """direction => {
  const box = document.scrollingElement || document.body;
  box.scrollTop += direction * window.innerHeight;
}"""


async def use_element(page: "Page", cdp: "CDPSession", element: Element, action: ElementAction) -> None:
    """Carry out an action on an element."""
    x, y = await _find_centre(cdp, element)
    match action.command:
        case "hover":
            await page.mouse.move(x, y)
        case "click":
            await page.mouse.click(x, y)
        case "type":
            if await _call_on(cdp, element, _IS_SELECT):
                # Its popup is a native window, which keys may not reach.
                await _call_on(cdp, element, _SELECT_OPTION, action.text)
                return
            await page.mouse.click(x, y)
            await page.keyboard.type(action.text)
            if action.enter:
                await page.keyboard.press("Enter")


async def press(page: "Page", keys: str) -> None:
    """Press keys; an unknown key name changes nothing."""
    from playwright.async_api import Error

    with suppress(Error):
        await page.keyboard.press(keys.replace("Meta", "Control"))


async def scroll(page: "Page", direction: str) -> None:
    """Scroll the page by the height of the window."""
    await page.evaluate(_SCROLL, 1 if direction == "down" else -1)


async def _find_centre(cdp: "CDPSession", element: Element) -> tuple[float, float]:
    """The middle of an element, in pixels; scrolls to it if it is outside the viewport."""
    from playwright.async_api import Error

    left, top, width, height = element.box
    x, y = left + width / 2, top + height / 2
    if 0 <= x < VIEWPORT[0] and 0 <= y < VIEWPORT[1]:
        return x, y
    node = {"backendNodeId": element.backend_id}
    with suppress(Error):  # an element that is gone is clicked where it was, to no effect
        await cdp.send("DOM.scrollIntoViewIfNeeded", node)
        quad = (await cdp.send("DOM.getContentQuads", node))["quads"][0]
        return sum(quad[0::2]) / 4, sum(quad[1::2]) / 4
    return x, y


async def _call_on(cdp: "CDPSession", element: Element, function: str, *arguments: str) -> object:
    """Call a JavaScript function with the element as `this`; None if the element is gone."""
    from playwright.async_api import Error

    with suppress(Error):
        node = await cdp.send("DOM.resolveNode", {"backendNodeId": element.backend_id})
        call = {
            "objectId": node["object"]["objectId"],
            "functionDeclaration": function,
            "arguments": [{"value": value} for value in arguments],
            "returnByValue": True,
        }
        return (await cdp.send("Runtime.callFunctionOn", call))["result"].get("value")
    return None
