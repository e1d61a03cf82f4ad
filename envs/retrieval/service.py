"""A retriever, served by Search-R1's protocol (`envs/retrieval/remote.py` has its form).

`GET /version` beside it tells what decides the answers, so that clients may cache them.
"""

import asyncio
from collections.abc import Callable

from aiohttp import web
from pydantic import BaseModel, Field, ValidationError

from envs.errors import WingspanError
from envs.retrieval.types import Retriever

MAX_BODY_BYTES = 4 << 20
MAX_TOP_K = 1000


class Asked(BaseModel):
    """Body of `POST /retrieve`."""

    queries: list[str]
    topk: int | None = Field(default=None, ge=0, le=MAX_TOP_K)
    """None and 0 are the server's default, as in the reference."""
    return_scores: bool = False


def retriever_app(retriever: Retriever, *, top_k: int) -> web.Application:
    """The routes; `top_k` is what requests without `topk` get."""

    async def retrieve(request: web.Request) -> web.Response:
        try:
            asked = Asked.model_validate_json(await request.read())
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            return web.json_response({"error": f"{where}: {first['msg']}"}, status=422)
        try:
            found = await retriever.search(asked.queries, top_k=asked.topk or top_k)
        except WingspanError as error:
            return web.json_response({"error": str(error)}, status=503)
        documents = [
            [({"id": one.passage_id, "contents": one.contents}, one.score) for one in own] for own in found
        ]
        if asked.return_scores:
            return web.json_response(
                {"result": [[{"document": d, "score": score} for d, score in own] for own in documents]}
            )
        return web.json_response({"result": [[d for d, _ in own] for own in documents]})

    async def version(_: web.Request) -> web.Response:
        return web.json_response({"version": await retriever.version()})

    app = web.Application(client_max_size=MAX_BODY_BYTES)
    app.add_routes([web.post("/retrieve", retrieve), web.get("/version", version)])
    return app


async def serve_retriever(
    retriever: Retriever, *, host: str, port: int, top_k: int, say: Callable[[str], None]
) -> None:
    """Serve until cancelled; `say` is told the address when it answers. The index is there by then."""
    version = await retriever.version()
    runner = web.AppRunner(retriever_app(retriever, top_k=top_k))
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
        bound = runner.addresses[0][1]
        say(f"http://{host}:{bound} retrieves by {version}")
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()
        await retriever.close()
