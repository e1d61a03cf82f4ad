"""A request to the policy, independent of the protocol by which it came.

Owns the meaning of a tool choice. Sampling has no grammar that could enforce a form: whatever needs one is
rejected.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field

from agents.gateway.conversation import ChatTurn, Tool
from envs.network.server import RequestRejected

CONTEXT_FULL = "context_length_exceeded"
"""Code of the answer to a conversation that leaves no room for a completion; OpenAI's own."""
NO_TURNS_LEFT = "max_turns_reached"
"""Code of the answer to a request beyond a session's last turn."""
_HALF = "\ufffd"
"""How half a character is decoded."""


def _checked_stop(stop: list[str]) -> list[str]:
    if "" in stop:
        raise ValueError("a stop text is empty; leave it out")
    if any(_HALF in text for text in stop):
        raise ValueError("a stop text has U+FFFD, which also stands for half a character; leave it out")
    return stop


Stop = Annotated[
    list[str],
    BeforeValidator(lambda stop: [stop] if isinstance(stop, str) else stop),
    Field(max_length=64),
    AfterValidator(_checked_stop),
]
"""Texts at which the answer ends; one, or a list."""

Auto = Literal["auto", "none", "required"]


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools that the policy sees, and the one that it must call."""

    schemas: Sequence[Tool]
    function: str | None = None
    """The one that must be called."""
    is_named: bool = False
    """Whether the request names it."""

    @classmethod
    def choose(cls, tools: Sequence[Tool], *, choice: Auto, named_function: str | None) -> Self:
        """`named_function`: the function that the request names instead of a `choice`.

        Raises `RequestRejected` for duplicate names and for a choice that sampling cannot enforce.
        """
        names = [str(tool["function"]["name"]) for tool in tools]
        if len(set(names)) < len(names):
            raise RequestRejected(400, f"tools are called {names}; give each a different name", param="tools")
        if named_function is not None:
            if named_function not in names:
                raise RequestRejected(
                    400, f"no tool is called {named_function!r}; there are: {names}", param="tool_choice"
                )
            return cls(tools, function=named_function, is_named=True)
        if choice == "none":
            return cls([])
        if choice == "auto":
            return cls(tools)
        if len(names) != 1:
            raise RequestRejected(
                400,
                f"'required' with {len(names)} tools: without a grammar nothing makes the policy call one of "
                "several; use 'auto', name the function, or offer one tool",
                param="tool_choice",
            )
        return cls(tools, function=names[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """A request for one answer. Fields that are None take the gateway's own sampling."""

    model: str
    messages: Sequence[ChatTurn]
    """The last is not the assistant's: it is the policy's turn."""
    tools: Tools
    one_call: bool
    """Whether the answer ends with its first call."""
    max_tokens: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None = None
    stop: tuple[str, ...] = ()
