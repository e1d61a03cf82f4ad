"""OpenEnv's protocol, served (`openenv` 0.x): text in, text out, over its WebSocket and its HTTP routes.

A WebSocket is a session and ends with it. OpenEnv's own HTTP routes forget everything between two requests;
here `POST /reset` answers with a `session_id` in `metadata`, by which the other routes go on.
"""

import asyncio
import logging
import random
from contextlib import suppress

from aiohttp import WSCloseCode, WSMsgType, web
from pydantic_core import to_json

from envs.serve.openenv_bodies import (
    Action,
    Description,
    Health,
    HttpReset,
    HttpStep,
    Message,
    Observation,
    Reset,
    Result,
    Schemas,
    State,
    StateQuery,
)
from envs.serve.sessions import EnvSession, EnvSessions, RequestRejected
from envs.serve.wire import OWNER, answer, checked, read_json
from envs.types import Item, StepResult

_CODES = {422: "VALIDATION_ERROR", 429: "CAPACITY_REACHED", 503: "CAPACITY_REACHED", 409: "SESSION_ERROR"}
"""Status → OpenEnv's word for it; all others are EXECUTION_ERROR."""


_log = logging.getLogger(__name__)


class OpenEnv:
    """The handlers, for one environment."""

    def __init__(self, sessions: EnvSessions) -> None:
        self._sessions = sessions
        self._spec = sessions.spec
        self._train = self._spec.split(0).train

    async def health(self, _: web.Request) -> web.Response:
        """The server answers."""
        return answer(Health())

    async def metadata(self, _: web.Request) -> web.Response:
        """Name of the environment and how to play it."""
        return answer(Description(name=self._spec.name, description=self._spec.instructions))

    async def schema(self, _: web.Request) -> web.Response:
        """JSON schemas of actions, observations and states."""
        return answer(
            Schemas(
                action=Action.model_json_schema(),
                observation=Observation.model_json_schema(),
                state=State.model_json_schema(),
            )
        )

    async def reset(self, request: web.Request, body: object) -> web.Response:
        """Start an episode, in a new session or a given one."""
        wanted = checked(HttpReset, body)
        item = self._item(wanted, place="body")
        if wanted.session_id is not None:
            session = self._sessions.find(int(wanted.session_id), request[OWNER])
            result = await self._reset(session, wanted, item)
        else:
            session = self._sessions.open(request[OWNER])
            try:
                result = await self._reset(session, wanted, item)
            except BaseException:
                await self._sessions.close(session)  # nobody knows its id
                raise
        result.metadata = {"session_id": str(session.session_id)}
        return answer(result)

    async def step(self, request: web.Request, body: object) -> web.Response:
        """Carry out an action."""
        wanted = checked(HttpStep, body)
        session = self._sessions.find(int(wanted.session_id), request[OWNER])
        step = self._sessions.step(session, wanted.action.text, timeout_s=wanted.timeout_s)
        return answer(_result(await step))

    async def state(self, request: web.Request) -> web.Response:
        """Where the episode stands."""
        wanted = checked(StateQuery, dict(request.query), place="query")
        session = self._sessions.find(int(wanted.session_id), request[OWNER])
        self._sessions.touch(session)
        return answer(_state(session))

    async def socket(self, request: web.Request) -> web.WebSocketResponse:
        """A session for as long as the connection lasts."""
        # Compression would cost more time than a step, and memory for every connection.
        socket = web.WebSocketResponse(compress=False, max_msg_size=self._sessions.limits.max_body_bytes)
        if not socket.can_prepare(request).ok:
            raise RequestRejected(426, "this path is for WebSocket connections")
        await socket.prepare(request)
        try:
            session = self._sessions.open(request[OWNER])
        except RequestRejected as refused:
            await _send(socket, _error(refused))
            await socket.close(code=WSCloseCode.TRY_AGAIN_LATER)
            return socket
        talk = _Talk(self, session, socket)
        try:
            await talk.last()
        finally:
            await self._sessions.close(session)
        return socket

    async def said(self, session: EnvSession, message: Message) -> dict[str, object]:
        """The answer to a message."""
        match message.type:
            case "reset":
                wanted = checked(Reset, message.data, place="data")
                result = await self._reset(session, wanted, self._item(wanted, place="data"))
            case "step":
                action = checked(Action, message.data, place="data")
                result = _result(await self._sessions.step(session, action.text))
            case "state":
                self._sessions.touch(session)
                return {"type": "state", "data": _state(session)}
        return {"type": "observation", "data": result}

    async def _reset(self, session: EnvSession, wanted: Reset, item: Item) -> Result:
        observation = await self._sessions.reset(session, item)
        session.episode_id = wanted.episode_id
        return Result(observation=Observation(text=observation), reward=None, done=False)

    def _item(self, wanted: Reset, *, place: str) -> Item:
        if wanted.item_id is None:
            return random.Random(wanted.seed).choice(self._train)
        name, _, index = wanted.item_id.rpartition("_")
        if name != self._spec.name or not (index.isascii() and index.isdecimal() and len(index) <= 16):
            fault = f"{wanted.item_id[:60]!r} is no item of {self._spec.name!r}, e.g. '{self._spec.name}_12'"
            raise RequestRejected(422, [{"loc": [place, "item_id"], "msg": fault, "type": "value_error"}])
        return self._sessions.item(
            int(index), field=(place, "item_id"), seed=wanted.seed or 0, metadata=wanted.metadata
        )


class _Talk:
    """One WebSocket: it is read all the time, so that pings are answered while the environment works."""

    def __init__(self, protocol: OpenEnv, session: EnvSession, socket: web.WebSocketResponse) -> None:
        self._protocol = protocol
        self._session = session
        self._socket = socket
        self._answering: asyncio.Task[None] | None = None

    async def last(self) -> None:
        """Answer messages until either side has had enough."""
        closing = asyncio.create_task(self._close_with_session())
        try:
            async for message in self._socket:
                if message.type not in (WSMsgType.TEXT, WSMsgType.BINARY):
                    break
                try:
                    if self._answering is not None and not self._answering.done():
                        raise RequestRejected(409, "the last message is not answered yet: one at a time")
                    said = _read(message.data)
                except RequestRejected as refused:
                    await _send(self._socket, _error(refused))
                    continue
                if said.type == "close":
                    break
                self._answering = asyncio.create_task(self._answer(said))
        finally:
            closing.cancel()
            if self._answering is not None:
                self._answering.cancel()
                await asyncio.wait([self._answering])

    async def _answer(self, message: Message) -> None:
        try:
            answered = await self._protocol.said(self._session, message)
        except RequestRejected as refused:
            answered = _error(refused)
        except Exception as error:
            _log.exception("message %s", message.type)
            answered = _error(RequestRejected(500, f"the server failed: {type(error).__name__}"))
        await _send(self._socket, answered)

    async def _close_with_session(self) -> None:
        await self._session.ended.wait()
        if self._answering is not None:
            await asyncio.wait([self._answering])  # it tells why
        await self._socket.close(code=WSCloseCode.GOING_AWAY)


def _read(raw: bytes | str) -> Message:
    said = read_json(raw)
    if isinstance(said, dict) and said.get("type") not in ("reset", "step", "state", "close"):
        fault = f"{str(said.get('type'))[:60]!r} is not reset, step, state or close"
        raise RequestRejected(422, [{"loc": ["type"], "msg": fault, "type": "unknown_type"}])
    return checked(Message, said, place="message")


def _error(refused: RequestRejected) -> dict[str, object]:
    """In OpenEnv's form."""
    if not isinstance(refused.detail, list):
        code = _CODES.get(refused.status, "EXECUTION_ERROR")
        return {"type": "error", "data": {"message": refused.detail, "code": code}}
    told = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in refused.detail)
    code = {"json_invalid": "INVALID_JSON", "unknown_type": "UNKNOWN_TYPE"}.get(
        refused.detail[0]["type"], "VALIDATION_ERROR"
    )
    return {"type": "error", "data": {"message": told, "code": code, "errors": refused.detail}}


async def _send(socket: web.WebSocketResponse, content: object) -> None:
    with suppress(ConnectionError):  # the peer has gone; the reader notices, too
        await socket.send_str(to_json(content).decode())


def _result(result: StepResult) -> Result:
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
    )


def _state(session: EnvSession) -> State:
    return State(
        episode_id=session.episode_id,
        step_count=session.steps,
        item_id=session.item.item_id if session.item else None,
    )
