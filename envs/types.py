"""The data exchanged with environments: text, images and numbers; no tokens, no model."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class Item:
    """One problem of an environment: everything `Environment.reset` needs to recreate it."""

    item_id: str
    """`<env>_<index>` with AgentGym's numbering, e.g. `textcraft_12`; `<part>_<row>` for a user's row."""
    env: str
    """Name in `envs/registry.py`."""
    seed: int = 0
    """The item's randomness: the same item and seed give the same first observation."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Facts by which success rates are grouped, e.g. `{"depth": 2}`: numbers or text with few distinct
    values, never shown to the policy."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """The free columns of a row of data, e.g. `{"answer": "42"}`: JSON values of any size, for rewards; the
    environment decides what the policy sees of them."""
    part: str = ""
    """For a user's row, the part of the pipeline's data that it belongs to."""

    @property
    def index(self) -> int:
        """The number in `item_id`."""
        return int(self.item_id.rpartition("_")[2])


@dataclass(frozen=True, slots=True)
class Image:
    """An image as the bytes of a file."""

    data: bytes
    media_type: str
    """E.g. `image/png`."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation, as chat templates take it."""

    role: Role
    content: str
    images: tuple[Image, ...] = ()
    """Placed before the content."""


@dataclass(frozen=True, slots=True)
class Observation:
    """An environment's first observation, if it is more than text."""

    text: str
    images: tuple[Image, ...] = ()

    @classmethod
    def wrap(cls, observation: "str | Observation") -> "Observation":
        """Convert the result of `Environment.reset`."""
        return cls(observation) if isinstance(observation, str) else observation


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of one action."""

    observation: str
    reward: float = 0.0
    """Reward of this step alone."""
    terminated: bool = False
    """The problem has ended (solved or lost)."""
    truncated: bool = False
    """The environment stopped for a reason outside the problem (its own step limit)."""
    success: bool = False
    """The problem is solved; separate from the reward, which may be partial."""
    images: tuple[Image, ...] = ()
    """Shown with the observation."""
    metrics: Mapping[str, float] = field(default_factory=dict, hash=False)
    """The environment's metrics of the episode so far, e.g. `{"f1": 0.5}`; the last step's are kept."""
