"""ALFWorld's, WebShop's, SearchQA's and WebArena's clients: they hear what the environment tells when asked.

An observation here ends with the actions that there are; AgentGym tells the two apart.
"""

from typing import Any

from pydantic import BaseModel

from envs.serve.agentgym import bodies
from envs.serve.agentgym.family import Created, Family, Look, asked, created, seen, steps, told
from envs.serve.sessions import EnvSession, EnvSessions
from envs.types import StepResult


class AlfWorldScene(BaseModel):
    """What every answer about an episode has."""

    observation: str
    available_actions: list[str]


class AlfWorldOpened(AlfWorldScene, Created):
    """Answer to a reset."""

    task_type: str
    """`<task>/<trial>`."""


class AlfWorldStepped(AlfWorldScene):
    """Answer to a step."""

    reward: float
    done: bool


class WebShopStepped(BaseModel):
    """Answer to a step."""

    state: str
    reward: float
    done: bool
    info: None = None


class SearchQAStepped(BaseModel):
    """Answer to a step."""

    observation: str
    reward: float
    done: bool
    info: None = None


class WebArenaCreated(BaseModel):
    """Answer to `POST /create`."""

    env_idx: bodies.SessionId


class WebArenaOpened(BaseModel):
    """Answer to a reset."""

    observation: str
    """The page alone; `GET /observation` has the whole prompt."""
    sites: list[str]
    object: str
    """What is asked for."""


class WebArenaStepped(BaseModel):
    """Answer to a step."""

    observation: str
    reward: float
    terminated: bool
    truncated: bool
    info: None = None


async def _alfworld_scene(sessions: EnvSessions, session: EnvSession) -> dict[str, Any]:
    return {
        "observation": await sessions.ask(session, "observation"),
        "available_actions": await sessions.ask(session, "available_actions"),
    }


async def _alfworld_opened(sessions: EnvSessions, session: EnvSession) -> AlfWorldOpened:
    return AlfWorldOpened(
        id=session.session_id,
        task_type=await sessions.ask(session, "task_type"),
        **await _alfworld_scene(sessions, session),
    )


async def _alfworld_stepped(
    sessions: EnvSessions, session: EnvSession, result: StepResult
) -> AlfWorldStepped:
    return AlfWorldStepped(
        reward=result.reward, done=session.done, **await _alfworld_scene(sessions, session)
    )


async def _alfworld_detail(sessions: EnvSessions, session: EnvSession) -> AlfWorldStepped:
    return AlfWorldStepped(
        reward=session.reward, done=session.done, **await _alfworld_scene(sessions, session)
    )


async def _webshop_opened(sessions: EnvSessions, session: EnvSession) -> list[str | None]:
    return [await sessions.ask(session, "observation"), None]


async def _webshop_stepped(sessions: EnvSessions, session: EnvSession, result: StepResult) -> WebShopStepped:
    state = await sessions.ask(session, "observation")
    return WebShopStepped(state=state, reward=result.reward, done=session.done)


async def _webshop_state(sessions: EnvSessions, session: EnvSession) -> dict[str, str]:
    html, instruction = [await sessions.ask(session, what) for what in ("html", "instruction_text")]
    return {"url": "", "html": html, "instruction_text": instruction}


async def _question(sessions: EnvSessions, session: EnvSession) -> str:
    """The prompt as a whole, which is what AgentGym's clients are shown."""
    sessions.touch(session)
    return f"{sessions.spec.instructions}\n\n{session.observation}"


def _searchqa_stepped(session: EnvSession, result: StepResult) -> SearchQAStepped:
    return SearchQAStepped(observation=result.observation, reward=result.reward, done=session.done)


async def _webarena_opened(sessions: EnvSessions, session: EnvSession) -> WebArenaOpened:
    return WebArenaOpened(
        observation=await sessions.ask(session, "page"),
        sites=await sessions.ask(session, "sites"),
        object=await sessions.ask(session, "intent"),
    )


def _webarena_stepped(session: EnvSession, result: StepResult) -> WebArenaStepped:
    return WebArenaStepped(
        observation=result.observation,
        reward=result.reward,
        terminated=result.terminated,
        truncated=result.truncated,
    )


def _number(session: EnvSession) -> int:
    return session.session_id


ALFWORLD = Family(
    reset=bodies.AlfWorldReset,
    created=created,
    created_answer=Created,
    opened=_alfworld_opened,
    opened_answer=AlfWorldOpened,
    stepped=_alfworld_stepped,
    stepped_answer=AlfWorldStepped,
    looks={
        "/observation": asked("observation", str),
        "/available_actions": asked("available_actions", list[str]),
        "/detail": Look(AlfWorldStepped, _alfworld_detail),
    },
)
WEBSHOP = Family(
    of_session=bodies.OfNumberedSession,
    reset=bodies.WebShopReset,
    step=bodies.NumberedStep,
    created=_number,
    created_answer=int,
    opened=_webshop_opened,
    opened_answer=list[str | None],
    stepped=_webshop_stepped,
    stepped_answer=WebShopStepped,
    looks={
        "/observation": asked("observation", str),
        "/available_actions": asked("available_actions"),
        "/instruction_text": asked("instruction_text", str),
        "/state": Look(dict[str, str], _webshop_state),
    },
)
SEARCHQA = Family(
    create=bodies.SearchQACreate,
    of_session=bodies.OfNumberedSession,
    reset=bodies.SearchQAReset,
    step=bodies.NumberedStep,
    created=_number,
    created_answer=int,
    opened=_question,
    opened_answer=str,
    stepped=steps(_searchqa_stepped),
    stepped_answer=SearchQAStepped,
    looks={"/observation": Look(str, _question)},
)
WEBARENA = Family(
    of_session=bodies.OfNumberedSession,
    reset=bodies.WebArenaReset,
    step=bodies.NumberedStep,
    created=lambda session: WebArenaCreated(env_idx=session.session_id),
    created_answer=WebArenaCreated,
    opened=_webarena_opened,
    opened_answer=WebArenaOpened,
    stepped=steps(_webarena_stepped),
    stepped_answer=WebArenaStepped,
    closed={"closed": "closed"},
    looks={"/observation": told(str, seen)},
)
