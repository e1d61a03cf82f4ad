"""The viewer's pages in Chromium, and what goes wrong on them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from envs.builtin.browser.chromium import Chromium
from tasks.viewer.app import viewer_app
from tasks.viewer.viewer import Viewer
from tests.support.http_server import serving_in_thread

if TYPE_CHECKING:
    from playwright.async_api import Page


@asynccontextmanager
async def open_viewer(runs: Path) -> AsyncIterator[tuple["Page", str]]:
    """An empty page in Chromium, and the URL of a viewer of the folder `runs`; it may reach no other."""
    app = viewer_app(Viewer([runs], cache=runs.parent / "cache"), host="127.0.0.1")
    with serving_in_thread(app) as url:
        chromium = await Chromium.start()
        try:
            context = await chromium.context(origins=[url])
            yield await context.new_page(), url
        finally:
            await chromium.close()


def watch(page: "Page") -> tuple[list[str], list[str]]:
    """Returns two lists that fill up: the URLs that the page requests, and its errors and dialogs."""
    requests: list[str] = []
    troubles: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("dialog", lambda dialog: troubles.append(dialog.message))
    page.on("console", lambda message: troubles.append(message.text) if message.type == "error" else None)
    return requests, troubles
