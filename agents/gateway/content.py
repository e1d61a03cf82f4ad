"""What a message says: text, and pictures that came with it as data: URLs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator

from agents.prompting.images import check_image
from envs.images import read_image
from envs.types import Image

_TEXTS = ("text", "input_text", "output_text")
_PICTURES = ("image_url", "input_image")


@dataclass(frozen=True, slots=True)
class Content:
    """Of one message."""

    text: str = ""
    images: tuple[Image, ...] = ()
    """In their order; they are shown before the text, wherever they stood between its parts."""


def _content(given: object) -> Content:
    if isinstance(given, Content):
        return given
    if isinstance(given, str):
        return Content(given)
    if not isinstance(given, list):
        raise ValueError("it is neither text nor a list of parts")
    parts = [_part(part) for part in given]
    return Content(
        "\n".join(part for part in parts if isinstance(part, str)),
        tuple(part for part in parts if isinstance(part, Image)),
    )


def _part(part: object) -> str | Image:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(part, Mapping) or kind not in (*_TEXTS, *_PICTURES):
        raise ValueError(f"a part of type {kind!r} is not supported; send text and pictures alone")
    if kind in _TEXTS:
        if not isinstance(part.get("text"), str):
            raise ValueError("a part of text has no text")
        return str(part["text"])
    source: Any = part.get("image_url")
    detail = part.get("detail")
    if isinstance(source, Mapping):  # chat completions; in responses it is the URL itself
        source, detail = source.get("url"), source.get("detail")
    if detail not in (None, "auto"):
        raise ValueError(
            f"detail {detail!r} of a picture is not supported: its processor has one; leave it out"
        )
    if not isinstance(source, str):
        raise ValueError("a picture has no image_url")
    if not source.startswith("data:"):
        raise ValueError(
            f"{source[:60]!r}: nothing is fetched from elsewhere; send the picture as a data: URL"
        )
    image = read_image(source)
    try:
        check_image(image)
    except ValueError as error:
        raise ValueError(f"{source[:40]!r} {error}") from None
    return image


AnyContent = Annotated[Content, BeforeValidator(_content)]
"""Text, or a list of parts; pictures must be data: URLs."""
