"""OpenEnv's `POST /mcp`: JSON-RPC 2.0, by which a client lists and calls an environment's tools.

The environments here use `reset` and `step` and have no such tools: the list is empty, and every call names
an unknown tool. Errors have status 200, as in JSON-RPC over HTTP.
"""

from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from envs.serve.sessions import RequestRejected
from envs.serve.wire import Call, read_json

_NO_JSON, _NO_REQUEST, _NO_METHOD, _NO_TOOL = -32700, -32600, -32601, -32602
"""JSON-RPC's codes; the last is the one of wrong parameters."""


class McpRequest(BaseModel):
    """A request by JSON-RPC."""

    jsonrpc: Literal["2.0"]
    method: str
    params: dict[str, Any] = {}
    id: str | int | None = None


class McpError(BaseModel):
    """What is wrong with a request."""

    code: int
    message: str


class McpResponse(BaseModel):
    """An answer: it has either a result or an error."""

    jsonrpc: Literal["2.0"] = "2.0"
    id: str | int | None = None
    result: dict[str, Any] | None = None
    error: McpError | None = None


async def mcp(call: Call) -> object:
    """Answer one request."""
    return _response(call.raw).model_dump(exclude_none=True)


def _response(raw: bytes) -> McpResponse:
    try:
        content = read_json(raw)
    except RequestRejected:
        return McpResponse(error=McpError(code=_NO_JSON, message="the body is not JSON"))
    try:
        request = McpRequest.model_validate(content)
    except ValidationError:
        error = McpError(code=_NO_REQUEST, message="the body is no request of JSON-RPC 2.0")
        return McpResponse(error=error)
    match request.method:
        case "tools/list":
            return McpResponse(id=request.id, result={"tools": []})
        case "tools/call":
            error = McpError(code=_NO_TOOL, message="there are no tools; play by /reset and /step, or by /ws")
        case _:
            error = McpError(
                code=_NO_METHOD, message=f"no method {request.method[:60]!r}; there is tools/list"
            )
    return McpResponse(id=request.id, error=error)
