"""Helpers of the viewer's routes: JSON answers, integers of requests, and trajectories by address."""

import sqlite3

from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response

from envs.network.server import RequestRejected
from tasks.viewer import browse


def json_answer(content: object, *, status: int = 200) -> Response:
    """An answer in JSON, with NaN and infinity as strings, because JavaScript does not read them."""
    return Response(to_json(content, inf_nan_mode="strings"), status, media_type="application/json")


def integer(request: Request, name: str, *, default: int) -> int:
    """A parameter of the request's address. Raises `RequestRejected`."""
    text = request.query_params.get(name, str(default))
    try:
        number = int(text)
    except ValueError:
        number = None
    if number is None or abs(number) > 1 << 31:
        raise RequestRejected(400, f"{name}={text[:40]!r} is no number")
    return number


def find_row(connection: sqlite3.Connection, address: str) -> tuple[browse.TrajectoryRow, browse.Location]:
    """The trajectory `address` and where it lies. Raises `RequestRejected`."""
    row, location = browse.find_row(connection, address), browse.find_location(connection, address)
    if row is None or location is None:
        raise RequestRejected(
            404, f"there is no trajectory {address}; its file may have been rewritten since"
        )
    return row, location
