"""Wingspan's own protocol, served."""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, RootModel
from pydantic_core import to_json
from starlette.websockets import WebSocket, WebSocketDisconnect

from envs.network.server import RequestRejected
from envs.remote.wingspan import MAX_BYTES_HEADER
from envs.serve.sessions import EnvSession, EnvSessions
from envs.serve.wire import fault_text, read_json, validate
from envs.types import StepResult

_PROTOCOL_ERROR = 1002
"""Close code of WebSockets (RFC 6455)."""

_log = logging.getLogger(__name__)


class _Request(BaseModel):
    id: Annotated[int, Field(ge=0)]
    session: Annotated[int, Field(ge=0)]


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


class Request(RootModel[Annotated[Reset | Step | Close, Field(discriminator="type")]]):
    """A request of any type."""


class SharedConnection:
    """One WebSocket and its sessions."""

    def __init__(self, sessions: EnvSessions, socket: WebSocket, *, owner: str) -> None:
        self._sessions = sessions
        self._socket = socket
        self._owner = owner
        self._by_number: dict[int, EnvSession] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._outgoing: list[dict[str, Any]] = []
        self._has_outgoing = asyncio.Event()

    async def serve(self) -> None:
        """Answer until the client leaves; then end its sessions."""
        limit = str(self._sessions.limits.max_body_bytes)
        await self._socket.accept(headers=[(MAX_BYTES_HEADER.lower().encode(), limit.encode())])
        writing = asyncio.create_task(self._write())
        try:
            await self._read()
        finally:
            tasks = [writing, *self._tasks]
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await asyncio.gather(*map(self._sessions.close, self._by_number.values()))

    async def _read(self) -> None:
        while True:
            event = await self._socket.receive()
            if event["type"] == "websocket.disconnect":
                return
            try:
                requests = read_json(event.get("bytes") or event.get("text") or "")
                if not isinstance(requests, list):
                    raise RequestRejected(422, "a message is an array of requests")
                parsed = [validate(Request, request, location="request").root for request in requests]
            except RequestRejected as rejection:
                # Whose request it was, or whether it has an id, is unknown.
                with suppress(WebSocketDisconnect):
                    await self._socket.close(_PROTOCOL_ERROR, fault_text(rejection.detail)[:100])
                return
            for request in parsed:
                task = asyncio.create_task(self._answer(request))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _answer(self, request: Reset | Step | Close) -> None:
        try:
            match request:
                case Reset():
                    answer = await self._reset(request)
                case Step():
                    session = self._find(request.session)
                    answer = _answer(await self._sessions.step(session, request.action), session)
                case Close():
                    closed = self._by_number.pop(request.session, None)
                    if closed is not None:
                        await self._sessions.close(closed)
                    return
        except RequestRejected as rejection:
            answer = _error(rejection.status, fault_text(rejection.detail))
        except Exception as error:
            _log.exception("session %d: %s", request.session, request.type)
            answer = _error(500, f"the server failed: {type(error).__name__}")
        self._outgoing.append({"id": request.id, **answer})
        self._has_outgoing.set()

    async def _reset(self, request: Reset) -> Mapping[str, object]:
        item = self._sessions.find_item(
            request.item_id, field=("request", "item_id"), seed=request.seed, metadata=request.metadata
        )
        session = self._by_number.get(request.session)
        if session is None or session.end.is_set():
            session = self._by_number[request.session] = self._sessions.open(self._owner)
        return _answer(StepResult(await self._sessions.reset(session, item), 0.0), session)

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
                answers, self._outgoing = self._outgoing, []
                await self._socket.send_bytes(to_json(answers))


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
    return {"error": {"status": status, "detail": detail}}
