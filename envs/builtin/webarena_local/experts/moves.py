"""What the players have in common, beside `envs/browser/solver.py`."""

import re
from collections.abc import Callable, Mapping, Sequence

from envs.browser.solver import acting, click, plain
from envs.registry import ExpertStep

Values = Mapping[str, str]
Steps = list[ExpertStep]
Player = Callable[[Values], Sequence[ExpertStep]]

DOWN = ExpertStep("", "scroll [down]")
"""The next part of the page."""


def told(pattern: str) -> ExpertStep:
    """Stop with what the first group of `pattern` matches in what is seen."""
    read = re.compile(pattern)

    def answer(seen: str) -> str:
        found = read.search(seen)
        if found is None:
            raise LookupError(f"nothing like {pattern!r} in what is seen")
        return f"stop [{found[1]}]"

    return acting(answer)


def anew(role: str, name: str | re.Pattern[str], text: str) -> Steps:
    """Write `text` into a field in the place of what it holds."""
    from envs.browser.solver import write

    return [click(role, name), *plain(["press [Control+a]", "press [Backspace]"]), write(role, name, text)]
