"""What AgentGym's clients read: the bodies of answers."""

from pydantic import BaseModel

from envs.serve.agentgym.requests import Number


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
