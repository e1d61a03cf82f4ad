"""The bodies of OpenEnv's protocol, with texts for actions and observations."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

SessionId = Annotated[str, Field(pattern="^[0-9]{1,16}$")]


class Action(BaseModel):
    """An action; every action of OpenEnv has `metadata`, which has no effect here."""

    model_config = ConfigDict(extra="forbid")

    text: str
    metadata: dict[str, object] = {}


class Observation(BaseModel):
    """An observation and the state of the episode."""

    text: str
    terminated: bool = False
    truncated: bool = False
    success: bool = False
    metrics: dict[str, float] = {}


class State(BaseModel):
    """Where an episode stands."""

    episode_id: str | None
    step_count: int
    item_id: str | None


class Reset(BaseModel):
    """Parameters of a reset; as in OpenEnv, others may come with them and are not for this environment."""

    model_config = ConfigDict(extra="allow")

    seed: Annotated[int, Field(ge=0)] | None = None
    """With `item_id`, the item's seed; without, it selects a training item."""
    item_id: Annotated[str, Field(max_length=255)] | None = None
    """`<env>_<index>`; without it, a random training item."""
    metadata: dict[str, object] = {}
    """The item's, for an environment that reads it."""
    episode_id: Annotated[str, Field(max_length=255)] | None = None
    """The client's name of the episode, which `state` returns."""


class HttpReset(Reset):
    """Body of `POST /reset`."""

    session_id: SessionId | None = None
    """The session to start again; without it a new one is made."""


class HttpStep(BaseModel):
    """Body of `POST /step`."""

    action: Action
    session_id: SessionId
    timeout_s: Annotated[float, Field(gt=0)] | None = None
    """Seconds that the step may take, where that is less than the server allows."""


class StateQuery(BaseModel):
    """Query of `GET /state`."""

    session_id: SessionId


class Result(BaseModel):
    """Answer to a reset or a step."""

    observation: Observation
    reward: float | None
    done: bool
    metadata: dict[str, str] | None = None


class Message(BaseModel):
    """A message of a WebSocket client."""

    type: Literal["reset", "step", "state", "close"]
    data: dict[str, object] = {}


class Description(BaseModel):
    """Answer to `GET /metadata`."""

    name: str
    description: str


class Schemas(BaseModel):
    """Answer to `GET /schema`."""

    action: dict[str, object]
    observation: dict[str, object]
    state: dict[str, object]


class Health(BaseModel):
    """Answer to `GET /health`."""

    status: Literal["healthy"] = "healthy"
