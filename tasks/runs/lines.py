"""One line of a file of trajectories as the index keeps it: numbers, names, and texts to search.

Reads what `tasks.data.trajectories.write_trajectories` writes, and older files that lack fields, without
building a `Trajectory`: most of a line is tokens, of which the index needs the number alone.
"""

import hashlib
import json
from dataclasses import dataclass
from statistics import fmean
from typing import Annotated, Any

import msgspec

from envs.errors import describe

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
    failed: bool = False
    images: list[Any] = []


class _Line(msgspec.Struct):
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What the index knows of one trajectory."""

    item: str
    env: str
    part: str
    metadata: dict[str, Any]
    sample: int
    reward: float | None
    """None if it is not finite."""
    success: bool
    stop: str
    turns: int
    tokens: int
    """All that were sampled."""
    logprob: float | None
    """Mean over the sampled tokens; None if there are none."""
    unparsed: int
    """Turns whose text was not in the agent's format."""
    oldest: int | None
    newest: int | None
    """The policy versions that sampled it; None without turns."""
    seconds: float
    attempts: int
    error: str | None
    labels: dict[str, Any]
    metrics: dict[str, Any]
    images: int
    prompt_ids: list[int]
    response_text: str
    """The completions' texts, one after the other."""
    observation_text: str
    digest: str
    """16 hexadecimal digits of the line's hash: annotations belong to what they were written about."""


def read_line(line: bytes) -> Entry:
    """Raises `UnreadableLine`."""
    try:
        record = _decode(line)
    except (msgspec.ValidationError, ValueError, RecursionError) as error:
        raise UnreadableLine(describe(error)) from None
    completions = [turn.completion for turn in record.turns]
    versions = [completion.policy_version for completion in completions]
    logprobs = [value for completion in completions for value in completion.logprobs]
    return Entry(
        item=record.item.item_id,
        env=record.item.env,
        part=record.item.part,
        metadata=record.item.metadata,
        sample=record.sample_index,
        reward=_finite(record.reward),
        success=record.success,
        stop=record.stop_reason,
        turns=len(record.turns),
        tokens=sum(len(completion.token_ids) for completion in completions),
        logprob=_finite(fmean(logprobs)) if logprobs else None,
        unparsed=sum(turn.failed for turn in record.turns),
        oldest=min(versions, default=None),
        newest=max(versions, default=None),
        seconds=_finite(record.seconds) or 0.0,
        attempts=record.attempts,
        error=record.error,
        labels=record.labels,
        metrics=record.metrics,
        images=len(record.prompt_images) + sum(len(turn.images) for turn in record.turns),
        prompt_ids=record.prompt_ids,
        response_text=_BETWEEN_TURNS.join(turn.text for turn in record.turns),
        observation_text=_BETWEEN_TURNS.join(turn.observation for turn in record.turns),
        digest=digest_of(line),
    )


def digest_of(line: bytes) -> str:
    """Of a line without its end."""
    return hashlib.blake2b(line, digest_size=8).hexdigest()


def parse_json(line: bytes) -> Any:
    """The value of a line, whatever Python's writer may have left in it: NaN, halves of surrogate pairs."""
    return _without_surrogates(json.loads(line))


def exact_integer(digits: str) -> int | str:
    """For `json.loads(…, parse_int=…)` of what a page shows: JavaScript rounds integers beyond 2**53, so
    large ones stay text."""
    return int(digits) if len(digits) < len(str(2**53)) else digits


_decode_strictly = msgspec.json.Decoder(_Line).decode


def _decode(line: bytes) -> _Line:
    try:
        return _decode_strictly(line)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:  # not JSON by the letter; reading it as Python does is slower
        return msgspec.convert(parse_json(line), _Line)


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode() if not value.isascii() else value
    if isinstance(value, list):
        return [_without_surrogates(element) for element in value]
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(element) for key, element in value.items()}
    return value


def _finite(value: float) -> float | None:
    return value if abs(value) < float("inf") else None  # NaN is not less either
