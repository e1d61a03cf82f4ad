"""An HTTP server on a port of 127.0.0.1, a free one by default, for the length of a test."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from starlette.applications import Starlette

from envs.network.server import listening


@asynccontextmanager
async def serving(app: Starlette, *, port: int = 0) -> AsyncIterator[str]:
    """Its URL; it is gone afterwards."""
    async with listening(app, "127.0.0.1", port, grace_s=0.1) as port:
        yield f"http://127.0.0.1:{port}"


@contextmanager
def serving_in_thread(app: Starlette, *, port: int = 0) -> Iterator[str]:
    """The same with an event loop of its own, for a test that blocks."""
    urls: list[str] = []
    ready, stop, loop = threading.Event(), asyncio.Event(), asyncio.new_event_loop()

    async def serve() -> None:
        async with serving(app, port=port) as url:
            urls.append(url)
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    assert ready.wait(30)
    try:
        yield urls[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)
        loop.close()
