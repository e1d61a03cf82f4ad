"""A page as WebArena shows it to a policy: its accessibility tree, one line per element in the viewport.

    [1] RootWebArea 'Projects' focused: True
        [2] link 'Skip to content'
        [3] textbox 'Search' required: False

The format, the choice of elements and the viewport arithmetic are WebArena's (Zhou et al. 2023, arXiv
2307.13854; `browser_env/processors.py` in its repository), with three differences. Elements are numbered in
the order in which they are first shown, because Chromium's own numbers depend on what else its process has
rendered. Bounds come from one snapshot of the layout instead of one request per element. Roles and properties
that Chromium has renamed or added since keep their old form (`img`, no `url:`).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Required, TypedDict

Box = tuple[float, float, float, float]
"""Left, top, width and height in pixels, relative to the viewport."""

IN_VIEWPORT = 0.6
"""Minimum visible ratio, as WebArena computes it, of an element that is shown."""
MAX_LENGTH = 16_000
"""Characters of a tree: the site decides how long a page is."""
MAX_DEPTH = 200

_HIDDEN_PROPERTIES = {"focusable", "editable", "readonly", "level", "settable", "multiline", "invalid", "url"}
"""Properties that are not shown; `url` came to Chromium after WebArena."""
_NEEDS_NAME = {
    "generic",
    "img",
    "list",
    "strong",
    "paragraph",
    "banner",
    "navigation",
    "Section",
    "LabelText",
}
_NEEDS_NAME |= {"Legend", "listitem"}
"""Roles that are not shown without a name."""
_OLD_ROLES = {"image": "img"}
_HIDDEN_ROLES = frozenset({"ListMarker", "InlineTextBox"})
_STATIC = re.compile(r"\t*\[\d+\] StaticText (.+)")


class Value(TypedDict, total=False):
    """A value of CDP's `Accessibility` domain."""

    value: object


class Property(TypedDict):
    """A named property of a node."""

    name: str
    value: Value


class Node(TypedDict, total=False):
    """A node of the tree as CDP's `Accessibility.getFullAXTree` gives it; what is not read is left out."""

    nodeId: Required[str]
    backendDOMNodeId: int
    childIds: Sequence[str]
    role: Value
    name: Value
    properties: Sequence[Property]


@dataclass(frozen=True, slots=True)
class Element:
    """An element that is shown: one line of the tree."""

    number: int
    backend_id: int
    """Chromium's id of the DOM node."""
    box: Box
    text: str
    """The line without its number."""


@dataclass(frozen=True, slots=True)
class AccessibilityTree:
    """What a policy sees of a page."""

    text: str
    elements: Mapping[int, Element]
    """The elements by number."""


class ElementNumbers:
    """Numbers the elements of one episode; an element keeps its number as long as its document lives."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, str], int] = {}

    def number(self, document: str, node: str) -> int:
        """The number of a node; `document` is Chromium's id of the loaded document."""
        return self._numbers.setdefault((document, node), len(self._numbers) + 1)


def read_accessibility_tree(
    nodes: Sequence[Node],
    snapshot: Mapping[str, Any],
    *,
    document: str,
    numbers: ElementNumbers,
    viewport: tuple[int, int],
) -> AccessibilityTree:
    """Build the tree from CDP's `Accessibility.getFullAXTree` (`nodes`) and `DOMSnapshot` (`snapshot`)."""
    boxes = _read_boxes(snapshot)
    by_id = {node["nodeId"]: node for node in reversed(nodes)}  # of duplicates, the first
    elements: dict[int, Element] = {}
    lines: list[str] = []

    def walk(node: Node, indent: int, parent_box: Box | None, depth: int) -> None:
        box = boxes.get(node.get("backendDOMNodeId", 0), parent_box if _is_inner(node) else None)
        text = _describe(node)
        is_root = node is nodes[0]
        if text is not None and (is_root or (box is not None and _is_in_viewport(box, viewport))):
            number = numbers.number(document, node["nodeId"])
            elements[number] = Element(number, node["backendDOMNodeId"], box or (0, 0, 10, 10), text)
            lines.append("\t" * indent + f"[{number}] {text}")
            indent += 1
        for child in node.get("childIds", ()):
            if child in by_id and depth < MAX_DEPTH:
                walk(by_id[child], indent, box, depth + 1)

    if nodes:
        walk(nodes[0], 0, None, 0)
    text = "\n".join(_drop_repetitions(lines))
    if len(text) > MAX_LENGTH:
        text = text[:MAX_LENGTH].rpartition("\n")[0] + "\n(the page goes on)"
    return AccessibilityTree(text, elements)


def _read_boxes(snapshot: Mapping[str, Any]) -> dict[int, Box | None]:
    document = snapshot["documents"][0]
    right, down = document.get("scrollOffsetX", 0), document.get("scrollOffsetY", 0)
    ids, layout = document["nodes"]["backendNodeId"], document["layout"]
    return {
        ids[index]: (x - right, y - down, width, height)
        for index, (x, y, width, height) in zip(layout["nodeIndex"], layout["bounds"], strict=True)
    }


def _is_inner(node: Node) -> bool:
    """Whether a node is the text within a field: the snapshot leaves it out, and it lies where the field
    does."""
    return any(entry["name"] == "editable" for entry in node.get("properties", ()))


def _is_in_viewport(box: Box, viewport: tuple[int, int]) -> bool:
    left, top, width, height = box
    if not width or not height:
        return False
    across = max(0.0, min(left + width, viewport[0]) - max(left, 0.0))
    down = max(0.0, min(top + height, viewport[1]) - max(top, 0.0))
    # As in WebArena, which multiplies by the height where the share of the area would divide by it: nearly
    # every element that is visible at all is shown.
    return across * down / width * height >= IN_VIEWPORT


def _describe(node: Node) -> str | None:
    """A node's line; None for a node that is not shown."""
    role = str(node.get("role", {}).get("value", ""))
    if "name" not in node or "backendDOMNodeId" not in node or role in _HIDDEN_ROLES:
        return None
    role, name = _OLD_ROLES.get(role, role), str(node["name"].get("value", ""))
    properties = [
        f"{entry['name']}: {entry['value']['value']}"
        for entry in node.get("properties", ())
        if entry["name"] not in _HIDDEN_PROPERTIES and "value" in entry["value"]
    ]
    if not name.strip() and (role == "listitem" or (role in _NEEDS_NAME and not properties)):
        return None
    return " ".join([role, repr(name), *properties])


def _drop_repetitions(lines: list[str]) -> Iterator[str]:
    """Drop each text that one of the three lines before it contains, their numbers apart."""
    shown_lines: list[str] = []
    for line in lines:
        text = _STATIC.match(line)
        if text is not None:
            inner = text[1][1:-1]
            if not inner or any(inner in line.partition("] ")[2] for line in shown_lines[-3:]):
                continue
        shown_lines.append(line)
        yield line
