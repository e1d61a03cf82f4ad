"""Wingspan's own protocol on the client's side: the sessions on one server share WebSockets."""

import asyncio
import itertools
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from pydantic_core import from_json, to_json
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus, WebSocketException

from envs.errors import ConfigError, EnvCrashed, describe
from envs.remote.link import (
    CLOSE_TIMEOUT_S,
    CONNECT_TIMEOUT_S,
    ServerFull,
    ServerUnreachable,
    SessionLost,
    detail_of,
    fail,
    headers,
)
from envs.remote.wingspan import MAX_ANSWER_BYTES, MAX_BYTES_HEADER, PATH, batches
from envs.runtime.concurrency import take_turn
from envs.types import Item, StepResult

PING_S = 20.0
"""The time between two pings: proxies close connections that are idle, many after a minute."""
SESSIONS_PER_CONNECTION = 64
"""A balancer before several servers has connections to spread, and one that is lost costs few episodes."""


class Connections:
    """The connections of this process to one server; a new one is opened when all others are full."""

    def __init__(self, url: str, token: str | None, *, timeout_s: float) -> None:
        """`timeout_s`: what one request may take."""
        self._url = f"{url}{PATH}"
        self._headers = headers(token)
        self._timeout_s = timeout_s
        self._connections: list[_Connection] = []

    def make_link(self) -> "WingspanLink":
        """A session, on a connection of the running event loop that has room for it."""
        self._connections = [each for each in self._connections if each.is_usable]
        for connection in self._connections:
            if connection.sessions < SESSIONS_PER_CONNECTION:
                return WingspanLink(connection)
        connection = _Connection(self._url, self._headers, timeout_s=self._timeout_s)
        self._connections.append(connection)
        return WingspanLink(connection)


class WingspanLink:
    """A session by Wingspan's protocol."""

    def __init__(self, connection: "_Connection") -> None:
        self._connection = connection
        self._number = connection.add_session()
        self._is_open = True
        self.state: str | None = None
        """The key of the state that the last answer describes."""

    async def open(self) -> None:
        """Begin the session. Idempotent."""
        await self._connection.open()
        await self._ask({"type": "open"})

    async def reset(self, item: Item) -> str:
        """Start an episode; returns the first observation."""
        await self._connection.open()
        answer = await self._ask(
            {"type": "reset", "item_id": item.item_id, "seed": item.seed, "metadata": dict(item.metadata)}
        )
        return self._read(answer).observation

    async def step(self, action: str) -> StepResult:
        """Apply one action."""
        return self._read(await self._ask({"type": "step", "action": action}))

    async def close(self) -> None:
        """End the session; never raises. Idempotent."""
        if self._is_open:
            self._is_open = False
            await self._connection.remove_session(self._number)

    async def _ask(self, request: Mapping[str, object]) -> Mapping[str, Any]:
        return await self._connection.ask(self._number, request)

    def _read(self, answer: Mapping[str, Any]) -> StepResult:
        try:
            self.state = answer["state_key"]
            return StepResult(
                answer["observation"],
                answer["reward"],
                terminated=answer["terminated"],
                truncated=answer["truncated"],
                success=answer["success"],
                metrics=answer["metrics"],
            )
        except KeyError as error:
            raise self._connection.not_a_server(f"an answer without {error}") from None


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A request that is not answered yet."""

    answer: asyncio.Future[Mapping[str, Any]]
    deadline: float
    """By the event loop's clock."""
    request: str
    """Its type."""


class _Connection:
    """One WebSocket, from the opening of its first session to the end of its last.

    When it is lost, so are its sessions. It is used in the event loop in which it was made.
    """

    def __init__(self, url: str, request_headers: Mapping[str, str], *, timeout_s: float) -> None:
        self.url = url
        self.sessions = 0
        """Sessions that use it."""
        self._headers = request_headers
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._opening: asyncio.Task[None] | None = None
        self._socket: ClientConnection | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._loss: Callable[[], Exception] | None = None
        """Makes the error that ended it, for each session anew."""
        self._is_silent = False
        """Whether nothing has come since a request was given up: the server's machine may be gone."""
        self._max_bytes = 0
        self._session_numbers = itertools.count()
        self._request_ids = itertools.count()
        self._waiting: dict[int, _Waiting] = {}
        """By id, longest first: all wait for `timeout_s` at most."""
        self._timer: asyncio.TimerHandle | None = None
        """Looks for those that have waited too long: a timer for each request costs more than the request."""
        self._outgoing: list[bytes] = []
        self._has_outgoing = asyncio.Event()

    @property
    def is_usable(self) -> bool:
        """Whether sessions may be added."""
        return self._loss is None and not self._is_silent and self._is_of_this_loop

    @property
    def _is_of_this_loop(self) -> bool:
        return self._loop is asyncio.get_running_loop()

    def add_session(self) -> int:
        """The number of a new session, which the server opens at its first request."""
        self.sessions += 1
        return next(self._session_numbers)

    async def remove_session(self, number: int) -> None:
        """End a session, and the connection after the last one. Never raises."""
        self.sessions -= 1
        if not self._is_of_this_loop:
            return  # its event loop has ended, and its tasks with it
        if self.sessions == 0:
            self._lose(partial(SessionLost, "it was closed"))
            if self._opening is not None:
                self._opening.cancel()
            if self._socket is not None:
                try:
                    await self._socket.close()
                finally:  # cancelled while a server that hangs does not answer
                    self._socket.transport.abort()
        elif self._socket is not None and self._loss is None:
            self._send(number, {"type": "close"})

    async def open(self) -> None:
        """Connect if that was not done yet.

        Raises `ServerUnreachable`, `ServerFull`, `ConfigError`, or `SessionLost` in a later event loop.
        """
        if not self._is_of_this_loop:
            raise SessionLost("the event loop of its connection has ended")
        if self._socket is None:
            if self._opening is None:
                self._opening = asyncio.create_task(self._connect())
            await asyncio.shield(self._opening)  # others wait for it, too

    async def ask(self, number: int, request: Mapping[str, object]) -> Mapping[str, Any]:
        """The answer to a request of session `number`."""
        if self._loss is not None:
            raise self._loss()
        answer: asyncio.Future[Mapping[str, Any]] = self._loop.create_future()
        request_id = self._send(number, request)
        deadline = self._loop.time() + self._timeout_s
        self._waiting[request_id] = _Waiting(answer, deadline, str(request["type"]))
        if self._timer is None:
            self._timer = self._loop.call_at(deadline, self._check_deadlines)
        try:
            content = await answer
        except (asyncio.CancelledError, ServerUnreachable):
            self._is_silent = True
            raise
        finally:
            del self._waiting[request_id]
        if "error" in content:
            self._fail(content["error"], creates=request["type"] == "open")
        return content

    def not_a_server(self, what: str) -> ConfigError:
        """The error for an answer that no server of ours gives."""
        return ConfigError(f"{self.url} sends {what}: it is no Wingspan server")

    async def _connect(self) -> None:
        try:
            socket = await connect(
                f"ws{self.url.removeprefix('http')}",
                additional_headers=self._headers,
                open_timeout=min(CONNECT_TIMEOUT_S, self._timeout_s),
                close_timeout=CLOSE_TIMEOUT_S,
                ping_interval=PING_S,
                ping_timeout=None,  # `request_timeout_s` decides when a server counts as dead
                compression=None,
                max_size=MAX_ANSWER_BYTES,
                proxy=None,
            )
        except InvalidStatus as error:
            response = error.response
            self._lose(partial(SessionLost, describe(error)))
            fail(response.status_code, detail_of(response.body), url=self.url, creates=True)
        except (WebSocketException, TimeoutError, OSError) as error:
            self._lose(partial(SessionLost, describe(error)))
            raise ServerUnreachable(describe(error)) from error
        self._socket = socket
        assert socket.response is not None
        max_bytes = socket.response.headers.get(MAX_BYTES_HEADER, "")
        if not max_bytes.isdecimal():
            self._lose(partial(self.not_a_server, f"no header {MAX_BYTES_HEADER}"))
            raise self.not_a_server(f"no header {MAX_BYTES_HEADER}")
        self._max_bytes = int(max_bytes)
        self._tasks = [asyncio.create_task(self._read_answers()), asyncio.create_task(self._write())]

    def _send(self, number: int, request: Mapping[str, object]) -> int:
        """Queue a request; returns its id. What is queued in one pass of the event loop is one message."""
        request_id = next(self._request_ids)
        message = to_json({"id": request_id, "session": number, **request})
        if len(message) + 2 > self._max_bytes:
            raise ConfigError(
                f"{self.url}: a {request['type']} of {len(message)} bytes is larger than the server's "
                f"--max-body-bytes, {self._max_bytes}; serve with a larger one"
            )
        self._outgoing.append(message)
        self._has_outgoing.set()
        return request_id

    async def _write(self) -> None:
        assert self._socket is not None
        with suppress(WebSocketException):  # the reader notices, too
            while True:
                await self._has_outgoing.wait()
                self._has_outgoing.clear()
                messages, self._outgoing = self._outgoing, []
                for batch in batches(messages, max_bytes=self._max_bytes):
                    await self._socket.send(batch)

    async def _read_answers(self) -> None:
        assert self._socket is not None
        try:
            async for message in self._socket:
                self._is_silent = False
                await take_turn()  # a message may have many openings
                for answer in from_json(message):
                    waiting = self._waiting.get(answer["id"])  # None: who asked has given up
                    if waiting is not None and not waiting.answer.done():
                        waiting.answer.set_result(answer)
            # The server was stopped, or a proxy hung up: the next connection shows which.
            self._lose(partial(SessionLost, "the connection was closed"))
        except WebSocketException as error:
            self._lose(partial(SessionLost, describe(error)))
        except (ValueError, KeyError, TypeError):
            self._lose(partial(self.not_a_server, repr(message[:60])))

    def _check_deadlines(self) -> None:
        self._timer = None
        now = self._loop.time()
        for waiting in self._waiting.values():
            if waiting.deadline > now:
                self._timer = self._loop.call_at(waiting.deadline, self._check_deadlines)
                return
            if not waiting.answer.done():
                failure = f"{waiting.request}: no answer within {self._timeout_s:g} s"
                waiting.answer.set_exception(ServerUnreachable(failure))

    def _lose(self, make_error: Callable[[], Exception]) -> None:
        """End the connection for its sessions."""
        self._loss = make_error
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()
        if self._timer is not None:
            self._timer.cancel()
        for waiting in self._waiting.values():
            if not waiting.answer.done():
                waiting.answer.set_exception(make_error())

    def _fail(self, error: Any, *, creates: bool) -> NoReturn:
        try:
            status, detail = error["status"], str(error["detail"])
        except (KeyError, TypeError):
            raise self.not_a_server("an error without status and detail") from None
        match status:
            case 429:
                raise ServerFull(detail)
            case 404 | 410:
                raise SessionLost(detail)
            case 503:
                raise ServerUnreachable(detail)
            case 500 if creates:  # no environment can be made there
                raise ServerUnreachable(detail)
            case 422:
                raise ConfigError(f"{self.url}: {detail}")
            case _:
                raise EnvCrashed(f"{self.url}: {detail}")
