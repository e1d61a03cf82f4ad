"""What passes between an environment and whoever plays it: text, pictures, numbers; no tokens, no model."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class Item:
    """One problem of an environment: all that `Environment.reset` needs to build it again."""

    item_id: str
    """`<env>_<index>`, numbered as AgentGym numbers them, e.g. `textcraft_12`; of a user's row
    `<part>_<row>`."""
    env: str
    """Name in `envs/registry.py`."""
    seed: int = 0
    """The item's own randomness: the same item and seed give the same opening observation."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Facts by which success is told apart, e.g. `{"depth": 2}`: numbers or text, each of few values, never
    shown to the policy."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """The free columns of a row of data, e.g. `{"answer": "42"}`: JSON values of any size, for rewards; what
    the policy is shown of them, its environment says."""
    part: str = ""
    """Of a user's data: the name of the part of the pipeline's data that the row was given for."""

    @property
    def index(self) -> int:
        """The number in `item_id`."""
        return int(self.item_id.rpartition("_")[2])


@dataclass(frozen=True, slots=True)
class Image:
    """A picture, as a file's bytes."""

    data: bytes
    media_type: str
    """As HTTP names it, e.g. `image/png`."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation, as a chat template takes it."""

    role: Role
    content: str
    images: tuple[Image, ...] = ()
    """Shown before the content."""


@dataclass(frozen=True, slots=True)
class Observation:
    """An environment's first observation, where that is more than text."""

    text: str
    images: tuple[Image, ...] = ()

    @classmethod
    def wrap(cls, observation: "str | Observation") -> "Observation":
        """What `Environment.reset` returned, in the one form."""
        return cls(observation) if isinstance(observation, str) else observation


@dataclass(frozen=True, slots=True)
class StepResult:
    """What an environment answers to one action."""

    observation: str
    reward: float = 0.0
    """Reward of this step alone."""
    terminated: bool = False
    """The problem itself has ended (solved, lost)."""
    truncated: bool = False
    """The environment stopped for a reason outside the problem (its own step limit)."""
    success: bool = False
    """The problem is solved; told apart from the reward, which may be partial."""
    images: tuple[Image, ...] = ()
    """Shown with the observation."""
    metrics: Mapping[str, float] = field(default_factory=dict, hash=False)
    """The environment's own numbers of the episode so far, e.g. `{"f1": 0.5}`; the last ones count."""
