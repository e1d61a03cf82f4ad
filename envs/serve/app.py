"""The server of one environment: both protocols on one port, who may use them, how it starts and ends.

`POST /reset` and `POST /step` belong to both protocols: a body with one of AgentGym's names in it (`id`,
`data_idx`, …), or whose action is a text, is AgentGym's; any other is OpenEnv's. `GET /state` is told apart
by its query.
"""

import asyncio
import base64
import binascii
import hmac
import logging
import resource
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress

from aiohttp import web

from envs.errors import ConfigError
from envs.redaction import register_secret
from envs.registry import EnvSpec
from envs.serve.agentgym.handlers import AgentGym
from envs.serve.describe import describe
from envs.serve.limits import ServerLimits
from envs.serve.mcp import mcp
from envs.serve.openenv import OpenEnv
from envs.serve.sessions import EnvSessions, RequestRejected
from envs.serve.wire import OWNER, answer, body_of

GRACE_S = 10.0
"""What steps under way may take when the server is stopped."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_log = logging.getLogger(__name__)


class EnvServer:
    """One environment over HTTP."""

    def __init__(self, spec: EnvSpec, *, limits: ServerLimits, tokens: Sequence[str] = ()) -> None:
        """`tokens`: each opens the server, and sees its own sessions only; none: open to all."""
        self.sessions = EnvSessions(spec, limits)
        self._tokens = tuple(tokens)
        for token in tokens:
            register_secret(token)
        self._agentgym = AgentGym(self.sessions)
        self._openenv = OpenEnv(self.sessions)
        self._description = describe(spec.name, self._agentgym, guarded=bool(tokens))

    def app(self) -> web.Application:
        """The routes."""
        app = web.Application(
            client_max_size=self.sessions.limits.max_body_bytes, middlewares=[self._guarded]
        )
        gym, openenv = self._agentgym, self._openenv
        app.router.add_get("/", self._hello)
        app.router.add_post("/create", gym.create)
        app.router.add_post("/close", gym.close)
        for path in gym.looks.keys() - {"/state"}:
            app.router.add_get(path, gym.look)
        app.router.add_post("/reset", self._reset)
        app.router.add_post("/step", self._step)
        app.router.add_get("/state", self._state)
        app.router.add_get("/schema", openenv.schema)
        app.router.add_get("/metadata", openenv.metadata)
        app.router.add_get("/health", openenv.health)
        app.router.add_get("/ws", openenv.socket)
        app.router.add_post("/mcp", mcp)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/openapi.json", self._openapi)
        return app

    @asynccontextmanager
    async def listening(self, host: str, port: int) -> AsyncIterator[int]:
        """Serve while inside; gives the port, which 0 leaves to the system. Raises `ConfigError`.

        On leaving, no more connections are taken, steps under way may finish, every environment is closed.
        """
        runner = web.AppRunner(self.app(), access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        expiring = asyncio.create_task(self.sessions.expire_forever())
        try:
            site = web.TCPSite(runner, host, port, backlog=1024)
            try:
                await site.start()
            except OSError as error:
                raise ConfigError(
                    f"cannot listen on {host}:{port}: {error.strerror or error}; choose another with --host "
                    "or --port"
                ) from None
            yield runner.addresses[0][1]
            await site.stop()
        finally:
            expiring.cancel()
            await self.sessions.drain(grace_s=GRACE_S)
            await runner.cleanup()

    @web.middleware
    async def _guarded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Let in who may come in, and turn what goes wrong into an answer."""
        place = request.match_info.route.resource
        path = place.canonical if place is not None else "unknown"
        try:
            if path != "/health":
                request[OWNER] = self._owner(request)
            response = await handler(request)
        except RequestRejected as refused:
            headers = {}
            if refused.retry_after_s is not None:
                headers["Retry-After"] = str(refused.retry_after_s)
            if refused.status == 401:
                headers["WWW-Authenticate"] = 'Basic realm="wingspan"'
            if refused.status >= 500:
                _log.warning("%s %s: %s", request.method, request.path, refused.detail)
            response = answer({"detail": refused.detail}, status=refused.status, headers=headers)
        except web.HTTPException as refused:  # aiohttp's own: 404, 405, 413
            allowed = {"Allow": refused.headers["Allow"]} if "Allow" in refused.headers else None
            response = answer({"detail": refused.text}, status=refused.status, headers=allowed)
        except Exception as error:
            _log.exception("%s %s", request.method, request.path)
            response = answer({"detail": f"the server failed: {type(error).__name__}"}, status=500)
        self.sessions.metrics.answered(path, response.status)
        return response

    def _owner(self, request: web.Request) -> str:
        if "Origin" in request.headers:
            # A page in somebody's browser can reach servers that the outside cannot.
            raise RequestRejected(403, "requests from web pages (header Origin) are not served")
        if not self._tokens:
            return ""
        sent = _token_of(request.headers.get("Authorization", "")).encode(errors="surrogateescape")
        for token in self._tokens:
            if hmac.compare_digest(sent, token.encode()):
                return token
        raise RequestRejected(
            401, "a token is needed: 'Authorization: Bearer TOKEN', or http://user:TOKEN@host"
        )

    async def _reset(self, request: web.Request) -> web.Response:
        body = await body_of(request)
        if self._agentgym.is_meant(body):
            return await self._agentgym.reset(request, body)
        return await self._openenv.reset(request, body)

    async def _step(self, request: web.Request) -> web.Response:
        body = await body_of(request)
        if self._agentgym.is_meant(body):
            return await self._agentgym.step(request, body)
        return await self._openenv.step(request, body)

    async def _state(self, request: web.Request) -> web.Response:
        if "/state" in self._agentgym.looks and self._agentgym.is_asked(request):
            return await self._agentgym.look(request)
        return await self._openenv.state(request)

    async def _hello(self, _: web.Request) -> web.Response:
        return answer(f"This is environment {self.sessions.spec.name}.")

    async def _metrics(self, _: web.Request) -> web.Response:
        metrics = self.sessions.metrics
        return web.Response(body=metrics.text(), headers={"Content-Type": metrics.content_type})

    async def _openapi(self, _: web.Request) -> web.Response:
        return answer(self._description)


def _token_of(authorization: str) -> str:
    """The token of a Bearer header, or the password of a Basic one, by which old clients can send it."""
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() == "basic":
        with suppress(binascii.Error, UnicodeDecodeError):
            return base64.b64decode(value, validate=True).decode().partition(":")[2]
    return value if scheme.lower() == "bearer" else ""


async def serve(
    spec: EnvSpec,
    *,
    host: str,
    port: int,
    limits: ServerLimits,
    tokens: Sequence[str],
    say: Callable[[str], None],
) -> None:
    """Serve until SIGINT or SIGTERM; `say` is told where.

    An item is started first: what is missing is told now, and not to the first client. Raises
    `MissingDependency` and `ConfigError`.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # a connection is a file
    spec.check()
    env = spec.make()
    try:
        await env.reset(spec.split(0).train[0])
    finally:
        await env.close()
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    server = EnvServer(spec, limits=limits, tokens=tokens)
    async with server.listening(host, port) as bound:
        say(f"{spec.name} at http://{host}:{bound}, by AgentGym's protocol and OpenEnv's; Ctrl-C stops it")
        await stopped.wait()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)  # a second one ends it at once
