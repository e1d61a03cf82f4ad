"""The HTTP routes of a server: one table, from which FastAPI makes the OpenAPI document.

Requests do not pass through FastAPI: its dependency injection and response models cost more CPU than a step
(docs/decisions/0001-orchestration-and-dependencies.md).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
    body: Any = None
    """A model, or a union of models."""
    query: type[BaseModel] | None = None
    answer: Any = dict[str, Any]
    needs_session: bool = False


def protocol_routes(
    gym: AgentGym, openenv_handlers: OpenEnv, *, reset: Handler, step: Handler, state: Handler
) -> list[EnvRoute]:
    """Of both protocols; `reset`, `step` and `state` are those that choose between the two."""
    family = gym.family
    start, act = family.reset | openenv.HttpReset, family.step | openenv.HttpStep
    return [
        EnvRoute(
            "POST",
            "/create",
            gym.create,
            "AgentGym: make an instance",
            body=family.create,
            answer=family.created_answer,
        ),
        EnvRoute(
            "POST",
            "/reset",
            reset,
            "AgentGym, OpenEnv: start an episode",
            body=start,
            answer=Union[family.opened_answer, openenv.Result],  # noqa: UP007  # types are values here
            needs_session=True,
        ),
        EnvRoute(
            "POST",
            "/step",
            step,
            "AgentGym, OpenEnv: carry out an action",
            body=act,
            answer=Union[family.stepped_answer, openenv.Result],  # noqa: UP007
            needs_session=True,
        ),
        EnvRoute(
            "POST",
            "/close",
            gym.close,
            "AgentGym: free an instance",
            body=family.close,
            answer=bool if family.closed is True else dict[str, str],
            needs_session=True,
        ),
        *(
            EnvRoute(
                "GET",
                path,
                gym.answer_query,
                f"AgentGym: {path.strip('/').replace('_', ' ')}",
                query=family.close,
                answer=query.answer,
                needs_session=True,
            )
            for path, query in family.queries.items()
            if path != "/state"
        ),
        EnvRoute(
            "GET",
            "/state",
            state,
            "OpenEnv: where an episode stands",
            query=openenv.StateQuery,
            answer=openenv.State,
            needs_session=True,
        ),
        EnvRoute("GET", "/schema", openenv_handlers.schema, "OpenEnv: JSON schemas", answer=openenv.Schemas),
        EnvRoute(
            "GET",
            "/metadata",
            openenv_handlers.metadata,
            "OpenEnv: description of the environment",
            answer=openenv.Description,
        ),
        EnvRoute("GET", "/health", openenv_handlers.health, "OpenEnv: health check", answer=openenv.Health),
        EnvRoute("POST", "/mcp", mcp.mcp, "OpenEnv: its tools", body=mcp.McpRequest, answer=mcp.McpResponse),
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
