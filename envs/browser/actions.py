"""What a policy may do in a browser: WebArena's actions on numbered elements, read from text.

An action may stand alone or within triple backticks, the first of which count, as for WebArena and AgentGym.
`click [7]`, `type [7] [text] [0|1]` (1, the default, presses Enter afterwards), `hover [7]`,
`press [Control+a]`, `scroll [down|up]`, `new_tab`, `tab_focus [0]`, `close_tab`, `goto [url]`, `go_back`,
`go_forward`, `stop [answer]`.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

MAX_LENGTH = 4_000
"""Characters of an action; a longer one is nonsense."""

FORMS = (
    "click [id]",
    "type [id] [text] [0|1]",
    "hover [id]",
    "press [keys]",
    "scroll [down|up]",
    "new_tab",
    "tab_focus [number]",
    "close_tab",
    "goto [url]",
    "go_back",
    "go_forward",
    "stop [answer]",
)


class NoAction(ValueError):
    """The text is no action; says why, to the policy."""


@dataclass(frozen=True, slots=True)
class Click:
    """Press the mouse on an element."""

    element: int


@dataclass(frozen=True, slots=True)
class Hover:
    """Move the mouse to an element."""

    element: int


@dataclass(frozen=True, slots=True)
class Type:
    """Click on an element and write."""

    element: int
    text: str
    enter: bool


@dataclass(frozen=True, slots=True)
class Press:
    """Keys as Playwright names them, joined by `+`."""

    keys: str


@dataclass(frozen=True, slots=True)
class Scroll:
    """By the height of the viewport."""

    direction: Literal["down", "up"]


@dataclass(frozen=True, slots=True)
class Go:
    """What has no argument: a move through the history, a new tab, or the end of one."""

    what: Literal["new_tab", "close_tab", "go_back", "go_forward"]


@dataclass(frozen=True, slots=True)
class TabFocus:
    """The tab with this number, from 0."""

    tab: int


@dataclass(frozen=True, slots=True)
class Goto:
    """Load an address."""

    url: str


@dataclass(frozen=True, slots=True)
class Stop:
    """The task is done, or cannot be."""

    answer: str


Action = Click | Hover | Type | Press | Scroll | Go | TabFocus | Goto | Stop

_BLOCK = re.compile(r"```(.*?)```", re.DOTALL)
_ELEMENT = re.compile(r"(click|hover|tab_focus) ?\[(\d{1,9})\]")
_TYPE = re.compile(r"type ?\[(\d{1,9})\] ?\[(.+)\] ?\[([01])\]", re.DOTALL)
_PRESS = re.compile(r"press ?\[(.+)\]")
_SCROLL = re.compile(r"scroll ?\[?(up|down)\]?")
_GOTO = re.compile(r"goto ?\[(.+)\]")
_STOP = re.compile(r"stop ?\[(.+)\]", re.DOTALL)

_SPECIAL = (
    *("Backquote", "Minus", "Equal", "Backslash", "Backspace", "Meta", "Tab", "Delete", "Escape", "End"),
    *("Enter", "Home", "Insert", "PageDown", "PageUp", "Shift", "Control", "Alt"),
    *("ArrowDown", "ArrowRight", "ArrowUp", "ArrowLeft"),
)
_KEYS = {key.lower(): key for key in _SPECIAL} | {
    "ctrl": "Control",
    "cmd": "Meta",
    "esc": "Escape",
    **{f"f{n}": f"F{n}" for n in range(1, 13)},
}


def read_action(said: str) -> Action:
    """The action in what a policy said; raises `NoAction`."""
    block = _BLOCK.search(said)
    text = (block[1] if block else said).strip()
    if len(text) > MAX_LENGTH:
        raise NoAction(f"An action has at most {MAX_LENGTH} characters.")
    name = text.partition("[")[0].split()[:1]
    action = _read(name[0], text) if name else None
    if action is None:
        raise NoAction(f"{text[:60]!r} is no action. Actions: {', '.join(FORMS)}.")
    return action


_NUMBERED: dict[str, Callable[[int], Action]] = {"click": Click, "hover": Hover, "tab_focus": TabFocus}


def _read(name: str, text: str) -> Action | None:
    match name:
        case "click" | "hover" | "tab_focus" if found := _ELEMENT.match(text):
            number = int(found[2])
            return _NUMBERED[name](number)
        case "type":
            ended = text if text.endswith(("[0]", "[1]")) else f"{text} [1]"
            if found := _TYPE.match(ended):
                return Type(int(found[1]), found[2], found[3] == "1")
        case "press" if found := _PRESS.match(text):
            return Press("+".join(_KEYS.get(key.lower(), key) for key in found[1].strip().split("+")))
        case "scroll" if found := _SCROLL.match(text):
            return Scroll("up" if found[1] == "up" else "down")
        case "goto" if found := _GOTO.match(text):
            return Goto(found[1].strip())
        case "new_tab" | "close_tab" | "go_back" | "go_forward":
            return Go(name)
        case "stop":
            found = _STOP.match(text)
            return Stop(found[1] if found else "")
    return None


def described(action: Action, said: str | None) -> str:
    """How WebArena tells a policy what it did last; `said`: the line of its element, if there is one."""
    match action:
        case Click(element) | Hover(element) | Type(element):
            name = type(action).__name__.lower()
            if said is None:
                return (
                    f'Attempt to perfom "{name}" on element "[{element}]" but no matching element found. '
                    "Please check the observation more carefully."
                )
            text = f" [{action.text}{' ' * action.enter}]" if isinstance(action, Type) else ""
            return f"{name} [{element}]{text} where [{element}] is {said}"
        case Press(keys):
            return f"press [{keys}]"
        case Scroll(direction):
            return f"scroll [{direction}]"
        case Go(what):
            return what
        case TabFocus(tab):
            return f"page_focus [{tab}]"
        case Goto(url):
            return f"goto [{url}]"
        case Stop(answer):
            return f"stop [{answer}]"
