"""Bodies in, bodies out: pydantic models on the wire, and errors that name the field."""

from typing import Any, TypeVar

from aiohttp import web
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json, to_json

from envs.serve.sessions import RequestRejected

M = TypeVar("M", bound=BaseModel)

OWNER = web.RequestKey("owner", str)
"""Whose request it is: the token that it came with."""


def checked(model: type[M], data: object, *, place: str = "body") -> M:
    """`data` as a model; raises `Refused` 422 that names each wrong field."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise RequestRejected(422, faults(error, place=place)) from None


def faults(error: ValidationError, *, place: str) -> list[dict[str, Any]]:
    """What is wrong, field by field, in FastAPI's form; what was sent is not sent back."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    return [{"loc": [place, *fault["loc"]], "msg": fault["msg"], "type": fault["type"]} for fault in found]


async def body_of(request: web.Request) -> object:
    """The request's JSON; an empty body is an empty object."""
    raw = await request.read()
    return read_json(raw) if raw else {}


def read_json(raw: bytes | str) -> object:
    """Any JSON value; raises `Refused` 422 where it is none."""
    try:
        return from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        fault = {"loc": ["body"], "msg": f"not JSON: {error}", "type": "json_invalid"}
        raise RequestRejected(422, [fault]) from None


def answer(content: object, *, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """A JSON answer; models, too, are content."""
    return web.Response(
        body=to_json(content), status=status, content_type="application/json", headers=headers
    )
