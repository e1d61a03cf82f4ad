"""WebArena's browser actions on numbered elements, parsed from text.

An action stands alone or within triple backticks, of which the first pair counts, as in WebArena and
AgentGym. `click [7]`, `type [7] [text] [0|1]` (1, the default, presses Enter afterwards), `hover [7]`, `press
[Control+a]`, `scroll [down|up]`, `new_tab`, `tab_focus [0]`, `close_tab`, `goto [url]`, `go_back`,
`go_forward`, `stop [answer]`.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

MAX_LENGTH = 4_000
"""Characters of an action."""

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


class InvalidAction(ValueError):
    """The text is not an action; the message tells the policy why."""


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
    """Click on an element and type text."""

    element: int
    text: str
    enter: bool


@dataclass(frozen=True, slots=True)
class Press:
    """Keys as Playwright names them, joined by `+`."""

    keys: str


@dataclass(frozen=True, slots=True)
class Scroll:
    """Scroll by the height of the viewport."""

    direction: Literal["down", "up"]


@dataclass(frozen=True, slots=True)
class Go:
    """A command without an argument: a move through the history, a new tab, or the end of the current one."""

    command: Literal["new_tab", "close_tab", "go_back", "go_forward"]


@dataclass(frozen=True, slots=True)
class TabFocus:
    """Focus the tab with this number, from 0."""

    tab: int


@dataclass(frozen=True, slots=True)
class Goto:
    """Load an address."""

    url: str


@dataclass(frozen=True, slots=True)
class Stop:
    """End the task: it is done, or cannot be done."""

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


def read_action(response: str) -> Action:
    """Parse the action in a policy's response; raises `InvalidAction`."""
    block = _BLOCK.search(response)
    text = (block[1] if block else response).strip()
    if len(text) > MAX_LENGTH:
        raise InvalidAction(f"An action has at most {MAX_LENGTH} characters.")
    name = text.partition("[")[0].split()[:1]
    action = _read(name[0], text) if name else None
    if action is None:
        raise InvalidAction(f"{text[:60]!r} is no action. Actions: {', '.join(FORMS)}.")
    return action


_NUMBER_ACTIONS: dict[str, Callable[[int], Action]] = {"click": Click, "hover": Hover, "tab_focus": TabFocus}


def _read(name: str, text: str) -> Action | None:
    match name:
        case "click" | "hover" | "tab_focus" if match := _ELEMENT.match(text):
            return _NUMBER_ACTIONS[name](int(match[2]))
        case "type":
            with_enter = text if text.endswith(("[0]", "[1]")) else f"{text} [1]"
            if match := _TYPE.match(with_enter):
                return Type(int(match[1]), match[2], match[3] == "1")
        case "press" if match := _PRESS.match(text):
            return Press("+".join(_KEYS.get(key.lower(), key) for key in match[1].strip().split("+")))
        case "scroll" if match := _SCROLL.match(text):
            return Scroll("up" if match[1] == "up" else "down")
        case "goto" if match := _GOTO.match(text):
            return Goto(match[1].strip())
        case "new_tab" | "close_tab" | "go_back" | "go_forward":
            return Go(name)
        case "stop":
            match = _STOP.match(text)
            return Stop(match[1] if match else "")
    return None


def describe_action(action: Action, element_text: str | None) -> str:
    """A policy's last action in WebArena's words; `element_text` is the line of its element, if it exists."""
    match action:
        case Click(element) | Hover(element) | Type(element):
            name = type(action).__name__.lower()
            if element_text is None:
                return (
                    f'Attempt to perfom "{name}" on element "[{element}]" but no matching element found. '
                    "Please check the observation more carefully."
                )
            text = f" [{action.text}{' ' * action.enter}]" if isinstance(action, Type) else ""
            return f"{name} [{element}]{text} where [{element}] is {element_text}"
        case Press(keys):
            return f"press [{keys}]"
        case Scroll(direction):
            return f"scroll [{direction}]"
        case Go(command):
            return command
        case TabFocus(tab):
            return f"page_focus [{tab}]"
        case Goto(url):
            return f"goto [{url}]"
        case Stop(answer):
            return f"stop [{answer}]"
