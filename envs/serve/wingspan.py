"""Wingspan's own protocol, served."""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Literal

from pydantic import BaseModel, Field, RootModel
from pydantic_core import to_json
from starlette.websockets import WebSocket, WebSocketDisconnect

from envs.network.server import RequestRejected
from envs.remote.wingspan import MAX_ANSWER_BYTES, MAX_BYTES_HEADER, batches
from envs.runtime.concurrency import TURNS_PER_ITERATION, take_turn
from envs.serve.sessions import EnvSession, EnvSessions
from envs.serve.wire import fault_text, read_json, validate
from envs.types import StepResult

_PROTOCOL_ERROR = 1002
"""Close code of WebSockets (RFC 6455)."""
_MAX_REASON_BYTES = 123
"""Of a close frame (RFC 6455)."""
_MAX_UNSENT_BYTES = 1 << 20
"""Of answers that wait until the client reads those before them. With more, its requests are not read."""

_log = logging.getLogger(__name__)


class _Request(BaseModel):
    id: Annotated[int, Field(ge=0)]
    session: Annotated[int, Field(ge=0)]


class Open(_Request):
    """Begin a session."""

    type: Literal["open"]


class Reset(_Request):
    """Begin an episode."""

    type: Literal["reset"]
    item_id: Annotated[str, Field(max_length=255)]
    seed: Annotated[int, Field(ge=0)] = 0
    metadata: dict[str, object] = {}


class Step(_Request):
    """Apply an action."""

    type: Literal["step"]
    action: str


class Close(_Request):
    """End a session."""

    type: Literal["close"]


class Request(RootModel[Annotated[Open | Reset | Step | Close, Field(discriminator="type")]]):
    """A request of any type."""


class SharedConnection:
    """One WebSocket and its sessions."""

    def __init__(self, sessions: EnvSessions, socket: WebSocket, *, owner: str) -> None:
        self._sessions = sessions
        self._socket = socket
        self._owner = owner
        self._by_number: dict[int, EnvSession] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._outgoing: list[bytes] = []
        self._outgoing_bytes = 0
        self._has_outgoing = asyncio.Event()
        self._has_room = asyncio.Event()
        self._has_room.set()

    async def serve(self) -> None:
        """Answer until the client leaves, or sends what is no array of requests; then end its sessions."""
        limit = str(self._sessions.limits.max_body_bytes)
        await self._socket.accept(headers=[(MAX_BYTES_HEADER.lower().encode(), limit.encode())])
        reading = asyncio.create_task(self._read())
        writing = asyncio.create_task(self._write())
        try:
            # The writer ends first if the client leaves while its answers wait.
            await asyncio.wait({reading, writing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            tasks = [reading, writing, *self._tasks]
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await asyncio.gather(*map(self._sessions.close, self._by_number.values()))
        reason = None if reading.cancelled() else reading.result()
        if reason is not None:
            with suppress(WebSocketDisconnect):
                await self._socket.close(_PROTOCOL_ERROR, reason)
        if not writing.cancelled():
            writing.result()

    async def _read(self) -> str | None:
        """Carry requests out until the client leaves; returns why it must leave, if it has not left."""
        while True:
            await self._has_room.wait()
            event = await self._socket.receive()
            if event["type"] == "websocket.disconnect":
                return None
            try:
                requests = read_json(event.get("bytes") or event.get("text") or "")
                if not isinstance(requests, list):
                    raise RequestRejected(422, "a message is an array of requests")
                parsed = []
                for request in requests:
                    await take_turn()  # a message may have thousands
                    parsed.append(validate(Request, request, location="request").root)
            except RequestRejected as rejection:
                # Whose request it was, or whether it has an id, is unknown.
                reason = fault_text(rejection.detail).encode()[:_MAX_REASON_BYTES]
                return reason.decode(errors="ignore")
            for number, request in enumerate(parsed, start=1):
                task = asyncio.create_task(self._answer(request))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
                if number % TURNS_PER_ITERATION == 0:
                    await asyncio.sleep(0)

    async def _answer(self, request: Open | Reset | Step | Close) -> None:
        try:
            match request:
                case Open():
                    self._open(request.session)
                    message = _message(request.id, {})
                case Reset():
                    message = _message(request.id, await self._reset(request))
                case Step():
                    session = self._find(request.session)
                    result = await self._sessions.step(session, request.action)
                    message = _message(request.id, _answer(result, session))
                case Close():
                    closed = self._by_number.pop(request.session, None)
                    if closed is not None:
                        await self._sessions.close(closed)
                    return
        except RequestRejected as rejection:
            message = _message(request.id, _error(rejection.status, fault_text(rejection.detail)))
        except Exception as error:
            _log.exception("session %d: %s", request.session, request.type)
            message = _message(request.id, _error(500, f"the server failed: {type(error).__name__}"))
        self._outgoing.append(message)
        self._has_outgoing.set()
        self._outgoing_bytes += len(message)
        if self._outgoing_bytes > _MAX_UNSENT_BYTES:
            self._has_room.clear()

    async def _reset(self, request: Reset) -> Mapping[str, object]:
        item = self._sessions.find_item(
            request.item_id, field=("request", "item_id"), seed=request.seed, metadata=request.metadata
        )
        session = self._open(request.session)
        return _answer(StepResult(await self._sessions.reset(session, item), 0.0), session)

    def _open(self, number: int) -> EnvSession:
        session = self._by_number.get(number)
        if session is None or session.end.is_set():
            session = self._by_number[number] = self._sessions.open(self._owner)
        return session

    def _find(self, number: int) -> EnvSession:
        session = self._by_number.get(number)
        if session is None:
            raise RequestRejected(404, f"there is no session {number}; reset it")
        return self._sessions.find(session.id, self._owner)

    async def _write(self) -> None:
        with suppress(WebSocketDisconnect):  # the reader notices, too
            while True:
                await self._has_outgoing.wait()
                self._has_outgoing.clear()
                messages, self._outgoing, self._outgoing_bytes = self._outgoing, [], 0
                self._has_room.set()
                for batch in batches(messages, max_bytes=MAX_ANSWER_BYTES):
                    await self._socket.send_bytes(batch)


def _message(request_id: int, answer: Mapping[str, object]) -> bytes:
    message = to_json({"id": request_id, **answer})
    if len(message) + 2 > MAX_ANSWER_BYTES:
        raise RequestRejected(
            500, f"an answer of {len(message)} bytes; one has {MAX_ANSWER_BYTES - 2} at most"
        )
    return message


def _answer(result: StepResult, session: EnvSession) -> dict[str, object]:
    return {
        "observation": result.observation,
        "reward": result.reward,
        "terminated": result.terminated,
        "truncated": result.truncated,
        "success": result.success,
        "metrics": dict(result.metrics),
        "state_key": session.state_key,
    }


def _error(status: int, detail: str) -> dict[str, object]:
    # An exception's text may have what UTF-8 cannot encode.
    return {"error": {"status": status, "detail": detail.encode(errors="replace").decode()}}
