"""Pictures as they lie in files, in rows of data and in lines of JSON. Leaves out pixels: none is decoded."""

import base64
import binascii
from collections.abc import Sequence
from pathlib import Path

from envs.errors import ConfigError
from envs.types import Image, Item

FIELDS = ("image", "images")
"""Of an item: one source of a picture, or a list of them; see `read_image`."""
_URI = "data:"
_MARK = ";base64,"
_MAX_CHARS = 60  # characters of a source, which may be a whole picture
_MAGIC = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
}


def recognize_image(data: bytes) -> Image:
    """A picture by its first bytes: PNG, JPEG, GIF or WebP. Raises `ValueError` for anything else."""
    for magic, media_type in _MAGIC.items():
        if data.startswith(magic):
            return Image(data, media_type)
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return Image(data, "image/webp")
    raise ValueError(f"begins with {data[:8]!r}, which is no kind known here")


def data_uri(image: Image) -> str:
    """As one text, `data:image/png;base64,…`; `read_image` gives the same picture back."""
    return f"{_URI}{image.media_type}{_MARK}{base64.b64encode(image.data).decode()}"


def read_image(source: str, *, folder: Path = Path()) -> Image:
    """The picture of a data URI or of a file, whose path is relative to `folder`.

    Raises `ValueError`, which says what is wrong with the source.
    """
    if source.startswith(_URI):
        head, mark, payload = source.partition(_MARK)
        try:
            data = base64.b64decode(payload, validate=True)
        except binascii.Error as error:
            raise ValueError(f"{source[:_MAX_CHARS]!r} is no base64: {error}") from None
        if not mark or not data:
            raise ValueError(f"{source[:_MAX_CHARS]!r} is not data:MEDIA_TYPE{_MARK}… with a picture")
        return Image(data, head.removeprefix(_URI))
    try:
        data = (folder / source).read_bytes()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ValueError(
            f"{source[:_MAX_CHARS]!r} is no file that can be read ({why}) and no data:MEDIA_TYPE{_MARK}…"
        ) from None
    try:
        return recognize_image(data)
    except ValueError as error:
        raise ValueError(f"{source!r} {error}; give PNG, JPEG, GIF or WebP") from None


def image_sources(item: Item) -> Sequence[str]:
    """Where the pictures of a question are."""
    image, images = (item.fields.get(field) for field in FIELDS)
    return [*([] if image is None else [image]), *(images or [])]


def item_images(item: Item) -> tuple[Image, ...]:
    """The pictures of a question. Raises `ConfigError` for one that cannot be read."""
    try:
        return tuple(read_image(source) for source in image_sources(item))
    except ValueError as error:
        raise ConfigError(f"{item.item_id}: image {error}; put the file back") from None
