"""What a request asks of the policy, whichever of the protocols it came by.

Owns what a choice of tools means. There is no grammar here that could hold the policy to a form: what cannot
be had without one is refused, never tried and told as if it were certain.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field

from agents.gateway.conversation import Conversation, Said, Tool
from agents.gateway.errors import RequestRejected

_HALF = "\ufffd"
"""How the half of a character is decoded."""


def _checked_stop(stop: list[str]) -> list[str]:
    if "" in stop:
        raise ValueError("a stop text is empty; leave it out")
    if any(_HALF in one for one in stop):
        raise ValueError("a stop text has U+FFFD, which cannot be told from half a character; leave it out")
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
    """The tools of a request, as the policy has them."""

    shown: Sequence[Tool]
    function: str | None = None
    """The one that is called, whatever else the policy would do."""
    named: bool = False
    """Whether the request names it."""

    @classmethod
    def of(cls, tools: Sequence[Tool], *, choice: Auto, named: str | None) -> Self:
        """`named`: the function that the request wants called, in the place of `choice`.

        Raises `Refused` for names that occur twice, and for a choice that nothing could hold the policy to.
        """
        names = [str(tool["function"]["name"]) for tool in tools]
        if len(set(names)) < len(names):
            raise RequestRejected(
                400, f"tools are called {names}; give each a name of its own", param="tools"
            )
        if named is not None:
            if named not in names:
                raise RequestRejected(
                    400, f"no tool is called {named!r}; there are: {names}", param="tool_choice"
                )
            return cls(tools, function=named, named=True)
        if choice == "none":
            return cls([])
        if choice == "auto":
            return cls(tools)
        if len(names) != 1:
            raise RequestRejected(
                400,
                f"'required' with {len(names)} tools: without a grammar nothing holds the policy to one of "
                "several; use 'auto', name the function, or offer one tool",
                param="tool_choice",
            )
        return cls(tools, function=names[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One answer of the policy. What is None is left to the gateway's own sampling."""

    model: str
    messages: Sequence[Said]
    tools: Tools
    one_call: bool
    """Whether the answer ends with its first call."""
    max_tokens: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None = None
    stop: tuple[str, ...] = ()

    @property
    def conversation(self) -> Conversation:
        """What is shown to the policy."""
        return Conversation(messages=self.messages, tools=self.tools.shown)
