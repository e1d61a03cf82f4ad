"""The description of a server's interface, as OpenAPI 3.1."""

from dataclasses import dataclass
from typing import Any, TypeGuard

from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import models_json_schema

from envs.serve import mcp
from envs.serve import openenv_bodies as openenv
from envs.serve.agentgym.handlers import AgentGym

_REF = "#/components/schemas/{model}"


class Fault(BaseModel):
    """One wrong field."""

    loc: list[str | int]
    msg: str
    type: str


class Error(BaseModel):
    """Any answer that is no success."""

    detail: str | list[Fault]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Route:
    method: str
    path: str
    says: str
    body: tuple[type[BaseModel], ...] = ()
    """Any one of them."""
    query: type[BaseModel] | None = None
    returns: tuple[Any, ...] = (dict[str, Any],)
    """Types of its answer; any one of them."""
    needs_session: bool = False


def describe(env: str, gym: AgentGym, *, guarded: bool) -> dict[str, Any]:
    """The document; `guarded`: a token is asked for."""
    family = gym.family
    routes = [
        _Route(method="get", path="/", says="Name of the environment", returns=(str,)),
        _Route(
            method="post",
            path="/create",
            says="AgentGym: make an instance",
            body=(family.create,),
            returns=(family.created_answer,),
        ),
        _Route(
            method="post",
            path="/reset",
            says="AgentGym, OpenEnv: start an episode",
            body=(family.reset, openenv.HttpReset),
            returns=(family.opened_answer, openenv.Result),
            needs_session=True,
        ),
        _Route(
            method="post",
            path="/step",
            says="AgentGym, OpenEnv: carry out an action",
            body=(family.step, openenv.HttpStep),
            returns=(family.stepped_answer, openenv.Result),
            needs_session=True,
        ),
        _Route(
            method="post",
            path="/close",
            says="AgentGym: free an instance",
            body=(family.of_session,),
            returns=(type(family.closed) if not isinstance(family.closed, dict) else dict[str, str],),
            needs_session=True,
        ),
        *(
            _Route(
                method="get",
                path=path,
                says=f"AgentGym: {path.strip('/').replace('_', ' ')}",
                query=family.of_session,
                returns=(look.answer,),
                needs_session=True,
            )
            for path, look in family.looks.items()
            if path != "/state"
        ),
        _Route(
            method="get",
            path="/state",
            says="OpenEnv: where an episode stands",
            query=openenv.StateQuery,
            returns=(openenv.State,),
            needs_session=True,
        ),
        _Route(method="get", path="/schema", says="OpenEnv: JSON schemas", returns=(openenv.Schemas,)),
        _Route(method="get", path="/metadata", says="OpenEnv: what it is", returns=(openenv.Description,)),
        _Route(method="get", path="/health", says="OpenEnv: it answers", returns=(openenv.Health,)),
        _Route(
            method="post",
            path="/mcp",
            says="OpenEnv: its tools",
            body=(mcp.McpRequest,),
            returns=(mcp.McpResponse,),
        ),
        _Route(method="get", path="/openapi.json", says="This document"),
    ]
    kinds: set[Any] = {kind for route in routes for kind in (*route.body, *route.returns)}
    models: list[type[BaseModel]] = [Error, *(kind for kind in kinds if _is_model(kind))]
    _, schemas = models_json_schema([(model, "validation") for model in models], ref_template=_REF)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method] = _operation(route, guarded=guarded)
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": f"Wingspan environment {env}", "version": "1.0.0"},
        "paths": paths,
        "components": {"schemas": schemas["$defs"]},
    }
    if guarded:
        document["components"]["securitySchemes"] = {
            "bearer": {"type": "http", "scheme": "bearer"},
            "basic": {"type": "http", "scheme": "basic"},
        }
        document["security"] = [{"bearer": []}, {"basic": []}]
    return document


def _operation(route: _Route, *, guarded: bool) -> dict[str, Any]:
    refusals = {403: "a web page asked"}
    if guarded and route.path != "/health":
        refusals[401] = "no token, or a wrong one"
    if route.body or route.query:
        refusals[422] = "a field is wrong"
    if route.body:
        refusals[413] = "the body is too large"
        refusals[429] = "no more instances"
    if route.needs_session:
        refusals |= {404: "no such session", 409: "not now", 410: "the session is over"}
    failures = {500: "the environment failed", 503: "shutting down", 504: "the environment took too long"}
    operation: dict[str, Any] = {
        "summary": route.says,
        "responses": {
            "200": {"description": "done", "content": _json(*route.returns)},
            **{
                str(status): {"description": said, "content": _json(Error)}
                for status, said in (refusals | (failures if route.body else {})).items()
            },
        },
    }
    if route.body:
        operation["requestBody"] = {"required": True, "content": _json(*route.body)}
    if route.query is not None:
        operation["parameters"] = [
            {"name": name, "in": "query", "required": True, "schema": schema}
            for name, schema in route.query.model_json_schema()["properties"].items()
        ]
    return operation


def _json(*types: Any) -> dict[str, Any]:
    schemas = [
        {"$ref": _REF.format(model=kind.__name__)} if _is_model(kind) else TypeAdapter(kind).json_schema()
        for kind in types
    ]
    return {"application/json": {"schema": schemas[0] if len(schemas) == 1 else {"anyOf": schemas}}}


def _is_model(kind: object) -> TypeGuard[type[BaseModel]]:
    return isinstance(kind, type) and issubclass(kind, BaseModel)
