"""Pictures of products: there are none, so that the shop stays small."""

from dataclasses import dataclass

from django.templatetags.static import static


@dataclass(frozen=True, slots=True)
class Thumbnail:
    """What oscar's templates ask of a picture."""

    url: str
    width: int
    height: int


class NoThumbnails:
    """Gives every product oscar's own "image not found"; see `OSCAR_THUMBNAILER`."""

    def generate_thumbnail(self, source: object, *, size: str, **_: object) -> Thumbnail:
        """`size` is `<width>x<height>` in pixels, either of which may be left out."""
        width, _cross, height = size.partition("x")
        side = int(width or height)
        return Thumbnail(static("oscar/img/image_not_found.jpg"), side, int(height or side))

    def delete_thumbnails(self, source: object) -> None:
        """There are none."""
