"""What AgentGym's clients read: the bodies of answers."""

from pydantic import BaseModel

from envs.serve.agentgym.requests import SessionId


class Created(BaseModel):
    """Answer to `POST /create`."""

    id: SessionId


class Scene(BaseModel):
    """The fields of every answer about an episode."""

    observation: str
    reward: float
    done: bool


class Scored(Scene):
    """Answer to a step."""

    score: float


class Opened(Scored):
    """Answer to a reset."""

    deleted: bool = False


class TextCraftOpened(Created, Scene):
    """Answer to TextCraft's create, whose observation is empty here, and to its reset."""


class SciWorldOpened(Opened):
    """Answer to SciWorld's reset, with the task apart from the observation."""

    task_name: str
    var_num: int
    task_description: str


class AlfWorldScene(BaseModel):
    """The fields of every answer about an ALFWorld episode."""

    observation: str
    available_actions: list[str]


class AlfWorldOpened(AlfWorldScene, Created):
    """Answer to ALFWorld's reset."""

    task_type: str
    """`<task>/<trial>`."""


class AlfWorldStepped(AlfWorldScene):
    """Answer to ALFWorld's step."""

    reward: float
    done: bool


class WebShopStepped(BaseModel):
    """Answer to WebShop's step."""

    state: str
    reward: float
    done: bool
    info: None = None


class SearchQAStepped(Scene):
    """Answer to SearchQA's step."""

    info: None = None


class WebArenaCreated(BaseModel):
    """Answer to WebArena's create."""

    env_idx: SessionId


class WebArenaOpened(BaseModel):
    """Answer to WebArena's reset."""

    observation: str
    """The page alone; `GET /observation` has the whole prompt."""
    sites: list[str]
    object: str
    """The intent of the item."""


class WebArenaStepped(BaseModel):
    """Answer to WebArena's step."""

    observation: str
    reward: float
    terminated: bool
    truncated: bool
    info: None = None
