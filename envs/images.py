"""Images in files, in rows of data and in JSON. No pixels are decoded."""

import base64
import binascii
from collections.abc import Sequence
from pathlib import Path

from envs.errors import ConfigError
from envs.types import Image, Item

FIELDS = ("image", "images")
"""Fields of an item that hold one source of an image (`read_image`), or a list of them."""
_URI = "data:"
_MARK = ";base64,"
_MAX_CHARS = 60  # of a source in an error message; a source may be a whole image
_MAGIC = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif"}


def recognize_image(data: bytes) -> Image:
    """Recognize PNG, JPEG, GIF or WebP by the first bytes; raise `ValueError` for anything else."""
    for magic, media_type in _MAGIC.items():
        if data.startswith(magic):
            return Image(data, media_type)
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return Image(data, "image/webp")
    raise ValueError(f"begins with {data[:8]!r}, which is no known format")


def data_uri(image: Image) -> str:
    """Return `data:image/png;base64,…`, from which `read_image` restores the image."""
    return f"{_URI}{image.media_type}{_MARK}{base64.b64encode(image.data).decode()}"


def read_image(source: str, *, folder: Path = Path()) -> Image:
    """Read the image of a data URI, or of a file whose path is relative to `folder`.

    Raises `ValueError`, which describes what is wrong with the source.
    """
    if source.startswith(_URI):
        head, mark, payload = source.partition(_MARK)
        try:
            data = base64.b64decode(payload, validate=True)
        except binascii.Error as error:
            raise ValueError(f"{source[:_MAX_CHARS]!r} is no base64: {error}") from None
        if not mark or not data:
            raise ValueError(f"{source[:_MAX_CHARS]!r} is not data:MEDIA_TYPE{_MARK}… with an image")
        return Image(data, head.removeprefix(_URI))
    try:
        data = (folder / source).read_bytes()
    except (OSError, ValueError) as error:
        cause = error.strerror if isinstance(error, OSError) else error
        raise ValueError(
            f"{source[:_MAX_CHARS]!r} is no file that can be read ({cause}) and no data:MEDIA_TYPE{_MARK}…"
        ) from None
    try:
        return recognize_image(data)
    except ValueError as error:
        raise ValueError(f"{source!r} {error}; give PNG, JPEG, GIF or WebP") from None


def image_sources(item: Item) -> Sequence[str]:
    """Return the sources of an item's images."""
    image, images = (item.fields.get(field) for field in FIELDS)
    return [*([] if image is None else [image]), *(images or [])]


def item_images(item: Item) -> tuple[Image, ...]:
    """Read an item's images; raise `ConfigError` for one that cannot be read."""
    try:
        return tuple(read_image(source) for source in image_sources(item))
    except ValueError as error:
        raise ConfigError(f"{item.item_id}: image {error}; put the file back") from None
