"""The gateway over HTTP: routes, authorisation, error answers."""

import asyncio
import hmac
import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import wraps
from typing import TypeVar

from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from agents.gateway import answers
from agents.gateway.bodies import EndSession, OpenSession, read
from agents.gateway.generation import GenerationRequest
from agents.gateway.limits import GatewayLimits
from agents.gateway.policy import Answer, Policy
from agents.gateway.recording import Recording
from agents.gateway.requests import ChatRequest
from agents.gateway.response_answers import ResponseAnswer
from agents.gateway.responses import ResponsesRequest
from agents.gateway.sessions import PREFIX, GatewaySession, GatewaySessions
from envs.errors import WingspanError, describe
from envs.network.server import RequestRejected, bearer_token, json_response, read_body, reject_web_pages
from envs.redaction import register_secret

Handler = Callable[[Request], Awaitable[Response]]
M = TypeVar("M", bound=BaseModel)

_log = logging.getLogger(__name__)


def make_app(
    policy: Policy, sessions: GatewaySessions, *, limits: GatewayLimits, token: str | None
) -> Starlette:
    """The ASGI application. `token` opens all of it; a session's id opens that session's completions."""
    register_secret(token)
    handlers = _Handlers(policy, sessions, limits, token)
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
        routes=[
            Route(path, _with_errors(handler, path), methods=[method]) for method, path, handler in routes
        ],
        exception_handlers={HTTPException: _not_routed},
    )


@dataclass(frozen=True, slots=True)
class _Handlers:
    policy: Policy
    sessions: GatewaySessions
    limits: GatewayLimits
    token: str | None
    started_at: int = field(default_factory=lambda: int(time.time()))
    request_numbers: Iterator[int] = field(default_factory=itertools.count)

    async def health(self, _: Request) -> Response:
        return json_response({"status": "ok", "model": self.policy.name, "sessions": self.sessions.live})

    async def models(self, request: Request) -> Response:
        self._session_of(request)
        return json_response(answers.models(self.policy.name, created=self.started_at))

    async def open(self, request: Request) -> Response:
        self._check_token(request)
        body = await self._read(OpenSession, request)
        session = self.sessions.open(
            GatewaySession(
                policy=self.policy,
                item=body.item.item,
                url=str(request.base_url).rstrip("/"),
                sample_index=body.sample_index,
                max_turns=body.max_turns or self.limits.max_turns,
                expires=True,
                metadata=body.metadata,
            )
        )
        return json_response(
            {"id": session.session_id, "base_url": session.base_url, "api_key": session.api_key}
        )

    async def end(self, request: Request) -> Response:
        self._check_token(request)
        body = await self._read(EndSession, request)
        session = self.sessions.find(request.path_params["id"])
        self.sessions.end(session)
        if session.fault is not None:  # the episode lacks an answer, whatever its program made of it
            raise session.fault
        return json_response({"trajectory": session.trajectory(reward=body.reward, success=body.success)})

    async def chat(self, request: Request) -> Response:
        session = self._session_of(request)
        chat = await self._read(ChatRequest, request)
        answer = await self._answer(request, session, chat.to_generation())
        if chat.stream:
            usage = chat.stream_options.include_usage
            events = answers.events(answer, model=self.policy.name, include_usage=usage)
            return StreamingResponse(events, media_type="text/event-stream")
        return json_response(answers.completion(answer, model=self.policy.name))

    async def respond(self, request: Request) -> Response:
        session = self._session_of(request)
        body = await self._read(ResponsesRequest, request)
        created_at = time.time()
        histories = None if session is None else session.histories
        generation = body.to_generation(histories)
        answer = await self._answer(request, session, generation)
        response = ResponseAnswer(answer, body, created_at=created_at)
        if body.store and histories is not None:
            histories[response.response_id] = body.history_after(generation, answer.reading.as_turn)
        if body.stream:
            return StreamingResponse(response.events(), media_type="text/event-stream")
        return json_response(response.body())

    async def _read(self, model: type[M], request: Request) -> M:
        return read(model, await read_body(request, self.limits.max_body_bytes))

    async def _answer(
        self, request: Request, session: GatewaySession | None, generation: GenerationRequest
    ) -> Answer:
        if session is None:
            recording = Recording(f"plain-{next(self.request_numbers)}", self.policy.rendering)
            work = asyncio.create_task(self.policy.answer(generation, recording))
        else:
            work = session.answer(generation)
        return await _unless_gone(request, work)

    def _session_of(self, request: Request) -> GatewaySession | None:
        """The session that the path or the key names; None for a request outside sessions."""
        if "id" in request.path_params:
            return self.sessions.find(request.path_params["id"])
        key = bearer_token(request.headers.get("Authorization", ""))
        if key.startswith(PREFIX):
            return self.sessions.find(key)
        self._check_token(request)
        return None

    def _check_token(self, request: Request) -> None:
        if self.token is not None and not hmac.compare_digest(
            bearer_token(request.headers.get("Authorization", "")).encode(), self.token.encode()
        ):
            why = "a token is needed: 'Authorization: Bearer TOKEN', which clients send as the API key"
            raise RequestRejected(401, why, code="invalid_api_key")


async def _unless_gone(request: Request, work: "asyncio.Task[Answer]") -> Answer:
    """The result of `work`, which is cancelled if the client disconnects: an unread answer is no turn."""
    disconnect = asyncio.ensure_future(request.receive())  # after the body
    try:
        await asyncio.wait({work, disconnect}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        disconnect.cancel()
        was_running = work.cancel()
    if was_running:
        raise RequestRejected(400, "the client has left")
    if work.cancelled():
        raise RequestRejected(410, "the session was ended during this request", code="session_not_found")
    return work.result()


def _with_errors(handler: Handler, path: str) -> Handler:
    """`handler`, with an answer for every error. The log has the `path` of the route: a session's id, which
    opens the session, is not for it."""

    @wraps(handler)
    async def endpoint(request: Request) -> Response:
        try:
            reject_web_pages(request.headers)
            return await handler(request)
        except RequestRejected as rejection:
            return _error(rejection)
        except WingspanError as fault:
            _log.warning("%s: %s", path, fault)
            return _error(RequestRejected(500, str(fault)))
        except Exception as error:
            _log.exception("%s", path)
            return _error(RequestRejected(500, f"the gateway raised {describe(error)}"))

    return endpoint


async def _not_routed(request: Request, error: Exception) -> Response:
    """The answer where no route fits: 404 and 405."""
    assert isinstance(error, HTTPException)
    why = f"{request.method} {request.url.path}: {error.detail}; see docs/gateway.md"
    return _error(RequestRejected(error.status_code, why))


def _error(rejection: RequestRejected) -> Response:
    """The rejection in OpenAI's form. OpenAI's clients retry on 408, 409, 429 and from 500 on."""
    kind = "invalid_request_error" if rejection.status < 500 else "server_error"
    error = {"message": rejection.detail, "type": kind, "param": rejection.param, "code": rejection.code}
    return json_response({"error": error}, status=rejection.status)
