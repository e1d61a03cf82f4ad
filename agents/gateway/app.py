"""The gateway's HTTP side: routes, who may use them, and how errors are told."""

import asyncio
import hmac
import itertools
import logging
import time
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import TypeVar

from pydantic import BaseModel
from pydantic_core import to_json
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from agents.gateway import answers
from agents.gateway.bodies import EndSession, OpenSession, read
from agents.gateway.errors import RequestRejected
from agents.gateway.generation import Wanted
from agents.gateway.limits import GatewayLimits
from agents.gateway.policy import Answer, Policy
from agents.gateway.recording import Recording
from agents.gateway.requests import ChatRequest
from agents.gateway.response_answers import Response as ResponsesAnswer
from agents.gateway.response_store import NothingKept
from agents.gateway.responses import ResponsesRequest
from agents.gateway.sessions import PREFIX, GatewaySession, GatewaySessions
from envs.errors import WingspanError, describe
from envs.network.server import bearer_token, read_body
from envs.redaction import register_secret

Handler = Callable[[Request], Awaitable[Response]]
M = TypeVar("M", bound=BaseModel)

_log = logging.getLogger(__name__)


def make_app(
    policy: Policy, sessions: GatewaySessions, *, limits: GatewayLimits, token: str | None
) -> Starlette:
    """The ASGI application. `token` opens all of it; a session's id opens that session's completions."""
    handlers = _Handlers(policy, sessions, limits=limits, token=token)
    routes: list[tuple[str, str, Handler]] = [
        ("GET", "/health", handlers.health),
        ("GET", "/v1/models", handlers.models),
        ("POST", "/v1/chat/completions", handlers.chat),
        ("POST", "/v1/responses", handlers.respond),
        ("POST", "/sessions", handlers.open),
        ("POST", "/sessions/{id}/end", handlers.end),
        ("GET", "/sessions/{id}/v1/models", handlers.models),
        ("POST", "/sessions/{id}/v1/chat/completions", handlers.chat),
        ("POST", "/sessions/{id}/v1/responses", handlers.respond),
    ]
    return Starlette(
        routes=[Route(path, _told(handler), methods=[method]) for method, path, handler in routes],
        exception_handlers={HTTPException: _not_routed},
    )


class _Handlers:
    def __init__(
        self, policy: Policy, sessions: GatewaySessions, *, limits: GatewayLimits, token: str | None
    ) -> None:
        self._policy = policy
        self._sessions = sessions
        self._limits = limits
        self._token = token
        register_secret(token)
        self._since = int(time.time())
        self._plain = itertools.count()

    async def health(self, _: Request) -> Response:
        return _json({"status": "ok", "model": self._policy.name, "sessions": self._sessions.live})

    async def models(self, request: Request) -> Response:
        self._session_of(request)
        return _json(answers.models(self._policy.name, since=self._since))

    async def open(self, request: Request) -> Response:
        self._check_token(request)
        wanted = await self._read(OpenSession, request)
        session = self._sessions.open(
            wanted.item.item,
            url=str(request.base_url).rstrip("/"),
            sample_index=wanted.sample_index,
            max_turns=wanted.max_turns,
            expires=True,
            metadata=wanted.metadata,
        )
        return _json({"id": session.session_id, "base_url": session.base_url, "api_key": session.api_key})

    async def end(self, request: Request) -> Response:
        self._check_token(request)
        given = await self._read(EndSession, request)
        session = self._sessions.find(request.path_params["id"])
        self._sessions.end(session)
        return _json({"trajectory": session.trajectory(reward=given.reward, success=given.success)})

    async def chat(self, request: Request) -> Response:
        session = self._session_of(request)
        chat = await self._read(ChatRequest, request)
        answer = await self._answer(request, session, chat.wanted())
        if chat.stream:
            usage = chat.stream_options.include_usage
            told = answers.events(answer, model=self._policy.name, include_usage=usage)
            return StreamingResponse(told, media_type="text/event-stream")
        return _json(answers.completion(answer, model=self._policy.name))

    async def respond(self, request: Request) -> Response:
        session = self._session_of(request)
        asked = await self._read(ResponsesRequest, request)
        created_at = time.time()
        kept = NothingKept() if session is None else session.responses
        wanted = asked.wanted(kept)
        answer = await self._answer(request, session, wanted)
        told = ResponsesAnswer(answer, asked, created_at=created_at)
        if asked.store:
            kept.keep(told.response_id, asked.stored(wanted, answer.reading.said))
        if asked.stream:
            return StreamingResponse(told.events(), media_type="text/event-stream")
        return _json(told.body())

    async def _read(self, model: type[M], request: Request) -> M:
        return read(model, await read_body(request, self._limits.max_body_bytes))

    async def _answer(self, request: Request, session: GatewaySession | None, wanted: Wanted) -> Answer:
        if session is None:
            recording = Recording(f"plain-{next(self._plain)}", self._policy.rendering)
            work = asyncio.create_task(self._policy.answer(wanted, recording))
        else:
            work = session.answer(wanted)
        return await _unless_gone(request, work)

    def _session_of(self, request: Request) -> GatewaySession | None:
        """Whose request it is, by its path or its key; None for one that belongs to no session."""
        if "id" in request.path_params:
            return self._sessions.find(request.path_params["id"])
        key = bearer_token(request.headers.get("Authorization", ""))
        if key.startswith(PREFIX):
            return self._sessions.find(key)
        self._check_token(request)
        return None

    def _check_token(self, request: Request) -> None:
        if self._token is not None and not hmac.compare_digest(
            bearer_token(request.headers.get("Authorization", "")).encode(), self._token.encode()
        ):
            why = "a token is needed: 'Authorization: Bearer TOKEN', which clients send as the API key"
            raise RequestRejected(401, why, code="invalid_api_key")


async def _unless_gone(request: Request, work: "asyncio.Task[Answer]") -> Answer:
    """What `work` gives. It is broken off if the client leaves: what nobody has read is no turn."""
    gone = asyncio.ensure_future(request.receive())  # the body is read: the next message is the leaving
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
        left = work.cancel()
    if left:
        raise RequestRejected(400, "the client has left")
    if work.cancelled():
        raise RequestRejected(
            410, "the session was ended in the midst of this request", code="session_not_found"
        )
    return work.result()


def _told(handler: Handler) -> Handler:
    """`handler`, with what goes wrong as an answer."""

    @wraps(handler)
    async def answered(request: Request) -> Response:
        try:
            if "origin" in request.headers:
                # A page in somebody's browser can reach servers that the outside cannot.
                raise RequestRejected(403, "requests from web pages (header Origin) are not served")
            return await handler(request)
        except RequestRejected as refused:
            return _json(refused.body, status=refused.status)
        except HTTPException as large:
            return _json(RequestRejected(large.status_code, large.detail).body, status=large.status_code)
        except WingspanError as fault:
            _log.warning("%s: %s", request.url.path, fault)
            return _json(RequestRejected(500, str(fault)).body, status=500)
        except Exception as error:
            _log.exception("%s", request.url.path)
            return _json(RequestRejected(500, f"the gateway raised {describe(error)}").body, status=500)

    return answered


async def _not_routed(request: Request, error: Exception) -> Response:
    """Starlette's own: 404 and 405."""
    assert isinstance(error, HTTPException)
    why = f"{request.method} {request.url.path}: {error.detail}; see docs/gateway.md"
    return _json(RequestRejected(error.status_code, why).body, status=error.status_code)


def _json(content: object, *, status: int = 200) -> Response:
    return Response(to_json(content), status_code=status, media_type="application/json")
