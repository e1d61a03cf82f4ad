"""The bodies of AgentGym's protocol: what its clients send (a session, an item, an action, under the names of
their environment), and what they read."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, create_model

from envs.remote.agentgym import Dialect
from envs.serve.sessions import MAX_ID

Number = Annotated[int, Field(ge=0, le=MAX_ID)]
"""Id of a session, or index of an item, as in `textcraft_12`."""


class SessionRequest(BaseModel):
    """A request about a session. Its fields have other names on the wire, as those of the next two."""

    session: Number


class ResetRequest(SessionRequest):
    """The start of an item."""

    index: Number


class StepRequest(SessionRequest):
    """An action."""

    action: str


@dataclass(frozen=True, slots=True)
class RequestModels:
    """The bodies of one environment's requests."""

    create: type[BaseModel]
    session: type[SessionRequest]
    """The body of `POST /close`, and the query of every GET."""
    reset: type[ResetRequest]
    step: type[StepRequest]


def request_models(dialect: Dialect, *, needs_index: bool) -> RequestModels:
    """The bodies in a dialect; `needs_index`: whether a reset without an index is rejected."""
    create: dict[str, Any] = {
        key: (Number, value) if isinstance(value, int) else (None, None)
        for key, value in dialect.create_body.items()
    }
    extras: dict[str, Any] = {key: (Literal[value], value) for key, value in dialect.reset_extras.items()}
    index = Field(... if needs_index else 0, alias=dialect.item_key)
    session = (Number, Field(alias=dialect.session_key))
    return RequestModels(
        create=create_model("Create", **create),
        session=create_model("Session", __base__=SessionRequest, session=session),
        reset=create_model("Reset", __base__=ResetRequest, session=session, index=(Number, index), **extras),
        step=create_model("Step", __base__=StepRequest, session=session),
    )


class CreateAnswer(BaseModel):
    """Answer to `POST /create`."""

    id: Number


class EpisodeState(BaseModel):
    """The fields of every answer about an episode."""

    observation: str
    reward: float
    done: bool


class ScoredState(EpisodeState):
    """Answer to a step."""

    score: float


class ResetAnswer(ScoredState):
    """Answer to a reset."""

    deleted: bool = False


class TextCraftReset(CreateAnswer, EpisodeState):
    """Answer to TextCraft's create, whose observation is empty here, and to its reset."""


class SciWorldReset(ResetAnswer):
    """Answer to SciWorld's reset, with the task apart from the observation."""

    task_name: str
    var_num: int
    task_description: str


class AlfWorldState(BaseModel):
    """The fields of every answer about an ALFWorld episode."""

    observation: str
    available_actions: list[str]


class AlfWorldReset(AlfWorldState, CreateAnswer):
    """Answer to ALFWorld's reset."""

    task_type: str
    """`<task>/<trial>`."""


class AlfWorldStep(AlfWorldState):
    """Answer to ALFWorld's step."""

    reward: float
    done: bool


class WebShopStep(BaseModel):
    """Answer to WebShop's step."""

    state: str
    reward: float
    done: bool
    info: None = None


class SearchQAStep(EpisodeState):
    """Answer to SearchQA's step."""

    info: None = None


class WebArenaCreate(BaseModel):
    """Answer to WebArena's create."""

    env_idx: Number


class WebArenaReset(BaseModel):
    """Answer to WebArena's reset."""

    observation: str
    """The page alone; `GET /observation` has the whole prompt."""
    sites: list[str]
    object: str
    """The intent of the item."""


class WebArenaStep(BaseModel):
    """Answer to WebArena's step."""

    observation: str
    reward: float
    terminated: bool
    truncated: bool
    info: None = None
