"""The HTTP routes of a server: one table, from which FastAPI makes the OpenAPI document.

Requests do not pass through FastAPI: its dependency injection and response models cost more CPU than a step
(docs/decisions/0001-orchestration-and-dependencies.md).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import Parameter, Signature
from typing import Annotated, Any, Union

from fastapi import Query, Security
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from fastapi.security import HTTPBasic, HTTPBearer
from pydantic import BaseModel

from envs.serve import mcp
from envs.serve import openenv_bodies as openenv
from envs.serve.agentgym.handlers import AgentGym
from envs.serve.openenv import OpenEnv
from envs.serve.wire import Handler


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
    answer: Any = dict[str, Any]
    """Type of the answer."""
    body: Any = None
    """A model, or a union of models."""
    query: type[BaseModel] | None = None
    needs_session: bool = False


def protocol_routes(
    gym: AgentGym, openenv_handlers: OpenEnv, *, reset: Handler, step: Handler, state: Handler
) -> list[EnvRoute]:
    """Of both protocols; `reset`, `step` and `state` are those that choose between the two."""
    family = gym.family
    get, post = partial(EnvRoute, "GET"), partial(EnvRoute, "POST")
    create: dict[str, Any] = {"body": family.create}
    close: dict[str, Any] = {"body": family.close, "needs_session": True}
    start: dict[str, Any] = {"body": family.reset | openenv.HttpReset, "needs_session": True}
    act: dict[str, Any] = {"body": family.step | openenv.HttpStep, "needs_session": True}
    ask: dict[str, Any] = {"query": family.close, "needs_session": True}
    opened: Any = Union[family.opened_answer, openenv.Result]  # noqa: UP007  # types are values here
    stepped: Any = Union[family.stepped_answer, openenv.Result]  # noqa: UP007
    closed = bool if family.closed is True else dict[str, str]
    queries = {path: query for path, query in family.queries.items() if path != "/state"}
    return [
        post("/create", gym.create, "AgentGym: make an instance", family.created_answer, **create),
        post("/reset", reset, "AgentGym, OpenEnv: start an episode", opened, **start),
        post("/step", step, "AgentGym, OpenEnv: carry out an action", stepped, **act),
        post("/close", gym.close, "AgentGym: free an instance", closed, **close),
        *(
            get(path, gym.answer_query, f"AgentGym: {path[1:].replace('_', ' ')}", query.answer, **ask)
            for path, query in queries.items()
        ),
        get(
            "/state",
            state,
            "OpenEnv: where an episode stands",
            openenv.State,
            query=openenv.StateQuery,
            needs_session=True,
        ),
        get("/schema", openenv_handlers.schema, "OpenEnv: JSON schemas", openenv.Schemas),
        get("/metadata", openenv_handlers.metadata, "OpenEnv: the environment", openenv.Description),
        get("/health", openenv_handlers.health, "OpenEnv: health check", openenv.Health),
        post("/mcp", mcp.mcp, "OpenEnv: its tools", mcp.McpResponse, body=mcp.McpRequest),
    ]


def make_openapi(env: str, routes: Sequence[EnvRoute], *, guarded: bool) -> dict[str, Any]:
    """The OpenAPI 3.1 document of `routes`; `guarded`: requests need a token."""
    return get_openapi(
        title=f"Wingspan environment {env}",
        version="1.0.0",
        openapi_version="3.1.0",
        routes=[_documented(route, guarded=guarded) for route in routes],
        separate_input_output_schemas=False,
    )


def _documented(route: EnvRoute, *, guarded: bool) -> APIRoute:
    guarded = guarded and route.path != "/health"
    return APIRoute(
        route.path,
        _signed(route),
        methods=[route.method],
        summary=route.summary,
        response_model=route.answer,
        response_description="success",
        responses={
            status: {"model": Error, "description": text}
            for status, text in _failures(route, guarded=guarded).items()
        },
        dependencies=[Security(HTTPBearer()), Security(HTTPBasic())] if guarded else [],
    )


def _signed(route: EnvRoute) -> Callable[[], None]:
    """A function with the parameters that FastAPI is to document; it is never called."""

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
    return endpoint


def _failures(route: EnvRoute, *, guarded: bool) -> dict[int, str]:
    """Status → its meaning."""
    failures = {403: "the request came from a web page"}
    if guarded:
        failures[401] = "the token is missing or wrong"
    if route.body or route.query:
        failures[422] = "a field is wrong"
    if route.body:
        failures |= {413: "the body is too large", 429: "no more instances"}
    if route.needs_session:
        failures |= {404: "no such session", 409: "not now", 410: "the session is over"}
    if route.body:
        failures |= {
            500: "the environment failed",
            503: "shutting down",
            504: "the environment took too long",
        }
    return failures
