"""The viewer over HTTP: a page without a build step, and the JSON that it asks for.

What episodes hold is hostile: pages get it as JSON alone and show it as text; no script runs but the page's
own files (Content-Security-Policy), and no answer can be framed or taken for another type. On a loopback
address, requests under another host's name are refused, so that a web page cannot reach the viewer by a name
of its own that leads here. Where there is a token, a browser gives it once, in the address (`/?token=…`), and
keeps it as a cookie.
"""

import sqlite3
from collections.abc import Callable, Mapping
from hmac import compare_digest
from pathlib import Path
from typing import TypedDict

from pydantic import BaseModel, Field
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from envs.errors import ConfigError, MissingDependency, WingspanError, to_line
from envs.network.server import RequestRejected, bearer_token
from tasks.reporting.pages import PAGES
from tasks.runs.folders import ANNOTATIONS
from tasks.runs.timestamps import now
from tasks.viewer import browse
from tasks.viewer.annotations import MAX_LABEL, MAX_NOTE, Annotation, append_annotation
from tasks.viewer.answers import find_row, integer, json_answer
from tasks.viewer.forks import fork_routes, read_page_body
from tasks.viewer.overview import read_overview, summarise_runs
from tasks.viewer.query import KEYS, find_key, list_keys
from tasks.viewer.reading import (
    LineChanged,
    find_image,
    load_trajectory,
    load_update,
    read_tokens,
    read_trajectory,
)
from tasks.viewer.viewer import OpenRun, Viewer

STATIC = Path(__file__).parent / "static"
LOOPBACK = ("127.0.0.1", "localhost")
COOKIE = "wingspan-viewer"
MAX_BODY_BYTES = 64 << 10
MAX_LIMIT = 500
"""Rows of a list in one answer."""
MAX_SIDES = 64
"""Trajectories that are shown side by side."""
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",
}


class AnnotationRequest(BaseModel, extra="forbid"):
    """Body of `POST api/annotations`: both texts replace those that were there."""

    run: str
    address: str
    digest: str
    """The trajectory's, as it was shown: it may have been rewritten since."""
    label: str = Field(default="", max_length=MAX_LABEL, pattern=r"^[^\s\"]*$")
    note: str = Field(default="", max_length=MAX_NOTE)


def viewer_app(viewer: Viewer, *, host: str, token: str | None = None) -> Starlette:
    """The ASGI application. `host`: the address that it will listen on; `token`: what requests must give."""

    def runs(_: Request) -> Response:
        return json_answer({"runs": summarise_runs(viewer.runs())})

    def run(_: Request, run: OpenRun, connection: sqlite3.Connection) -> object:
        other_runs = [other for other in viewer.runs() if other.identity != run.run.identity]
        unreadable, examples = browse.unreadable_lines(connection)
        return {
            "summary": summarise_runs([run.run, *other_runs])[0],
            **read_overview(run.run),
            "kept": browse.count_by_step(connection),
            "kept_by_round": browse.count_by_round(connection),
            "total": browse.count_trajectories(connection),
            "unreadable": {"total": unreadable, "examples": examples},
            **_state(run, connection),
        }

    def state(_: Request, run: OpenRun, connection: sqlite3.Connection) -> object:
        return _state(run, connection)

    def trajectories(request: Request, run: OpenRun, connection: sqlite3.Connection) -> object:
        query = request.query_params.get("q", "")
        rows = browse.list_trajectories(connection, query, **_page(request))
        total = browse.count_trajectories(connection, query)
        return {"total": total, "rows": rows, **_state(run, connection)}

    def groups(request: Request, run: OpenRun, connection: sqlite3.Connection) -> object:
        query = request.query_params.get("q", "")
        total, rows = browse.list_groups(connection, query, **_page(request))
        return {"total": total, "rows": rows, **_state(run, connection)}

    def facets(request: Request, _: OpenRun, connection: sqlite3.Connection) -> object:
        return {
            "facets": browse.facets(connection, request.query_params.get("q", "")),
            "keys": {**KEYS, **_further_keys(connection)},
            "sorts": list(browse.SORTS),
            "group_sorts": list(browse.GROUP_SORTS),
        }

    def trajectory(request: Request, run: OpenRun, connection: sqlite3.Connection) -> object:
        address = request.query_params.get("address", "")
        row, location = find_row(connection, address)
        values = load_trajectory(location)
        return {
            "row": row,
            "digest": location.digest,
            "siblings": browse.siblings(connection, address),
            **read_trajectory(values, decode=run.decode, update=load_update(location, values)),
            **_state(run, connection),
        }

    def place(request: Request, _: OpenRun, connection: sqlite3.Connection) -> object:
        query, sort, address = (request.query_params.get(name, "") for name in ("q", "sort", "address"))
        return browse.neighbours(connection, query, sort=sort, address=address)

    def tokens(request: Request, run: OpenRun, connection: sqlite3.Connection) -> object:
        _, location = find_row(connection, request.query_params.get("address", ""))
        values = load_trajectory(location)
        return {"turns": read_tokens(values, split=run.split, update=load_update(location, values))}

    def sides(request: Request, run: OpenRun, connection: sqlite3.Connection) -> object:
        """Trajectories by `address` (several), or the group of one, with their turns."""
        addresses = request.query_params.getlist("address")
        if "group" in request.query_params:
            members = browse.siblings(connection, request.query_params["group"])
            addresses = [row.address for row in members]
            if not members:
                raise RequestRejected(404, f"there is no trajectory {request.query_params['group']}")
        if not addresses:
            raise RequestRejected(400, "no trajectory is named; mark some in a list of trajectories")
        found = [find_row(connection, address) for address in addresses[:MAX_SIDES]]
        return {
            "total": len(addresses),
            "sides": [
                {"row": row, **read_trajectory(load_trajectory(location), decode=run.decode)}
                for row, location in found
            ],
            **_state(run, connection),
        }

    def item(request: Request, run: OpenRun, connection: sqlite3.Connection) -> object:
        name = request.query_params.get("item", "")
        rows = browse.item_history(connection, name)
        if not rows:
            raise RequestRejected(404, f"no trajectory of the item {name!r} was kept")
        return {"rows": rows, **_state(run, connection)}

    def image(request: Request, run: OpenRun, connection: sqlite3.Connection) -> Response:
        _, location = find_row(connection, request.query_params.get("address", ""))
        turn, number = integer(request, "turn", default=-1), integer(request, "number", default=0)
        image = find_image(load_trajectory(location), turn=turn, number=number)
        if image is None:
            raise RequestRejected(404, "there is no such image")
        return Response(image[0], media_type=image[1])

    def index(request: Request) -> Response:
        if token is not None and "token" in request.query_params:  # out of the address, into a cookie
            answer = RedirectResponse("/", 303)
            answer.set_cookie(COOKIE, token, httponly=True, samesite="strict")
            return answer
        return FileResponse(STATIC / "index.html")

    async def annotate(request: Request) -> Response:
        body = await read_page_body(request, AnnotationRequest, max_bytes=MAX_BODY_BYTES)
        return json_answer(await run_in_threadpool(_annotate, body))

    def _annotate(body: AnnotationRequest) -> object:
        run = viewer.open(body.run)
        with run.index.connect() as connection:
            row, location = find_row(connection, body.address)
            if location.digest != body.digest:
                raise LineChanged(f"{body.address} was rewritten")
        file, _, line = body.address.rpartition(":")
        annotation = Annotation(
            digest=body.digest,
            file=file,
            line=int(line),
            item=row.item,
            sample=row.sample,
            label=body.label,
            note=body.note.strip(),
            written_at=now(),
        )
        append_annotation(run.run.folder / ANNOTATIONS, annotation)
        run.refresh(is_forced=True)
        return {"label": annotation.label, "note": annotation.note}

    def answering(read: Callable[[Request, OpenRun, sqlite3.Connection], object]) -> Route:
        """The route that answers with what `read` finds in the run that the request names."""

        def answer(request: Request) -> Response:
            run = viewer.open(request.query_params.get("run", ""))
            with run.index.connect() as connection:
                content = read(request, run, connection)
            return content if isinstance(content, Response) else json_answer(content)

        return Route(f"/api/{read.__name__}", answer)

    reads = (run, state, trajectories, groups, facets, trajectory, place, tokens, sides, item, image)
    return Starlette(
        routes=[
            Route("/api/runs", runs),
            *map(answering, reads),
            Route("/api/annotations", annotate, methods=["POST"]),
            *fork_routes(viewer, is_loopback=host in LOOPBACK),
            Route("/", index),
            # The colors of reports are those of the viewer.
            Route("/static/palette.css", lambda _: FileResponse(PAGES / "palette.css")),
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        middleware=[
            Middleware(_Headers),
            Middleware(TrustedHostMiddleware, allowed_hosts=list(LOOPBACK) if host in LOOPBACK else ["*"]),
            *([Middleware(_TokenCheck, token=token)] if token is not None else []),
        ],
        exception_handlers=_HANDLERS,
    )


def _state(run: OpenRun, connection: sqlite3.Connection) -> dict[str, object]:
    return {"generation": browse.generation(connection), "indexing": run.index.progress}


def _further_keys(connection: sqlite3.Connection) -> dict[str, str]:
    names = list_keys(connection)
    meanings = {"metadata": "metadata of the item", "label": "label of the episode", "metric": "metric"}
    return {
        find_key(kind, name, names): meaning for kind, meaning in meanings.items() for name in names[kind]
    }


class _Page(TypedDict):
    """Which part of a list is asked for."""

    sort: str
    offset: int
    limit: int


def _page(request: Request) -> _Page:
    limit = integer(request, "limit", default=100)
    return {
        "sort": request.query_params.get("sort", ""),
        "offset": max(0, integer(request, "offset", default=0)),
        "limit": max(1, min(limit, MAX_LIMIT)),
    }


def _reject(_: Request, error: Exception) -> Response:
    text = str(error)
    match error:
        case RequestRejected():
            status, text = error.status, str(error.detail)
        case HTTPException():
            status, text = error.status_code, error.detail
        case LineChanged():
            status = 409
        case WingspanError():
            status = 400
        case _:
            status = 500
    return json_answer({"error": to_line(text)}, status=status)


_ERRORS = (RequestRejected, HTTPException, LineChanged, ConfigError, MissingDependency, sqlite3.DatabaseError)
_HANDLERS: Mapping[object, Callable[[Request, Exception], Response]] = dict.fromkeys(_ERRORS, _reject)


class _TokenCheck:
    """Refuses requests without the token, as a cookie, a bearer token or, for the page, in the address."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        given_tokens = [
            request.cookies.get(COOKIE, ""),
            bearer_token(request.headers.get("authorization", "")),
            request.query_params.get("token", "") if request.url.path == "/" else "",
        ]
        if any(compare_digest(token.encode(), self._token.encode()) for token in given_tokens):
            await self._app(scope, receive, send)
        else:
            error = "this viewer requires its token; open its address with /?token=TOKEN at the end"
            await json_answer({"error": error}, status=401)(scope, receive, send)


class _Headers:
    """Adds `HEADERS` to every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await self._app(scope, receive, send_with_headers)
