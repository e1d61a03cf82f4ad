"""WebArena's browser actions on numbered elements, parsed from text.

An action stands alone or within triple backticks, of which the first pair counts, as in WebArena and
AgentGym. `click [7]`, `type [7] [text] [0|1]` (1, the default, presses Enter afterwards), `hover [7]`, `press
[Control+a]`, `scroll [down|up]`, `new_tab`, `tab_focus [0]`, `close_tab`, `goto [url]`, `go_back`,
`go_forward`, `stop [answer]`.
"""

import re
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
class ElementAction:
    """Click on an element, move the mouse to it, or click on it and type text."""

    command: Literal["click", "hover", "type"]
    element: int
    text: str = ""
    enter: bool = False
    """Whether Enter is pressed after the text."""


@dataclass(frozen=True, slots=True)
class PageAction:
    """An action on the page in front, the tabs, the history, or the end of the task: it is done, or cannot be
    done."""

    command: Literal[
        "press", "scroll", "goto", "tab_focus", "new_tab", "close_tab", "go_back", "go_forward", "stop"
    ]
    argument: str = ""
    """Keys as Playwright names them, joined by `+`; `down` or `up`, by the height of the viewport; an
    address; a tab's number, from 0; an answer. Empty for the others."""


Action = ElementAction | PageAction

_WITHOUT_ARGUMENT = ("new_tab", "close_tab", "go_back", "go_forward")

_BLOCK = re.compile(r"```(.*?)```", re.DOTALL)
_ELEMENT = re.compile(r"(?:click|hover) ?\[(\d{1,9})\]")
_TYPE = re.compile(r"type ?\[(\d{1,9})\] ?\[(.+)\] ?\[([01])\]", re.DOTALL)
_PRESS = re.compile(r"press ?\[(.+)\]")
_SCROLL = re.compile(r"scroll ?\[?(up|down)\]?")
_GOTO = re.compile(r"goto ?\[(.+)\]")
_TAB_FOCUS = re.compile(r"tab_focus ?\[(\d{1,9})\]")
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


def _read(name: str, text: str) -> Action | None:
    match name:
        case "click" | "hover" if match := _ELEMENT.match(text):
            return ElementAction(name, int(match[1]))
        case "type":
            with_enter = text if text.endswith(("[0]", "[1]")) else f"{text} [1]"
            if match := _TYPE.match(with_enter):
                return ElementAction("type", int(match[1]), match[2], match[3] == "1")
        case "press" if match := _PRESS.match(text):
            keys = (_KEYS.get(key.lower(), key) for key in match[1].strip().split("+"))
            return PageAction("press", "+".join(keys))
        case "scroll" if match := _SCROLL.match(text):
            return PageAction("scroll", match[1])
        case "goto" if match := _GOTO.match(text):
            return PageAction("goto", match[1].strip())
        case "tab_focus" if match := _TAB_FOCUS.match(text):
            return PageAction("tab_focus", str(int(match[1])))
        case "new_tab" | "close_tab" | "go_back" | "go_forward":
            return PageAction(name)
        case "stop":
            match = _STOP.match(text)
            return PageAction("stop", match[1] if match else "")
    return None


def describe_action(action: Action, element_text: str | None) -> str:
    """A policy's last action in WebArena's words; `element_text` is the line of its element, if it exists."""
    if isinstance(action, PageAction):
        if action.command in _WITHOUT_ARGUMENT:
            return action.command
        return f"{'page_focus' if action.command == 'tab_focus' else action.command} [{action.argument}]"
    name, element = action.command, action.element
    if element_text is None:
        return (
            f'Attempt to perfom "{name}" on element "[{element}]" but no matching element found. '
            "Please check the observation more carefully."
        )
    text = f" [{action.text}{' ' * action.enter}]" if name == "type" else ""
    return f"{name} [{element}]{text} where [{element}] is {element_text}"
