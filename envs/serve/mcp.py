"""OpenEnv's `POST /mcp`: JSON-RPC 2.0, by which a client asks for an environment's tools.

The environments here are played by `reset` and `step` and have no such tools: the list is empty, and a call
names a tool that there is not. Errors are answers with status 200, as JSON-RPC has them over HTTP.
"""

from typing import Any, Literal

from aiohttp import web
from pydantic import BaseModel, ValidationError

from envs.serve.sessions import RequestRejected
from envs.serve.wire import answer, read_json

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


async def mcp(request: web.Request) -> web.Response:
    """Answer one request."""
    return answer(_response(await request.read()).model_dump(exclude_none=True))


def _response(raw: bytes) -> McpResponse:
    try:
        content = read_json(raw)
    except RequestRejected:
        return McpResponse(error=McpError(code=_NO_JSON, message="the body is not JSON"))
    try:
        asked = McpRequest.model_validate(content)
    except ValidationError:
        return McpResponse(error=McpError(code=_NO_REQUEST, message="the body is no request of JSON-RPC 2.0"))
    match asked.method:
        case "tools/list":
            return McpResponse(id=asked.id, result={"tools": []})
        case "tools/call":
            fault = McpError(code=_NO_TOOL, message="there are no tools; play by /reset and /step, or by /ws")
        case _:
            fault = McpError(code=_NO_METHOD, message=f"no method {asked.method[:60]!r}; there is tools/list")
    return McpResponse(id=asked.id, error=fault)
