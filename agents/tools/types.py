"""What tools return, and the results of their calls."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import StrEnum
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python

from envs.types import Image, StepResult, is_flag, read_number, replace_surrogates

MIN_LENGTH = 100
"""Characters: the smallest limit of an observation, which must hold the note on what is left out."""


class ToolError(Exception):
    """A tool raises it with the exact text that the agent reads.

    For any other exception, the agent reads the type as well, as a fault of the tool.
    """


class ToolStatus(StrEnum):
    """How a call ended. All but `OK` count as failures; each is answered by an observation."""

    OK = "ok"
    BAD_ARGUMENTS = "bad_arguments"
    """The tool was not run."""
    UNKNOWN_TOOL = "unknown_tool"
    """No tool has this name."""
    RAISED = "raised"
    TIMED_OUT = "timed_out"


@dataclass(frozen=True, slots=True)
class Summary:
    """A tool returns it to cut the conversation: only the opening and this text remain."""

    text: str
    too_long: str
    """What the agent reads if the text leaves no room to continue, and nothing is cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """The result of a call."""

    observation: str
    """The observation for the agent; at most the tool's `max_length` characters."""
    status: ToolStatus = ToolStatus.OK
    ends_episode: bool = False
    """The episode ends with this call."""
    images: tuple[Image, ...] = ()
    """Images for the agent, besides the observation."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """What the tool measured, by its own names."""
    summary: str | None = None
    """The text that replaces the conversation after its opening; `observation` then applies if it is too
    long."""
    step: StepResult | None = None
    """The environment's whole result, with reward and success, if the call was a step."""


@dataclass(slots=True)
class ToolUsage:
    """Counts of the calls of one tool."""

    calls: int = 0
    failures: int = 0
    """Calls that ended with a status other than `OK` or with an exception."""
    seconds: float = 0.0
    """The time of all calls together."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Sums of what the tool measured, by its own names."""


def read_outcome(value: object) -> ToolResult:
    """Read text, a `StepResult`, a `Summary`, a mapping with `observation`, or any other value as JSON.

    In a mapping, `image` and `images` are images (`Image`, or bytes of a recognised format) and all other
    entries must be finite numbers. Raises `TypeError` or `ValueError` for anything else in it.
    """
    if isinstance(value, str):
        return ToolResult(observation=replace_surrogates(value, by="?"))
    if value is None:
        return ToolResult(observation="(no output)")
    if isinstance(value, StepResult):
        return ToolResult(observation=value.observation, images=value.images, step=value)
    if isinstance(value, Summary):
        return ToolResult(observation=value.too_long, summary=replace_surrogates(value.text, by="?"))
    if isinstance(value, Mapping) and "observation" in value:
        rest = {str(name): item for name, item in value.items()}
        observation = read_outcome(rest.pop("observation")).observation
        images = [rest.pop("image")] if rest.get("image") is not None else []
        images += rest.pop("images", None) or ()
        rest.pop("image", None)
        return ToolResult(observation=observation, images=tuple(_images(images)), metrics=_metrics(rest))
    return ToolResult(observation=_to_json(value))


def _to_json(value: object) -> str:
    try:
        return to_json(value, fallback=_to_plain, inf_nan_mode="constants").decode()
    except PydanticSerializationError:  # perhaps it holds what is no UTF-8
        return to_json(_to_text(value), inf_nan_mode="constants").decode()


def _to_plain(value: Any) -> object:
    """A value that JSON has, of one that pydantic does not know: arrays and scalars of NumPy and torch are
    lists and numbers, anything else is its text."""
    return value.tolist() if callable(getattr(type(value), "tolist", None)) else str(value)


def _to_text(value: object) -> object:
    """A JSON value of `value`, with a mark for what UTF-8 cannot encode or decode."""
    if isinstance(value, str):
        return replace_surrogates(value, by="?")
    if isinstance(value, bytes | bytearray):
        return value.decode(errors="replace")
    if isinstance(value, BaseModel):
        value = dict(value)
    elif is_dataclass(value) and not isinstance(value, type):
        value = {entry.name: getattr(value, entry.name) for entry in fields(value)}
    if isinstance(value, Mapping):
        return {
            _to_text(key) if isinstance(key, str | bytes) else key: _to_text(inner)
            for key, inner in value.items()
        }
    if isinstance(value, list | tuple | set | frozenset):
        return [_to_text(inner) for inner in value]
    plain = to_jsonable_python(value, fallback=_to_plain, inf_nan_mode="constants", bytes_mode="base64")
    return _to_text(plain) if isinstance(plain, str | dict | list) else plain


def cut(result: ToolResult, *, max_length: int | None) -> ToolResult:
    """`result` with an observation of at most `max_length` characters, shortened in the middle."""
    text = result.observation
    if max_length is None or len(text) <= max_length:
        return result
    notice = f"\n... {len(text)} characters, of which the middle is left out ...\n"
    room = max_length - len(notice)
    head = room - room // 2
    return replace(result, observation=text[:head] + notice + text[len(text) - room // 2 :])


def _images(values: Iterable[object]) -> Iterable[Image]:
    for value in values:
        if isinstance(value, Image):
            yield value
            continue
        if not isinstance(value, bytes):
            raise TypeError(f"an image is {type(value).__name__}; return bytes or envs.types.Image")
        try:
            yield Image.recognize(value)
        except ValueError as error:
            raise ValueError(f"an image {error}; return envs.types.Image with its media type") from None


def _metrics(values: Mapping[str, object]) -> dict[str, float]:
    return {
        name: read_number(
            bool(value) if is_flag(value) else value, f"the metric {name!r} beside 'observation'"
        )
        for name, value in values.items()
    }
