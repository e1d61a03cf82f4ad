"""What a tool's function returned, read as an answer to the agent."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic_core import to_json

from agents.tools.types import Summary
from envs.images import recognize_image
from envs.types import Image, StepResult

SHORTEST = 100
"""Characters: the least limit of an observation, which has to hold the words on what is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOutput:
    """See `ToolResult`, which has the same fields."""

    observation: str
    images: tuple[Image, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    summary: str | None = None
    step: StepResult | None = None


def read_outcome(value: Any) -> ToolOutput:
    """Text as it is, a `StepResult`, a `Summary`, a mapping with `observation`, or any other value as JSON.

    Of such a mapping `image` and `images` are pictures (`Image`, or bytes of a kind that is recognised), all
    else must be numbers. Raises `TypeError` or `ValueError` for what is none of these.
    """
    if isinstance(value, str):
        return ToolOutput(observation=_encodable(value))
    if value is None:
        return ToolOutput(observation="(no output)")
    if isinstance(value, StepResult):
        return ToolOutput(observation=_encodable(value.observation), images=value.images, step=value)
    if isinstance(value, Summary):
        return ToolOutput(observation=value.too_long, summary=_encodable(value.text))
    if isinstance(value, Mapping) and "observation" in value:
        rest = {str(name): item for name, item in value.items()}
        observation = read_outcome(rest.pop("observation")).observation
        images = [rest.pop("image")] if rest.get("image") is not None else []
        images += rest.pop("images", None) or ()
        rest.pop("image", None)
        return ToolOutput(observation=observation, images=tuple(_images(images)), metrics=_metrics(rest))
    return ToolOutput(observation=to_json(value, fallback=str, inf_nan_mode="constants").decode())


def cut(outcome: ToolOutput, *, max_length: int | None) -> ToolOutput:
    """`outcome` with an observation of `max_length` characters at most, shortened in the middle."""
    text = outcome.observation
    if max_length is None or len(text) <= max_length:
        return outcome
    return replace(outcome, observation=shorten(text, most=max_length))


def shorten(text: str, *, most: int) -> str:
    """Beginning and end of what is longer than `most` characters, and how much lay between."""
    notice = f"\n... {len(text)} characters, of which the middle is left out ...\n"
    room = most - len(notice)
    head = room - room // 2
    return text[:head] + notice + text[len(text) - room // 2 :]


def _images(values: Iterable[Any]) -> Iterable[Image]:
    for value in values:
        if isinstance(value, Image):
            yield value
            continue
        if not isinstance(value, bytes):
            raise TypeError(f"an image is {type(value).__name__}; return bytes or envs.types.Image")
        try:
            yield recognize_image(value)
        except ValueError as error:
            raise ValueError(f"an image {error}; return envs.types.Image with its media type") from None


def _metrics(values: Mapping[str, Any]) -> dict[str, float]:
    for name, value in values.items():
        if not isinstance(value, int | float):
            raise TypeError(
                f"the metric {name!r} is {type(value).__name__}, not a number; what the agent is to read "
                "belongs into 'observation'"
            )
    return {name: float(value) for name, value in values.items()}


def _encodable(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")
