"""The content of a message: text, and images as data: URLs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator

from agents.prompting.images import check_image
from envs.images import read_image
from envs.types import Image

_TEXTS = ("text", "input_text", "output_text")
_IMAGES = ("image_url", "input_image")


@dataclass(frozen=True, slots=True)
class Content:
    """Of one message."""

    text: str = ""
    images: tuple[Image, ...] = ()
    """In order; shown before the text, wherever they stood among the parts."""


def _content(value: object) -> Content:
    if isinstance(value, Content):
        return value
    if isinstance(value, str):
        return Content(value)
    if not isinstance(value, list):
        raise ValueError("it is neither text nor a list of parts")
    parts = [_part(part) for part in value]
    return Content(
        "\n".join(part for part in parts if isinstance(part, str)),
        tuple(part for part in parts if isinstance(part, Image)),
    )


def _part(part: object) -> str | Image:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(part, Mapping) or kind not in (*_TEXTS, *_IMAGES):
        raise ValueError(f"a part of type {kind!r} is not supported; send text and images only")
    if kind in _TEXTS:
        if not isinstance(part.get("text"), str):
            raise ValueError("a part of text has no text")
        return str(part["text"])
    source: Any = part.get("image_url")
    detail = part.get("detail")
    if isinstance(source, Mapping):  # chat completions; in responses it is the URL itself
        source, detail = source.get("url"), source.get("detail")
    if detail not in (None, "auto"):
        raise ValueError(f"detail {detail!r} of an image is not supported; leave it out")
    if not isinstance(source, str):
        raise ValueError("an image has no image_url")
    if not source.startswith("data:"):
        raise ValueError(f"{source[:60]!r}: nothing is downloaded; send the image as a data: URL")
    image = read_image(source)
    try:
        check_image(image)
    except ValueError as error:
        raise ValueError(f"{source[:40]!r} {error}") from None
    return image


AnyContent = Annotated[Content, BeforeValidator(_content)]
"""Text, or a list of parts; images must be data: URLs."""
