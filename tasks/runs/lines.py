"""One line of a file of trajectories as the index keeps it: numbers, names, and texts to search.

Reads what `tasks.data.trajectories.write_trajectories` writes, and older files that lack fields, without
building a `Trajectory`: most of a line is tokens, of which the index needs the number alone.
"""

import hashlib
import json
from statistics import fmean
from typing import Annotated, Any

import msgspec

from envs.errors import describe
from envs.types import replace_surrogates_within

TOOL_CALLS = "tool_calls/"
"""Prefix of the metrics that count the calls of a tool."""
_BETWEEN_TURNS = "\n\ue000\n"
"""A word for SQLite that no query has: a text that is searched for lies within one turn."""


class UnreadableLine(Exception):
    """A line that is no trajectory; the text says why."""


_Count = Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)]


class _Item(msgspec.Struct):
    item_id: str
    env: str = ""
    metadata: dict[str, Any] = {}
    part: str = ""


class _Completion(msgspec.Struct):
    token_ids: list[int] = []
    logprobs: list[float] = []
    policy_version: _Count = 0


class _Turn(msgspec.Struct):
    completion: _Completion
    text: str = ""
    observation: str = ""
    is_malformed: bool = False
    images: list[Any] = []


class TrajectoryLine(msgspec.Struct):
    """A trajectory."""

    item: _Item
    turns: list[_Turn]
    stop_reason: str
    reward: float
    success: bool
    sample_index: _Count = 0
    prompt_ids: list[int] = []
    seconds: float = 0.0
    attempts: _Count = 1
    error: str | None = None
    metrics: dict[str, Any] = {}
    labels: dict[str, Any] = {}
    prompt_images: list[Any] = []

    @property
    def tokens(self) -> int:
        """All that were sampled."""
        return sum(len(turn.completion.token_ids) for turn in self.turns)

    @property
    def logprob(self) -> float | None:
        """Mean over the sampled tokens; None if there are none, or if it is not finite."""
        logprobs = [value for turn in self.turns for value in turn.completion.logprobs]
        try:
            return finite(fmean(logprobs))
        except (ValueError, OverflowError):  # none; infinities of both signs; a sum that is too large
            return None

    @property
    def versions(self) -> list[int]:
        """The version of the policy that sampled each turn."""
        return [turn.completion.policy_version for turn in self.turns]

    @property
    def num_images(self) -> int:
        """The number of images in the prompt and all turns."""
        return len(self.prompt_images) + sum(len(turn.images) for turn in self.turns)

    @property
    def response_text(self) -> str:
        """The completions' texts, one after the other."""
        return _BETWEEN_TURNS.join(turn.text for turn in self.turns)

    @property
    def observation_text(self) -> str:
        """The observations, one after the other."""
        return _BETWEEN_TURNS.join(turn.observation for turn in self.turns)


def read_line(line: bytes) -> TrajectoryLine:
    """Raises `UnreadableLine`."""
    try:
        return _decode(line)
    except (msgspec.ValidationError, ValueError, RecursionError) as error:
        raise UnreadableLine(describe(error)) from None


def digest_of(line: bytes) -> str:
    """16 hexadecimal digits of the hash of a line without its end: annotations belong to what they were
    written about."""
    return hashlib.blake2b(line, digest_size=8).hexdigest()


def parse_json(line: bytes | str) -> Any:
    """The value of a line, whatever Python's writer may have left in it: NaN, halves of surrogate pairs."""
    return replace_surrogates_within(json.loads(line), by="?")


def exact_integer(digits: str) -> int | str:
    """Read an integer, as `parse_int` of `json.loads`, for a page: JavaScript rounds integers beyond 2**53,
    so large ones stay text."""
    return int(digits) if len(digits) < len(str(2**53)) else digits


_decode_strictly = msgspec.json.Decoder(TrajectoryLine).decode


def _decode(line: bytes) -> TrajectoryLine:
    try:
        return _decode_strictly(line)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:  # not JSON by the letter; reading it as Python does is slower
        return msgspec.convert(parse_json(line), TrajectoryLine)


def finite(value: float) -> float | None:
    """None for NaN and infinity."""
    return value if abs(value) < float("inf") else None  # NaN is not less either
