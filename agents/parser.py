"""Reads an action out of what a policy wrote. Parsers are total: text that holds no action is a
failed parse, which is part of play, and never an exception."""

import re
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ParsedAction:
    """What a parser made of one completion."""

    action: str
    """What the environment is given; the whole text where `failed`."""
    thought: str
    failed: bool
    """The text holds no action, or more than one."""


Parser = Callable[[str], ParsedAction]

_ACTION = re.compile(r"\bAction:[^\S\n]*(?:\n\s*)?([^\n]*)")
_THOUGHT_LABEL = re.compile(r"\A\s*Thought:\s*")


def react(text: str) -> ParsedAction:
    """`Thought: …` (optional), then one `Action: …` of one line, on the label's line or the next.

    Two actions in one text are refused, as AgentGym refuses them: the second was written without
    having seen the observation of the first.
    """
    found = _ACTION.findall(text)
    action = found[0].strip() if len(found) == 1 else ""
    if not action:
        return ParsedAction(action=text, thought="", failed=True)
    thought = text[: text.index("Action:")]
    return ParsedAction(action=action, thought=_THOUGHT_LABEL.sub("", thought).strip(), failed=False)


PARSERS: dict[str, Parser] = {"react": react}
