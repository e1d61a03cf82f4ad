"""What servers share: uvicorn in the running event loop, rejected requests, bodies and tokens."""

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

from pydantic_core import to_json
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from envs.errors import ConfigError

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp

GRACE_S = 10
"""Time for requests under way when a server is stopped."""
KEEP_ALIVE_S = 75
"""How long a connection may be idle: a model may think between two steps for longer than uvicorn's 5 s."""


class RequestRejected(Exception):
    """A request that is answered with an error status."""

    def __init__(
        self,
        status: int,
        detail: object,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        """`detail`: the reason in one line, or the wrong fields in FastAPI's form. `param` and `code`: the
        wrong field and the kind of error in OpenAI's form, e.g. `messages[0].content`."""
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises `ConfigError` if the address is not available."""
    try:
        sock = socket.create_server((host, port), backlog=1024)
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(
            f"cannot listen on {host}:{port}: {reason}; choose another host or port (--host, --port)"
        ) from None
    # Accepted connections inherit these options. A client whose machine is gone without a word is noticed
    # after two minutes; otherwise its connection, and the sessions that end with it, would stay.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
    # asyncio sets this one for other kinds of sockets. Without it, an answer's body waits for the client's
    # delayed acknowledgement of its header: 40 ms for each request.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


@asynccontextmanager
async def listening(
    app: "ASGIApp", host: str, port: int, *, max_message_bytes: int = 1 << 24, grace_s: float = GRACE_S
) -> AsyncIterator[int]:
    """Serve `app` while inside; yields the port. Raises `ConfigError` if the address is not available.

    `max_message_bytes`: of a WebSocket message. `grace_s`: time for requests under way on leaving.
    """
    import uvicorn

    class Server(uvicorn.Server):
        """Leaves the process's signals alone."""

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    server = Server(
        uvicorn.Config(
            app,
            log_config=None,
            log_level="error",
            access_log=False,
            lifespan="off",
            server_header=False,
            ws="websockets-sansio",
            ws_max_size=max_message_bytes,
            ws_ping_interval=None,  # a client that computes between two steps need not answer
            ws_per_message_deflate=False,  # compression would cost more time than a step
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=grace_s,  # type: ignore[arg-type]  # it may be a float
        )
    )
    sock = bind(host, port)
    serving = asyncio.create_task(server.serve(sockets=[sock]))
    try:
        while not server.started and not serving.done():
            await asyncio.sleep(0.002)
        yield sock.getsockname()[1]
    finally:
        server.should_exit = True
        await serving


def stop_event() -> asyncio.Event:
    """An event that SIGINT or SIGTERM sets; a second signal then ends the process at once."""
    event = asyncio.Event()
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM)

    def stop() -> None:
        event.set()
        for number in numbers:
            loop.remove_signal_handler(number)

    for number in numbers:
        loop.add_signal_handler(number, stop)
    return event


def json_response(
    content: object, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """A JSON answer; `content` may contain pydantic models and dataclasses."""
    return Response(to_json(content), status, headers, media_type="application/json")


def reject_web_pages(headers: Mapping[str, str]) -> None:
    """Raise `RequestRejected` for a web page's request: browsers reach servers that outsiders cannot."""
    if "origin" in headers:
        raise RequestRejected(403, "requests from web pages (header Origin) are not served")


async def read_body(request: "Request", max_bytes: int) -> bytes:
    """The body; raises `RequestRejected` 413 for a larger one, and 400 if the client leaves early."""
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > max_bytes:
                raise RequestRejected(
                    413, f"the body has more than {max_bytes} bytes; serve with a larger --max-body-bytes"
                )
    except ClientDisconnect:
        raise RequestRejected(400, "the client left before the end of its request") from None
    return bytes(body)


def bearer_token(authorization: str) -> str:
    """The token of an `Authorization: Bearer` header; empty for any other header."""
    scheme, _, value = authorization.partition(" ")
    return value.strip() if scheme.lower() == "bearer" else ""
