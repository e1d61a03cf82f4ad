"""Pages that no server serves: files of a folder, read for a browser as it asks for them."""

import mimetypes
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from playwright.async_api import Route


@dataclass(frozen=True, slots=True)
class Shelf:
    """A folder, and the origin that it stands for."""

    origin: str
    """`http://host`; nothing is sent there."""
    folder: Path

    async def serve(self, route: "Route") -> None:
        """Answer a request with its file."""
        folder = self.folder.resolve()
        path = (folder / unquote(urlsplit(route.request.url).path).lstrip("/")).resolve()
        if path.is_relative_to(folder) and path.is_file():
            kind = mimetypes.guess_type(path)[0] or "application/octet-stream"
            await route.fulfill(path=path, content_type=f"{kind}; charset=utf-8")
        else:
            await route.fulfill(status=404, body="not found")
