"""A retriever served by Search-R1's protocol (its form is in `envs/retrieval/remote.py`).

`GET /version` is an addition, as is `version` in answers: clients may cache answers of the same version, and
notice that a server with another corpus has taken its place.
"""

import asyncio
from collections.abc import Callable

from pydantic import BaseModel, Field, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from envs.errors import WingspanError
from envs.network.server import RequestRejected, json_response, listening, read_body, reject_web_pages
from envs.retrieval.types import Retriever

MAX_BODY_BYTES = 4 << 20
MAX_TOP_K = 1000


class RetrieveRequest(BaseModel):
    """Body of `POST /retrieve`."""

    queries: list[str]
    topk: int | None = Field(default=None, ge=0, le=MAX_TOP_K)
    """None and 0 are the server's default, as in the reference."""
    return_scores: bool = False


def retriever_app(retriever: Retriever, *, top_k: int) -> Starlette:
    """The ASGI application; requests without `topk` get `top_k` passages for each query."""

    async def retrieve(request: Request) -> Response:
        try:
            reject_web_pages(request.headers)
            body = RetrieveRequest.model_validate_json(await read_body(request, MAX_BODY_BYTES))
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(map(str, first["loc"]))
            return json_response({"error": f"{field}: {first['msg']}"}, status=422)
        except RequestRejected as rejection:
            return json_response({"error": str(rejection)}, status=rejection.status)
        try:
            results = await retriever.search(body.queries, top_k=body.topk or top_k)
        except WingspanError as error:
            return json_response({"error": str(error)}, status=503)
        entries = [
            [
                {"document": {"id": passage.passage_id, "contents": passage.contents}, "score": passage.score}
                for passage in passages
            ]
            for passages in results
        ]
        documents = [[entry["document"] for entry in row] for row in entries]
        return json_response(
            {"result": entries if body.return_scores else documents, "version": await retriever.version()}
        )

    async def version(_: Request) -> Response:
        return json_response({"version": await retriever.version()})

    return Starlette(
        routes=[Route("/retrieve", retrieve, methods=["POST"]), Route("/version", version, methods=["GET"])]
    )


async def serve_retriever(
    retriever: Retriever, *, host: str, port: int, top_k: int, say: Callable[[str], None]
) -> None:
    """Serve until cancelled; `say` gets the address. Loads the index first. Raises `ConfigError`."""
    version = await retriever.version()
    try:
        async with listening(retriever_app(retriever, top_k=top_k), host, port) as bound_port:
            say(f"http://{host}:{bound_port} retrieves by {version}")
            await asyncio.Event().wait()
    finally:
        await retriever.close()
