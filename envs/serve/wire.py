"""Requests as the protocols see them, without the web framework: pydantic models in, JSON out."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from envs.network.server import RequestRejected

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True, kw_only=True)
class HttpCall:
    """One HTTP request."""

    owner: str
    """The token that it came with; empty where none is needed."""
    path: str
    query: Mapping[str, str]
    raw: bytes

    @cached_property
    def body(self) -> object:
        """The JSON value of the body, `{}` for an empty one; raises `RequestRejected` 422 for no JSON."""
        return read_json(self.raw) if self.raw else {}


Handler = Callable[[HttpCall], Awaitable[object]]
"""Returns what is answered with status 200: JSON values and models."""


def validate(model: type[M], data: object, *, location: str = "body") -> M:
    """`data` as a model; raises `RequestRejected` 422 that names each wrong field."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        # In FastAPI's form, without the values that were sent.
        faults = [
            {"loc": [location, *fault["loc"]], "msg": fault["msg"], "type": fault["type"]}
            for fault in error.errors(include_url=False, include_context=False, include_input=False)
        ]
        raise RequestRejected(422, faults) from None


def fault_text(detail: Any) -> str:
    """The `detail` of a rejected request in one line: wrong fields with their places."""
    if not isinstance(detail, list):
        return str(detail)
    return "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in detail)


def read_json(raw: bytes | str) -> object:
    """Any JSON value; raises `RequestRejected` 422 for other text."""
    try:
        return from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        fault = {"loc": ["body"], "msg": f"not JSON: {error}", "type": "json_invalid"}
        raise RequestRejected(422, [fault]) from None
