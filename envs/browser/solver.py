"""For scripted experts: steps that find their element in the observation they follow.

[write("textbox", "Username", "ada"), click("button", "Log in"), stop()]
"""

import re
from collections.abc import Callable, Sequence

from envs.registry import ExpertStep

Name = str | re.Pattern[str]

_LINE = re.compile(r"^\t*\[(\d+)\] (\w+) (.*)$", re.MULTILINE)


def find(observation: str, role: str, name: Name = "", *, nth: int = 0) -> int:
    """The number of the `nth` element of this role with `name`: all of it, or a pattern within it; empty is
    any. Raises `LookupError` where there is none."""
    found = [
        int(line[1]) for line in _LINE.finditer(observation) if line[2] == role and _is_called(line[3], name)
    ]
    if not -len(found) <= nth < len(found):
        raise LookupError(f"no {role} {name!r} in what is seen")
    return found[nth]


def _is_called(rest: str, name: Name) -> bool:
    if isinstance(name, re.Pattern):
        return name.search(rest) is not None
    return not name or rest == repr(name) or rest.startswith(f"{name!r} ")


def acting(action: Callable[[str], str], thought: str = "") -> ExpertStep:
    """A step by a function of what is seen."""
    return ExpertStep(thought, action)


def click(role: str, name: Name = "", *, nth: int = 0, thought: str = "") -> ExpertStep:
    """Click on an element."""
    return acting(lambda seen: f"click [{find(seen, role, name, nth=nth)}]", thought)


def write(
    role: str, name: Name, text: str, *, enter: bool = False, nth: int = 0, thought: str = ""
) -> ExpertStep:
    """Write into a field, or choose from a list."""
    return acting(lambda seen: f"type [{find(seen, role, name, nth=nth)}] [{text}] [{int(enter)}]", thought)


def plain(actions: Sequence[str]) -> list[ExpertStep]:
    """Steps that need no look."""
    return [ExpertStep("", action) for action in actions]


def stop(answer: str = "", thought: str = "") -> ExpertStep:
    """The end of a task."""
    return ExpertStep(thought, f"stop [{answer}]")
