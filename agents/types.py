"""The domain of rollouts: limits, sampling, completions, turns and trajectories, down to the token.

Shapes in comments: `P` prompt tokens, `C` tokens of one completion, `L` tokens of a whole trajectory.
"""

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from envs.types import Image, Item

Label = str | float | bool
MIN_COMPLETION = 8
"""Tokens; an episode ends where fewer are left, for they hold no action."""


class FinishReason(StrEnum):
    """Why the sampler stopped one completion."""

    STOP = "stop"  # a stop token was sampled; it is the completion's last token
    LENGTH = "length"  # max_tokens, or the model's context length, was reached
    CUT = "cut"  # the text is complete: it has reached a stop text, or the end of the only call allowed


class StopReason(StrEnum):
    """Why an episode ended."""

    TERMINATED = "terminated"  # the environment says that the problem has ended
    TRUNCATED = "truncated"  # the environment's own limit
    MAX_TURNS = "max_turns"  # the horizon
    MAX_CONTEXT = "max_context"  # no room for another turn within the context length
    ERROR = "error"  # an EpisodeFault; never trained on


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one completion is sampled."""

    max_tokens: int = 512
    temperature: float = 1.0
    """0 is greedy. Log-probs are those of the tempered, unfiltered distribution."""
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps all."""
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    """Non-empty texts: a sampler may end a completion with the first token by which its text contains one.
    Not every sampler reads text, so the caller cuts the completion: `agents/samplers/stop_texts.py`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeLimits:
    """How far an episode may go."""

    max_turns: int = 8
    """The horizon."""
    max_tokens_per_turn: int = 512
    context_length: int = 8192
    """Tokens that the model sees at most, prompt included."""
    episode_timeout_s: float = 600.0
    step_timeout_s: float = 60.0
    """The time for one `step` of the environment; `reset` has the episode's time."""


UNLIMITED = EpisodeLimits(
    max_turns=sys.maxsize,
    max_tokens_per_turn=sys.maxsize,
    context_length=sys.maxsize,
    episode_timeout_s=math.inf,
    step_timeout_s=math.inf,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What the policy sampled, exactly."""

    token_ids: tuple[int, ...]  # [C], the stop token included when one was sampled
    logprobs: tuple[float, ...]  # [C], natural log
    finish_reason: FinishReason
    policy_version: int
    """Global step of the weights that sampled it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One interaction: the policy's completion and the environment's answer to it."""

    completion: Completion
    text: str
    """The decoded completion, up to the stop text if one ended it; for reading and parsing only, never
    encoded again."""
    action: str
    """What the parser found in `text`: the environment's action, the calls, or the answer; empty if it found
    nothing, and in a summary."""
    observation: str
    reward: float
    observation_ids: tuple[int, ...] = ()  # [O]
    """The renderer's tokens after the completion; empty after the last turn."""
    observation_spans: tuple[tuple[int, int], ...] = ()
    """Start and end, exclusive, in `observation_ids` of what the environment and the tools wrote: without the
    chat template's tokens, the request for a summary and the budget."""
    thought: str = ""
    is_malformed: bool = False
    """Whether `text` was not in the agent's format."""
    prompt_ids: tuple[int, ...] | None = None  # [P]
    """The whole prompt, if the turn begins a new segment; None if it continues a segment."""
    prompt_images: tuple[Image, ...] = ()
    """The images of `prompt_ids`, in order."""
    previous_turn: int | None = None
    """Index of the turn whose segment it continues; None: that of the turn before it. Only conversations that
    are interleaved, such as a program's and its sub-agent's, need it."""
    images: tuple[Image, ...] = ()
    """The images of the observation; of `observation_ids` if there are any, in order."""
    state: str | None = None
    """The key of the environment's state in which the turn was taken (`envs/types.py`, `HasState`); None
    where the environment has none, and in a summary."""
    sampling_s: float = field(default=0.0, compare=False)
    """The time from the request for the completion to its end, waiting included; 0.0 if not measured."""
    env_s: float = field(default=0.0, compare=False)
    """Time that the environment or the tools took; 0.0 if not measured."""


OTHER_SAMPLING = "other_sampling"
"""The metric of a trajectory that a gateway has recorded, and of no other: how many of its requests asked for
parameters of sampling that are not the policy's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """The record of one episode. Tokens of the prompt and of observations are never the policy's."""

    item: Item
    sample_index: int
    """Index within the item's group."""
    prompt_ids: tuple[int, ...]  # [P]
    turns: tuple[Turn, ...]
    """In the order in which the policy completed them, whatever their segments."""
    stop_reason: StopReason
    reward: float
    """Sum of the turns' rewards; without a turn, what the program returned. 0.0, and never used, if
    `stop_reason` is `ERROR`."""
    success: bool
    seconds: float
    attempts: int = 1
    """1 + number of retries."""
    error: str | None = None
    """`<error class>: <text>` of the fault, if `stop_reason` is `ERROR`."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Further per-episode numbers, e.g. `{"parse_failures": 1}`."""
    final_state: str | None = None
    """The key of the state after the last turn; None if the environment or an answer ended the episode."""
    labels: Mapping[str, Label] = field(default_factory=dict)
    """Identify the episode: `policy` and `mode` of an evaluation, metadata of a gateway session."""
    prompt_images: tuple[Image, ...] = ()
    """The images of `prompt_ids`, in order."""

    @property
    def has_failed(self) -> bool:
        """Whether an `EpisodeFault` ended it: it is counted, and never trained on."""
        return self.stop_reason is StopReason.ERROR

    @property
    def error_class(self) -> str:
        """The class of `error`."""
        return (self.error or "unknown").partition(":")[0]

    @property
    def where(self) -> str:
        """Names the episode in errors: `textcraft_12, sample 3`."""
        return f"{self.item.item_id}, sample {self.sample_index}"
