"""What passes between a tool and whoever calls it. Plain data; how a call is made is `tool.py`'s."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from envs.types import Image, StepResult


class ToolError(Exception):
    """A tool raises it to tell the agent what went wrong, in these words and no others.

    Any other exception of a tool is told with its type, as a fault of the tool.
    """


class ToolStatus(StrEnum):
    """How a call ended. All but `OK` count as failures; each is answered by an observation."""

    OK = "ok"
    BAD_ARGUMENTS = "bad_arguments"
    """The tool was not run."""
    UNKNOWN_TOOL = "unknown_tool"
    """There is none of this name."""
    RAISED = "raised"
    TIMED_OUT = "timed_out"


@dataclass(frozen=True, slots=True)
class Summary:
    """A tool returns it to cut the conversation: nothing is left of it but the opening and this."""

    text: str
    too_long: str
    """What the agent is told where the text leaves no room to go on, and nothing is cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """What a call answers."""

    observation: str
    """For the agent; at most the tool's `max_length` characters."""
    status: ToolStatus = ToolStatus.OK
    ends_episode: bool = False
    """The episode ends with this call."""
    images: tuple[Image, ...] = ()
    """For the agent, with the observation."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """What the tool measured besides, by its own names."""
    summary: str | None = None
    """What the conversation is to go on with, in the place of all that followed the opening; `observation`
    is then for the case that it is too long."""
    step: StepResult | None = None
    """Where the call was a step of the environment: what that answered, whole, with reward and success."""
    seconds: float = 0.0
    """From the call to its answer; waiting for a place among `max_concurrency` included."""


@dataclass(slots=True)
class ToolUsage:
    """What became of the calls of one tool."""

    calls: int = 0
    failures: int = 0
    """Calls that ended in another status than `OK`, or in an exception."""
    seconds: float = 0.0
    """Of all calls together."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Sums of what the tool measured, by its own names."""
