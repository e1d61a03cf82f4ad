"""What AgentGym's clients send: a session, an item, an action, under the names of their environment."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, create_model

from envs.remote.agentgym import Dialect
from envs.serve.sessions import MAX_ID

Number = Annotated[int, Field(ge=0, le=MAX_ID)]
"""Id of a session, or index of an item, as in `textcraft_12`."""


@dataclass(frozen=True, slots=True)
class RequestModels:
    """The bodies of one environment's requests."""

    create: type[BaseModel]
    session: type[BaseModel]
    """Has a `session`, as the next two have: the body of `POST /close`, and the query of every GET."""
    reset: type[BaseModel]
    """Has an `index`."""
    step: type[BaseModel]
    """Has an `action`."""


def request_models(dialect: Dialect, *, needs_index: bool) -> RequestModels:
    """The bodies in a dialect; `needs_index`: whether a reset without an index is rejected."""
    create: dict[str, Any] = {
        key: (Number, value) if isinstance(value, int) else (None, None)
        for key, value in dialect.create_body.items()
    }
    extras: dict[str, Any] = {key: (Literal[value], value) for key, value in dialect.reset_extras.items()}
    index = Field(... if needs_index else 0, alias=dialect.item_key)
    session = create_model("Session", session=(Number, Field(alias=dialect.session_key)))
    return RequestModels(
        create=create_model("Create", **create),
        session=session,
        reset=create_model("Reset", __base__=session, index=(Number, index), **extras),
        step=create_model("Step", __base__=session, action=(str, ...)),
    )
