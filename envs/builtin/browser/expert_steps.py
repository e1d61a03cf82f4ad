"""Steps of scripted experts, which find their element in the observation that they follow.

[write("textbox", "Username", "ada"), click("button", "Log in"), stop()]
"""

import re

from envs.registry import ExpertStep

Name = str | re.Pattern[str]
Steps = list[ExpertStep]

_LINE = re.compile(r"^\t*\[(\d+)\] (\w+) (.*)$", re.MULTILINE)
SCROLL_DOWN = ExpertStep("", "scroll [down]")


def find(observation: str, role: str, name: Name = "", *, nth: int = 0) -> int:
    """The number of the `nth` element with this role and name. A name is the whole name, a pattern within
    it, or empty for any. Raises `LookupError` if there is no such element."""
    numbers = [
        int(line[1]) for line in _LINE.finditer(observation) if line[2] == role and _has_name(line[3], name)
    ]
    if not -len(numbers) <= nth < len(numbers):
        raise LookupError(f"the observation has no {role} {name!r}")
    return numbers[nth]


def _has_name(rest: str, name: Name) -> bool:
    if isinstance(name, re.Pattern):
        return name.search(rest) is not None
    return not name or rest == repr(name) or rest.startswith(f"{name!r} ")


def click(role: str, name: Name = "", *, nth: int = 0) -> ExpertStep:
    """Click on an element."""
    return ExpertStep("", lambda observation: f"click [{find(observation, role, name, nth=nth)}]")


def write(role: str, name: Name, text: str, *, enter: bool = False, nth: int = 0) -> ExpertStep:
    """Type into a field, or choose from a list."""

    def act(observation: str) -> str:
        return f"type [{find(observation, role, name, nth=nth)}] [{text}] [{int(enter)}]"

    return ExpertStep("", act)


def replace_text(role: str, name: Name, text: str) -> Steps:
    """Type into a field after deleting its text."""
    keys = [ExpertStep("", f"press [{key}]") for key in ("Control+a", "Backspace")]
    return [click(role, name), *keys, write(role, name, text)]


def stop(answer: str = "") -> ExpertStep:
    """End the task."""
    return ExpertStep("", f"stop [{answer}]")


def answer_with(pattern: str) -> ExpertStep:
    """End the task with the first group of `pattern`, as found in the observation, for an answer."""

    def act(observation: str) -> str:
        match = re.search(pattern, observation)
        if match is None:
            raise LookupError(f"the observation has no match of {pattern!r}")
        return f"stop [{match[1]}]"

    return ExpertStep("", act)
