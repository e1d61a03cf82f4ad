"""Replaces product images by a placeholder, which keeps the shop small."""

from dataclasses import dataclass

from django.templatetags.static import static


@dataclass(frozen=True, slots=True)
class Thumbnail:
    """The attributes of an image that oscar's templates read."""

    url: str
    width: int
    height: int


class NoThumbnails:
    """Shows oscar's own "image not found" for every product (the setting `OSCAR_THUMBNAILER`)."""

    def generate_thumbnail(self, source: object, *, size: str, **_: object) -> Thumbnail:
        """`size` is `<width>x<height>` in pixels; either number may be missing."""
        width, _cross, height = size.partition("x")
        side = int(width or height)
        return Thumbnail(static("oscar/img/image_not_found.jpg"), side, int(height or side))

    def delete_thumbnails(self, source: object) -> None:
        """Do nothing: there are none."""
