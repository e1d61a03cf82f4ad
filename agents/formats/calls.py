"""The types of a parsed turn: an action, tool calls, an answer, or a problem.

The other modules of `agents/formats/` read the formats; the tools define what a call does.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Schema = Mapping[str, Any]
"""A JSON schema, or a tool's description with one; JSON Schema says what it may hold."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call as the policy wrote it: neither the tool's existence nor the arguments are checked."""

    name: str
    arguments: Mapping[str, object]
    """JSON values, at most 64 deep; every number finite, every text free of lone surrogates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedTurn:
    """What a parser read in one completion: exactly one of `action`, `calls`, `answer` and `problem`.

    A turn with one call that cannot be read has a `problem` and no calls: half a plan is not executed.
    """

    thought: str
    """Think-blocks and whatever else was written beside the calls or the answer, for reading only."""
    action: str | None = None
    """The action in the environment's own words."""
    calls: tuple[ToolCall, ...] = ()
    """The calls in the order in which they were written."""
    answer: str | None = None
    """The final answer; never empty."""
    problem: str | None = None
    """The observation for the agent: what is wrong with the turn's format, and what is expected."""

    first_call_end: int = 0
    """Where the first call ends in the text, closing tag included, if one was read before any `problem`;
    set by the formats of chat templates, 0 elsewhere."""

    is_ambiguous: bool = False
    """Whether the text holds no action, or several; `action` is then the whole text."""

    def __post_init__(self) -> None:
        fields = {
            "action": self.action is not None,
            "calls": bool(self.calls),
            "answer": self.answer is not None,
            "problem": self.problem is not None,
        }
        if sum(fields.values()) != 1:
            present = " and ".join(name for name, is_present in fields.items() if is_present) or "none"
            raise ValueError(f"a ParsedTurn has {present} of {', '.join(fields)}; give exactly one")

    @property
    def is_malformed(self) -> bool:
        """Whether the text is not in the format."""
        return self.is_ambiguous or self.problem is not None


TurnParser = Callable[[str], ParsedTurn]
"""Total: it raises for no text, and its work is linear in the text's length."""

TurnWriter = Callable[[ParsedTurn], str]
"""The inverse of a parser, for the turns that its format can express."""
