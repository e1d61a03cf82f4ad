"""OpenEnv's `POST /mcp`: JSON-RPC 2.0, by which a client lists and calls an environment's tools.

The environments here use `reset` and `step` and have no such tools: the list is empty, and every call names
an unknown tool. Errors have status 200, as in JSON-RPC over HTTP.
"""

from typing import Literal

from pydantic import BaseModel, ValidationError

from envs.network.server import RequestRejected
from envs.serve.wire import HttpCall, read_json

_NO_JSON, _NO_REQUEST, _NO_METHOD, _NO_TOOL = -32700, -32600, -32601, -32602
"""JSON-RPC's codes; the last is the one of wrong parameters."""


class McpRequest(BaseModel):
    """A request by JSON-RPC."""

    jsonrpc: Literal["2.0"]
    method: str
    params: dict[str, object] = {}
    id: str | int | None = None


class McpError(BaseModel):
    """What is wrong with a request."""

    code: int
    message: str


class McpResponse(BaseModel):
    """An answer: it has either a result or an error."""

    jsonrpc: Literal["2.0"] = "2.0"
    id: str | int | None = None
    result: dict[str, object] | None = None
    error: McpError | None = None


async def mcp(call: HttpCall) -> object:
    """Answer one request."""
    return _response(call.raw).model_dump(exclude_none=True)


def _response(raw: bytes) -> McpResponse:
    try:
        request = McpRequest.model_validate(read_json(raw))
    except RequestRejected:
        return _failure(_NO_JSON, "the body is not JSON")
    except ValidationError:
        return _failure(_NO_REQUEST, "the body is no request of JSON-RPC 2.0")
    match request.method:
        case "tools/list":
            return McpResponse(id=request.id, result={"tools": []})
        case "tools/call":
            return _failure(_NO_TOOL, "there are no tools; use /reset and /step, or /ws", request.id)
    return _failure(_NO_METHOD, f"no method {request.method[:60]!r}; there is tools/list", request.id)


def _failure(code: int, message: str, request_id: str | int | None = None) -> McpResponse:
    return McpResponse(id=request_id, error=McpError(code=code, message=message))
