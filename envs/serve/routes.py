"""The HTTP routes of a server: one table, from which FastAPI makes the OpenAPI document.

Requests do not pass through FastAPI: its dependency injection and response models cost more CPU than a step
(docs/decisions/0011-dependencies.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from inspect import Parameter, Signature
from typing import Annotated, Any, TypedDict

from fastapi import Query, Security
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from fastapi.security import HTTPBasic, HTTPBearer
from pydantic import BaseModel

from envs.registry import EnvSpec
from envs.serve import mcp
from envs.serve import openenv_bodies as openenv
from envs.serve.agentgym.families import Reader
from envs.serve.agentgym.handlers import AgentGym
from envs.serve.wire import Handler, HttpCall


class Fault(BaseModel):
    """One wrong field."""

    loc: list[str | int]
    msg: str
    type: str


class Error(BaseModel):
    """The body of every answer other than 200."""

    detail: str | list[Fault]


@dataclass(frozen=True, slots=True)
class EnvRoute:
    """One path and method, and what the OpenAPI document says of it."""

    method: str
    path: str
    handler: Handler
    summary: str
    answer: object = dict[str, object]
    """Type of the answer."""
    body: object = None
    """A model, or a union of models."""
    query: type[BaseModel] | None = None
    needs_session: bool = False


class _Request(TypedDict, total=False):
    body: object
    query: type[BaseModel]
    needs_session: bool


def constant(content: object) -> Handler:
    """A handler that always answers `content`."""

    async def handler(_: HttpCall) -> object:
        return content

    return handler


def protocol_routes(
    gym: AgentGym, spec: EnvSpec, *, reset: Handler, step: Handler, state: Handler
) -> list[EnvRoute]:
    """The routes of AgentGym's protocol and OpenEnv's; `reset`, `step` and `state` choose between the two."""
    family, models = gym.family, gym.models
    get, post = partial(EnvRoute, "GET"), partial(EnvRoute, "POST")
    create: _Request = {"body": models.create}
    close: _Request = {"body": models.session, "needs_session": True}
    start: _Request = {"body": models.reset | openenv.HttpReset, "needs_session": True}
    act: _Request = {"body": models.step | openenv.HttpStep, "needs_session": True}
    ask: _Request = {"query": models.session, "needs_session": True}
    look: _Request = {"query": openenv.StateQuery, "needs_session": True}
    create_answer, reset_answer, step_answer = map(
        _answer, (family.create_answer, family.reset_answer, family.step_answer)
    )
    close_answer = bool if family.close_answer is True else dict[str, str]
    description = openenv.Description(name=spec.name, description=spec.instructions)
    schemas = openenv.Schemas(
        action=openenv.Action.model_json_schema(),
        observation=openenv.Observation.model_json_schema(),
        state=openenv.State.model_json_schema(),
    )
    queries = {path: read for path, read in family.queries.items() if path != "/state"}
    return [
        post("/create", gym.create, "AgentGym: make an instance", create_answer, **create),
        post("/reset", reset, "AgentGym, OpenEnv: start an episode", reset_answer | openenv.Result, **start),
        post("/step", step, "AgentGym, OpenEnv: carry out an action", step_answer | openenv.Result, **act),
        post("/close", gym.close, "AgentGym: free an instance", close_answer, **close),
        *(
            get(path, gym.answer_query, f"AgentGym: {path[1:].replace('_', ' ')}", _answer(read), **ask)
            for path, read in queries.items()
        ),
        get("/state", state, "OpenEnv: where an episode stands", openenv.State, **look),
        get("/schema", constant(schemas), "OpenEnv: JSON schemas", openenv.Schemas),
        get("/metadata", constant(description), "OpenEnv: the environment", openenv.Description),
        get("/health", constant(openenv.Health()), "OpenEnv: health check", openenv.Health),
        post("/mcp", mcp.mcp, "OpenEnv: its tools", mcp.McpResponse, body=mcp.McpRequest),
    ]


def _answer(read: Reader) -> Any:
    return read.__annotations__["return"]


def make_openapi(env: str, routes: Sequence[EnvRoute], *, needs_token: bool) -> dict[str, object]:
    """The OpenAPI 3.1 document of `routes`."""
    return get_openapi(
        title=f"Wingspan environment {env}",
        version="1.0.0",
        openapi_version="3.1.0",
        routes=[_api_route(route, needs_token=needs_token and route.path != "/health") for route in routes],
        separate_input_output_schemas=False,
    )


def _api_route(route: EnvRoute, *, needs_token: bool) -> APIRoute:
    """The route with a function that has the parameters to be documented and is never called."""

    def endpoint() -> None:
        raise AssertionError("for the document only")

    types = {"body": route.body, "query": route.query and Annotated[route.query, Query()]}
    endpoint.__signature__ = Signature(  # type: ignore[attr-defined]
        [
            Parameter(name, Parameter.KEYWORD_ONLY, annotation=kind)
            for name, kind in types.items()
            if kind is not None
        ]
    )
    return APIRoute(
        route.path,
        endpoint,
        methods=[route.method],
        summary=route.summary,
        response_model=route.answer,
        response_description="success",
        responses={
            status: {"model": Error, "description": text}
            for status, text in _failures(route, needs_token=needs_token).items()
        },
        dependencies=[Security(HTTPBearer()), Security(HTTPBasic())] if needs_token else [],
    )


def _failures(route: EnvRoute, *, needs_token: bool) -> dict[int, str]:
    """Status → its meaning."""
    failures = {403: "the request came from a web page"}
    if needs_token:
        failures[401] = "the token is missing or wrong"
    if route.body or route.query:
        failures[422] = "a field is wrong"
    if route.needs_session:
        failures |= {404: "no such session", 409: "not now", 410: "the session is over"}
    if route.body:
        failures |= {
            413: "the body is too large",
            429: "no more instances",
            500: "the environment failed",
            503: "shutting down",
            504: "the environment took too long",
        }
    return failures
