"""OpenEnv's protocol, served (`openenv` 0.x): text in, text out, over its WebSocket and its HTTP routes.

A WebSocket is a session and ends with it. OpenEnv's own HTTP routes forget everything between two requests;
here `POST /reset` answers with a `session_id` in `metadata`, by which the other routes go on.
"""

import asyncio
import logging
import random
from contextlib import suppress
from dataclasses import replace

from pydantic_core import to_json
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from envs.network.server import RequestRejected
from envs.serve.openenv_bodies import (
    Action,
    HttpReset,
    HttpStep,
    Message,
    Observation,
    Reset,
    Result,
    State,
    StateQuery,
)
from envs.serve.sessions import EnvSession, EnvSessions
from envs.serve.wire import HttpCall, fault_text, read_json, validate
from envs.types import Item, StepResult

_CODES = {422: "VALIDATION_ERROR", 429: "CAPACITY_REACHED", 503: "CAPACITY_REACHED", 409: "SESSION_ERROR"}
"""Status → OpenEnv's word for it; all others are EXECUTION_ERROR."""
_NORMAL, _GOING_AWAY, _TRY_AGAIN_LATER = 1000, 1001, 1013
"""Close codes of WebSockets (RFC 6455 and IANA's registry)."""

_log = logging.getLogger(__name__)


class OpenEnv:
    """The handlers, for one environment."""

    def __init__(self, sessions: EnvSessions) -> None:
        self._sessions = sessions
        self._spec = sessions.spec
        self._train = self._spec.make_split(0).train

    async def reset(self, call: HttpCall) -> object:
        """`POST /reset`: start an episode, in a new session or the one that the body names."""
        request = validate(HttpReset, call.body)
        item = self._item(request, location="body")
        if request.session_id is not None:
            session = self._sessions.find(int(request.session_id), call.owner)
            result = await self._reset(session, request, item)
        else:
            session = self._sessions.open(call.owner)
            try:
                result = await self._reset(session, request, item)
            except BaseException:
                await self._sessions.close(session)  # nobody knows its id
                raise
        result.metadata = {"session_id": str(session.id), **(result.metadata or {})}
        return result

    async def step(self, call: HttpCall) -> object:
        """`POST /step`: carry out an action."""
        request = validate(HttpStep, call.body)
        session = self._sessions.find(int(request.session_id), call.owner)
        result = await self._sessions.step(session, request.action.text, timeout_s=request.timeout_s)
        return _result(result, session)

    async def state(self, call: HttpCall) -> object:
        """`GET /state`: where the episode stands."""
        query = validate(StateQuery, dict(call.query), location="query")
        session = self._sessions.find(int(query.session_id), call.owner)
        self._sessions.touch(session)
        return _state(session)

    async def talk(self, socket: WebSocket, owner: str) -> None:
        """A session for as long as the WebSocket lasts."""
        await socket.accept()
        try:
            session = self._sessions.open(owner)
        except RequestRejected as rejection:
            await _send(socket, _error(rejection))
            await socket.close(code=_TRY_AGAIN_LATER)
            return
        try:
            await _Connection(self, session, socket).serve()
        finally:
            await self._sessions.close(session)

    async def answer_message(self, session: EnvSession, message: Message) -> dict[str, object]:
        """The answer to a message."""
        match message.type:
            case "reset":
                request = validate(Reset, message.data, location="data")
                result = await self._reset(session, request, self._item(request, location="data"))
            case "step":
                action = validate(Action, message.data, location="data")
                result = _result(await self._sessions.step(session, action.text), session)
            case "state":
                self._sessions.touch(session)
                return {"type": "state", "data": _state(session)}
        return {"type": "observation", "data": result}

    async def _reset(self, session: EnvSession, request: Reset, item: Item) -> Result:
        observation = await self._sessions.reset(session, item)
        session.episode_id = request.episode_id
        return Result(
            observation=Observation(text=observation), reward=None, done=False, metadata=_metadata(session)
        )

    def _item(self, request: Reset, *, location: str) -> Item:
        if request.item_id is None:
            item = random.Random(request.seed).choice(self._train)
            return replace(item, metadata={**item.metadata, **request.metadata})
        return self._sessions.find_item(
            request.item_id, field=(location, "item_id"), seed=request.seed or 0, metadata=request.metadata
        )


class _Connection:
    """One WebSocket. It is read while the environment works, to notice that the client has gone."""

    def __init__(self, protocol: OpenEnv, session: EnvSession, socket: WebSocket) -> None:
        self._protocol = protocol
        self._session = session
        self._socket = socket
        self._answering: asyncio.Task[None] | None = None

    async def serve(self) -> None:
        """Answer messages until the client leaves or the session ends."""
        reading = asyncio.create_task(self._read_messages())
        ending = asyncio.create_task(self._session.end.wait())
        try:
            await asyncio.wait({reading, ending}, return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                await reading
                await self._close(_NORMAL)
            else:
                if self._answering is not None:
                    await asyncio.wait([self._answering])  # it says why the session ended
                await self._close(_GOING_AWAY)
        finally:
            tasks = [task for task in (reading, ending, self._answering) if task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _read_messages(self) -> None:
        while True:
            event = await self._socket.receive()
            if event["type"] == "websocket.disconnect":
                return
            try:
                if self._answering is not None and not self._answering.done():
                    raise RequestRejected(409, "the last message is not answered yet: one at a time")
                message = _read(event.get("text") or event.get("bytes") or "")
            except RequestRejected as rejection:
                await _send(self._socket, _error(rejection))
                continue
            if message.type == "close":
                return
            self._answering = asyncio.create_task(self._answer(message))

    async def _answer(self, message: Message) -> None:
        try:
            answer = await self._protocol.answer_message(self._session, message)
        except RequestRejected as rejection:
            answer = _error(rejection)
        except Exception as error:
            _log.exception("message %s", message.type)
            answer = _error(RequestRejected(500, f"the server failed: {type(error).__name__}"))
        await _send(self._socket, answer)

    async def _close(self, code: int) -> None:
        if self._socket.client_state is WebSocketState.CONNECTED:
            with suppress(WebSocketDisconnect, RuntimeError):  # it was closed meanwhile
                await self._socket.close(code=code)


def _read(raw: bytes | str) -> Message:
    content = read_json(raw)
    if isinstance(content, dict) and content.get("type") not in ("reset", "step", "state", "close"):
        fault = f"{str(content.get('type'))[:60]!r} is not reset, step, state or close"
        raise RequestRejected(422, [{"loc": ["type"], "msg": fault, "type": "unknown_type"}])
    return validate(Message, content, location="message")


def _error(rejection: RequestRejected) -> dict[str, object]:
    """An error in OpenEnv's form."""
    if not isinstance(rejection.detail, list):
        code = _CODES.get(rejection.status, "EXECUTION_ERROR")
        return {"type": "error", "data": {"message": rejection.detail, "code": code}}
    text = fault_text(rejection.detail)
    code = {"json_invalid": "INVALID_JSON", "unknown_type": "UNKNOWN_TYPE"}.get(
        rejection.detail[0]["type"], "VALIDATION_ERROR"
    )
    return {"type": "error", "data": {"message": text, "code": code, "errors": rejection.detail}}


async def _send(socket: WebSocket, content: object) -> None:
    with suppress(WebSocketDisconnect):  # the reader notices, too
        await socket.send_text(to_json(content).decode())


def _metadata(session: EnvSession) -> dict[str, str] | None:
    """`state_key`, by which a training client recognises states; None where there is none."""
    key = session.state_key
    return None if key is None else {"state_key": key}


def _result(result: StepResult, session: EnvSession) -> Result:
    return Result(
        observation=Observation(
            text=result.observation,
            terminated=result.terminated,
            truncated=result.truncated,
            success=result.success,
            metrics=dict(result.metrics),
        ),
        reward=result.reward,
        done=result.terminated or result.truncated,
        metadata=_metadata(session),
    )


def _state(session: EnvSession) -> State:
    return State(
        episode_id=session.episode_id,
        step_count=session.steps,
        item_id=session.item.item_id if session.item else None,
    )
