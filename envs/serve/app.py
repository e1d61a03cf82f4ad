"""The server of one environment: three protocols on one port, authorisation, start and end.

`POST /reset` and `POST /step` belong to AgentGym's protocol and to OpenEnv's: a body with one of AgentGym's
keys (`id`, `data_idx`, …), or whose action is a string, is AgentGym's; any other is OpenEnv's. For
`GET /state` the query decides.
"""

import asyncio
import base64
import binascii
import hmac
import logging
import resource
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import cache

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from envs.errors import EnvCrashed, boundary
from envs.network.server import (
    GRACE_S,
    RequestRejected,
    bearer_token,
    json_response,
    listening,
    read_body,
    reject_web_pages,
    stop_event,
)
from envs.redaction import register_secret
from envs.registry import EnvSpec
from envs.remote.agentgym import greeting
from envs.remote.wingspan import PATH
from envs.serve.agentgym.handlers import AgentGym
from envs.serve.limits import ServerLimits
from envs.serve.openenv import OpenEnv
from envs.serve.routes import EnvRoute, constant, make_openapi, protocol_routes
from envs.serve.sessions import EnvSessions
from envs.serve.wingspan import SharedConnection
from envs.serve.wire import HttpCall
from envs.types import reset_env

_log = logging.getLogger(__name__)


class EnvServer:
    """One environment over HTTP."""

    def __init__(self, spec: EnvSpec, *, limits: ServerLimits, tokens: Sequence[str] = ()) -> None:
        """`tokens`: each opens the server, and sees its own sessions only; without any, it is open to all."""
        self.sessions = EnvSessions(spec, limits)
        self._tokens = tuple(tokens)
        for token in tokens:
            register_secret(token)
        self._agentgym = AgentGym(self.sessions)
        self._openenv = OpenEnv(self.sessions)

    def app(self) -> Starlette:
        """The ASGI application."""
        spec = self.sessions.spec
        routes = protocol_routes(self._agentgym, spec, reset=self._reset, step=self._step, state=self._state)
        name = constant(greeting(spec.name))
        routes.append(EnvRoute("GET", "/", name, "Name of the environment", answer=str))

        @cache  # on the first request: it takes longer than all else that the server does at its start
        def document() -> dict[str, object]:
            return make_openapi(spec.name, routes, needs_token=bool(self._tokens))

        async def answer_document(_: HttpCall) -> object:
            return await asyncio.to_thread(document)  # steps go on

        routes.append(EnvRoute("GET", "/openapi.json", answer_document, "This document"))
        metrics = EnvRoute("GET", "/metrics", self._metrics, "")  # not in the document
        app = Starlette(
            routes=[
                *(
                    Route(route.path, self._endpoint(route), methods=[route.method])
                    for route in (*routes, metrics)
                ),
                WebSocketRoute("/ws", self._socket),
                WebSocketRoute(PATH, self._shared_socket),
                WebSocketRoute("/{path:path}", self._unknown_socket),
                *(
                    Route(path, self._endpoint(EnvRoute("GET", path, self._upgrade, "")))
                    for path in ("/ws", PATH)
                ),
            ],
            exception_handlers={HTTPException: self._not_routed},
        )
        app.router.redirect_slashes = False
        return app

    @asynccontextmanager
    async def listening(self, host: str, port: int) -> AsyncIterator[int]:
        """Serve while inside; yields the port, and port 0 takes a free one. Raises `ConfigError`.

        On leaving, no session is opened any more, steps under way may finish, every environment is closed.
        """
        max_message_bytes = self.sessions.limits.max_body_bytes
        async with listening(self.app(), host, port, max_message_bytes=max_message_bytes) as bound_port:
            expiring = asyncio.create_task(self.sessions.expire_forever())
            try:
                yield bound_port
            finally:
                expiring.cancel()
                await self.sessions.drain(grace_s=GRACE_S)

    def _endpoint(self, route: EnvRoute) -> Callable[[Request], Awaitable[Response]]:
        """The route's handler, with authorisation before it and an answer for every error."""
        limit = self.sessions.limits.max_body_bytes

        async def endpoint(request: Request) -> Response:
            try:
                owner = "" if route.path == "/health" else self._owner(request.headers)
                raw = await read_body(request, limit) if route.method == "POST" else b""
                call = HttpCall(owner=owner, path=route.path, query=request.query_params, raw=raw)
                content = await route.handler(call)
                response = content if isinstance(content, Response) else json_response(content)
            except RequestRejected as rejection:
                response = _rejection_response(request, rejection)
            except Exception as error:
                _log.exception("%s %s", request.method, route.path)
                response = json_response({"detail": f"the server failed: {type(error).__name__}"}, status=500)
            self.sessions.metrics.count_answer(route.path, response.status_code)
            return response

        return endpoint

    def _owner(self, headers: Headers) -> str:
        """The token of a request; raises `RequestRejected` for one that may not come in."""
        reject_web_pages(headers)
        if not self._tokens:
            return ""
        candidate = _token(headers.get("authorization", "")).encode("latin-1", errors="replace")
        for token in self._tokens:
            if hmac.compare_digest(candidate, token.encode()):
                return token
        raise RequestRejected(
            401, "a token is needed: 'Authorization: Bearer TOKEN', or http://user:TOKEN@host"
        )

    def _protocol(self, call: HttpCall) -> AgentGym | OpenEnv:
        return self._agentgym if self._agentgym.accepts(call.body) else self._openenv

    async def _reset(self, call: HttpCall) -> object:
        return await self._protocol(call).reset(call)

    async def _step(self, call: HttpCall) -> object:
        return await self._protocol(call).step(call)

    async def _state(self, call: HttpCall) -> object:
        if self._agentgym.accepts_state(call):
            return await self._agentgym.answer_query(call)
        return await self._openenv.state(call)

    async def _metrics(self, _: HttpCall) -> Response:
        metrics = self.sessions.metrics
        return Response(metrics.text(), headers={"Content-Type": metrics.content_type})

    async def _upgrade(self, _: HttpCall) -> object:
        raise RequestRejected(426, "this path is for WebSocket connections")

    async def _socket(self, socket: WebSocket) -> None:
        owner = await self._admit(socket)
        if owner is not None:
            await self._openenv.talk(socket, owner)
            self.sessions.metrics.count_answer("/ws", 101)

    async def _shared_socket(self, socket: WebSocket) -> None:
        owner = await self._admit(socket)
        if owner is not None:
            await SharedConnection(self.sessions, socket, owner=owner).serve()
            self.sessions.metrics.count_answer(PATH, 101)

    async def _admit(self, socket: WebSocket) -> str | None:
        """The owner of a WebSocket's sessions; None if it was refused."""
        try:
            return self._owner(socket.headers)
        except RequestRejected as rejection:
            await socket.send_denial_response(_rejection_response(socket, rejection))
            self.sessions.metrics.count_answer(socket.url.path, rejection.status)
            return None

    async def _unknown_socket(self, socket: WebSocket) -> None:
        await socket.send_denial_response(json_response({"detail": "Not Found"}, status=404))
        self.sessions.metrics.count_answer("unknown", 404)

    async def _not_routed(self, request: Request, error: Exception) -> Response:
        """The answer where no route fits: 404 and 405."""
        assert isinstance(error, HTTPException)
        path = "unknown" if error.status_code == 404 else request.url.path
        self.sessions.metrics.count_answer(path, error.status_code)
        return json_response({"detail": error.detail}, status=error.status_code, headers=error.headers)


def _rejection_response(request: Request | WebSocket, rejection: RequestRejected) -> Response:
    headers = {}
    if rejection.retry_after_s is not None:
        headers["Retry-After"] = str(rejection.retry_after_s)
    if rejection.status == 401:
        headers["WWW-Authenticate"] = 'Basic realm="wingspan"'
    if rejection.status >= 500 and rejection.__cause__ is None:  # else it is logged with its cause
        _log.warning("%s: %s", request.url.path, rejection.detail)
    return json_response({"detail": rejection.detail}, status=rejection.status, headers=headers)


def _token(authorization: str) -> str:
    """The token of a Bearer header, or the password of a Basic one, by which old clients can send it."""
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() == "basic":
        with suppress(binascii.Error, UnicodeDecodeError):
            return base64.b64decode(value, validate=True).decode().partition(":")[2]
    return bearer_token(authorization)


async def serve(
    spec: EnvSpec,
    *,
    host: str,
    port: int,
    limits: ServerLimits,
    tokens: Sequence[str],
    say: Callable[[str], None],
) -> None:
    """Serve until SIGINT or SIGTERM; `say` gets the address.

    An item is started first, so that a missing requirement is reported now and not to the first client.
    Raises `MissingDependency`, `ConfigError`, and `EnvCrashed` if the item cannot be started.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # a connection is a file
    spec.check()
    item = spec.make_split(0).train[0]
    with boundary(EnvCrashed, f"{item.item_id}: reset"):
        env = spec.make()
        try:
            await reset_env(env, item)
        finally:
            await env.close()
    stop = stop_event()
    server = EnvServer(spec, limits=limits, tokens=tokens)
    async with server.listening(host, port) as bound_port:
        url = f"http://{host}:{bound_port}"
        say(f"{spec.name} at {url}, by Wingspan's protocol, AgentGym's and OpenEnv's; Ctrl-C stops it")
        await stop.wait()
