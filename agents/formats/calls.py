"""What a turn of an agent says: an action, calls of tools, an answer, or neither. The types alone.

How each format is read is `agents/formats/`'s, what a call does is the tools'.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call as the policy wrote it: neither that the tool exists nor its arguments are checked."""

    name: str
    arguments: Mapping[str, Any]
    """JSON values, at most 64 deep; every number finite, every text free of lone surrogates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedTurn:
    """What a parser made of one completion: exactly one of `action`, `calls`, `answer` and `problem`.

    A turn of which one call cannot be read has a `problem` and no calls: half a plan is not carried out.
    """

    thought: str
    """Think-blocks and whatever else was written beside the calls or the answer, for reading only."""
    action: str | None = None
    """For the environment, in its own words."""
    calls: tuple[ToolCall, ...] = ()
    """In the order in which they were written."""
    answer: str | None = None
    """The final answer; never empty."""
    problem: str | None = None
    """To the agent, as its observation: what is wrong with the turn's format and what is expected."""

    first_call_end: int = 0
    """How many characters of the text its first call reaches to, its closing tag included, where one was read
    before any `problem`; told by the formats of chat templates, 0 elsewhere."""

    is_ambiguous: bool = False
    """The text holds no action, or several; `action` is the whole text, which the environment answers."""

    def __post_init__(self) -> None:
        said = (self.action is not None, bool(self.calls), self.answer is not None, self.problem is not None)
        assert said.count(True) == 1

    @property
    def is_malformed(self) -> bool:
        """Whether the text is not in the format."""
        return self.is_ambiguous or self.problem is not None


TurnParser = Callable[[str], ParsedTurn]
"""Total: no text makes it raise, and its work is linear in the text's length."""

TurnWriter = Callable[[ParsedTurn], str]
"""The inverse of a parser, for the turns that its format can express."""
