"""A page as WebArena tells it to a policy: its accessibility tree, a line for each element in the viewport.

    [1] RootWebArea 'Projects' focused: True
        [2] link 'Skip to content'
        [3] textbox 'Search' required: False

The form, which elements are left out, and the arithmetic of the viewport are WebArena's (Zhou et al. 2023,
arXiv 2307.13854; `browser_env/processors.py` of its repository), with these differences: numbers are given in
the order in which elements are first shown, for Chromium's own depend on what else its process has rendered;
bounds are read from one snapshot of the layout, not asked for one element at a time; and what Chromium has
renamed or added since has its old form (`img`, no `url:`).
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Box = tuple[float, float, float, float]
"""Left, top, width and height in pixels, relative to the viewport."""

IN_VIEWPORT = 0.6
"""Least ratio, in WebArena's sense, of an element that is shown."""
MAX_LENGTH = 16_000
"""Characters of a tree; a page is the site's to write."""
MAX_DEPTH = 200

_SILENT = {"focusable", "editable", "readonly", "level", "settable", "multiline", "invalid", "url"}
"""Properties that are not told; `url` came to Chromium later."""
_EMPTY = {"generic", "img", "list", "strong", "paragraph", "banner", "navigation", "Section", "LabelText"}
_EMPTY |= {"Legend", "listitem"}
"""Roles that are not told without a name."""
_RENAMED = {"image": "img"}
_UNSEEN = frozenset({"ListMarker", "InlineTextBox"})
_STATIC = re.compile(r"\t*\[\d+\] StaticText (.+)")


@dataclass(frozen=True, slots=True)
class Element:
    """A line of the tree."""

    number: int
    backend_id: int
    """Chromium's own for the node, by which it is found again."""
    box: Box
    said: str
    """The line without its number."""


@dataclass(frozen=True, slots=True)
class Tree:
    """What is seen of a page."""

    text: str
    elements: Mapping[int, Element]
    """By number."""


class Numbers:
    """The numbers of one episode's elements: each keeps its own as long as its document lives."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], int] = {}

    def of(self, document: str, node: str) -> int:
        """`document`: Chromium's id of what was loaded."""
        return self._known.setdefault((document, node), len(self._known) + 1)


def read_tree(
    nodes: list[dict[str, Any]],
    snapshot: Mapping[str, Any],
    *,
    document: str,
    numbers: Numbers,
    viewport: tuple[int, int],
) -> Tree:
    """`nodes`: what CDP's `Accessibility.getFullAXTree` answers; `snapshot`: its `DOMSnapshot`."""
    boxes = _boxes(snapshot)
    by_id = {node["nodeId"]: node for node in reversed(nodes)}  # of those that are told twice, the first
    elements: dict[int, Element] = {}
    lines: list[str] = []

    def walk(node: Mapping[str, Any], depth: int, box: Box | None, deep: int) -> None:
        around = box if _is_inner(node) else None
        box = boxes.get(node.get("backendDOMNodeId", 0), around)
        said = _said(node)
        root = node is nodes[0]
        if said is not None and (root or (box is not None and _in_viewport(box, viewport))):
            number = numbers.of(document, node["nodeId"])
            elements[number] = Element(number, node["backendDOMNodeId"], box or (0, 0, 10, 10), said)
            lines.append("\t" * depth + f"[{number}] {said}")
            depth += 1
        for child in node.get("childIds", ()):
            if child in by_id and deep < MAX_DEPTH:
                walk(by_id[child], depth, box, deep + 1)

    if nodes:
        walk(nodes[0], 0, None, 0)
    text = "\n".join(_without_repetition(lines))
    if len(text) > MAX_LENGTH:
        text = text[:MAX_LENGTH].rpartition("\n")[0] + "\n(the page goes on)"
    return Tree(text, elements)


def _boxes(snapshot: Mapping[str, Any]) -> dict[int, Box | None]:
    document = snapshot["documents"][0]
    right, down = document.get("scrollOffsetX", 0), document.get("scrollOffsetY", 0)
    ids, layout = document["nodes"]["backendNodeId"], document["layout"]
    return {
        ids[index]: (x - right, y - down, width, height)
        for index, (x, y, width, height) in zip(layout["nodeIndex"], layout["bounds"], strict=True)
    }


def _is_inner(node: Mapping[str, Any]) -> bool:
    """Whether it is the text within a field, which the snapshot leaves out: it lies where the field does."""
    return any(one["name"] == "editable" for one in node.get("properties", ()))


def _in_viewport(box: Box, viewport: tuple[int, int]) -> bool:
    left, top, width, height = box
    if not width or not height:
        return False
    across = max(0.0, min(left + width, viewport[0]) - max(left, 0.0))
    down = max(0.0, min(top + height, viewport[1]) - max(top, 0.0))
    # WebArena multiplies by the height where a share of the area would be divided by it: nearly all that is
    # seen at all is shown, and so it is here.
    return across * down / width * height >= IN_VIEWPORT


def _said(node: Mapping[str, Any]) -> str | None:
    """A node's line; None for one that has none."""
    role = str(node.get("role", {}).get("value", ""))
    if "name" not in node or "backendDOMNodeId" not in node or role in _UNSEEN:
        return None
    role, name = _RENAMED.get(role, role), str(node["name"].get("value", ""))
    properties = [
        f"{one['name']}: {one['value']['value']}"
        for one in node.get("properties", ())
        if one["name"] not in _SILENT and "value" in one["value"]
    ]
    if not name.strip() and (role == "listitem" or (role in _EMPTY and not properties)):
        return None
    return " ".join([role, repr(name), *properties])


def _without_repetition(lines: list[str]) -> Iterator[str]:
    """Without texts that one of the three lines before has already told, its number apart."""
    kept: list[str] = []
    for line in lines:
        text = _STATIC.match(line)
        if text is not None:
            inner = text[1][1:-1]
            if not inner or any(inner in before.partition("] ")[2] for before in kept[-3:]):
                continue
        kept.append(line)
        yield line
