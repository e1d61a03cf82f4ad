"""How the clients of each of AgentGym's environments are answered."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from envs.builtin.sciworld import place_of
from envs.remote.agentgym import family_name
from envs.serve.agentgym import requests
from envs.serve.agentgym.responses import (
    AlfWorldOpened,
    AlfWorldStepped,
    Created,
    Opened,
    Scene,
    SciWorldOpened,
    Scored,
    SearchQAStepped,
    TextCraftOpened,
    WebArenaCreated,
    WebArenaOpened,
    WebArenaStepped,
    WebShopStepped,
)
from envs.serve.sessions import EnvSession, EnvSessions
from envs.types import StepResult

ReadSession = Callable[[EnvSessions, EnvSession], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class SessionQuery:
    """A GET request about a session whose episode has begun."""

    answer: Any
    """Type of what `read` returns."""
    read: ReadSession


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The clients of one environment."""

    create: type[requests.Create] = requests.Create
    close: type[requests.SessionRequest] = requests.SessionRequest
    """Body of `POST /close` and query of every GET."""
    reset: type[requests.SessionRequest] = requests.Reset
    """Has an `index`, too."""
    step: type[requests.SessionRequest] = requests.Step
    """Has an `action`, too."""
    item_number: Callable[[int], int] = int
    """From a request's number to an item's: upstream's server may accept more numbers than it has items."""
    resets_itself: bool = False
    """Whether a step or query before any reset starts the item with the session's own number."""
    created: Callable[[EnvSession], object]
    created_answer: Any
    opened: ReadSession
    opened_answer: Any
    stepped: Callable[[EnvSessions, EnvSession, StepResult], Awaitable[object]]
    stepped_answer: Any
    closed: object = True
    queries: Mapping[str, SessionQuery]
    """By path."""


def family_of(env: str) -> Family:
    """The family of an environment; one that AgentGym does not have is served as BabyAI is."""
    return _FAMILIES.get(family_name(env), _PLAIN)


def _inspect(fact: str, answer: Any = dict[str, Any]) -> SessionQuery:
    """A query for a fact that the environment gives (`Inspectable`)."""

    async def read(sessions: EnvSessions, session: EnvSession) -> object:
        return await sessions.inspect(session, fact)

    return SessionQuery(answer, read)


def _created(session: EnvSession) -> Created:
    return Created(id=session.session_id)


def _session_id(session: EnvSession) -> int:
    return session.session_id


async def _observation(sessions: EnvSessions, session: EnvSession) -> str:
    sessions.touch(session)
    return session.observation


async def _opened(sessions: EnvSessions, session: EnvSession) -> Opened:
    sessions.touch(session)
    return Opened(
        observation=session.observation, reward=session.reward, done=session.done, score=session.score
    )


async def _stepped(_: EnvSessions, session: EnvSession, result: StepResult) -> Scored:
    return Scored(
        observation=result.observation, reward=result.reward, done=session.done, score=session.score
    )


_PLAIN = Family(
    created=_created,
    created_answer=Created,
    opened=_opened,
    opened_answer=Opened,
    stepped=_stepped,
    stepped_answer=Scored,
    queries={"/observation": SessionQuery(Opened, _opened), "/detail": SessionQuery(Opened, _opened)},
)


def _textcraft_goal(number: int) -> int:
    """As AgentGym's server counts: after the last goal comes the first."""
    from envs.builtin.textcraft.world import goals

    return number % len(goals())


def _textcraft_created(session: EnvSession) -> TextCraftOpened:
    return TextCraftOpened(
        id=session.session_id, observation=session.observation, reward=session.reward, done=session.done
    )


async def _textcraft_opened(sessions: EnvSessions, session: EnvSession) -> TextCraftOpened:
    sessions.touch(session)
    return _textcraft_created(session)


async def _textcraft_stepped(_: EnvSessions, session: EnvSession, result: StepResult) -> Scene:
    return Scene(observation=result.observation, reward=result.reward, done=session.done)


_TEXTCRAFT = Family(
    create=requests.TextCraftCreate,
    reset=requests.TextCraftReset,
    item_number=_textcraft_goal,
    resets_itself=True,
    created=_textcraft_created,
    created_answer=TextCraftOpened,
    opened=_textcraft_opened,
    opened_answer=TextCraftOpened,
    stepped=_textcraft_stepped,
    stepped_answer=Scene,
    queries={
        "/observation": SessionQuery(str, _observation),
        "/detail": SessionQuery(TextCraftOpened, _textcraft_opened),
    },
)


async def _sciworld_opened(sessions: EnvSessions, session: EnvSession) -> SciWorldOpened:
    assert session.item is not None
    task, variation = place_of(session.item.index)
    description = (await sessions.inspect(session, "task_description"))["task_description"]
    return SciWorldOpened(
        observation=session.observation.removeprefix(f"{description}\n"),  # a step's does not begin with it
        done=session.done,
        task_name=task.name,
        var_num=variation,
        task_description=description,
        **await sessions.inspect(session, "points"),
    )


async def _sciworld_stepped(sessions: EnvSessions, session: EnvSession, result: StepResult) -> Scored:
    points = await sessions.inspect(session, "points")
    return Scored(observation=result.observation, done=session.done, **points)


_SCIWORLD = Family(
    created=_created,
    created_answer=Created,
    opened=_sciworld_opened,
    opened_answer=SciWorldOpened,
    stepped=_sciworld_stepped,
    stepped_answer=Scored,
    queries={
        "/observation": SessionQuery(str, _observation),
        "/detail": SessionQuery(SciWorldOpened, _sciworld_opened),
        **{
            f"/{fact}": _inspect(fact)
            for fact in ("action_hint", "goals", "task_description", "object_tree", "state")
        },
    },
)


async def _alfworld_scene(sessions: EnvSessions, session: EnvSession) -> dict[str, Any]:
    return {name: await sessions.inspect(session, name) for name in ("observation", "available_actions")}


async def _alfworld_opened(sessions: EnvSessions, session: EnvSession) -> AlfWorldOpened:
    return AlfWorldOpened(
        id=session.session_id,
        task_type=await sessions.inspect(session, "task_type"),
        **await _alfworld_scene(sessions, session),
    )


async def _alfworld_stepped(
    sessions: EnvSessions, session: EnvSession, result: StepResult
) -> AlfWorldStepped:
    scene = await _alfworld_scene(sessions, session)
    return AlfWorldStepped(reward=result.reward, done=session.done, **scene)


async def _alfworld_detail(sessions: EnvSessions, session: EnvSession) -> AlfWorldStepped:
    scene = await _alfworld_scene(sessions, session)
    return AlfWorldStepped(reward=session.reward, done=session.done, **scene)


_ALFWORLD = Family(
    reset=requests.AlfWorldReset,
    created=_created,
    created_answer=Created,
    opened=_alfworld_opened,
    opened_answer=AlfWorldOpened,
    stepped=_alfworld_stepped,
    stepped_answer=AlfWorldStepped,
    queries={
        "/observation": _inspect("observation", str),
        "/available_actions": _inspect("available_actions", list[str]),
        "/detail": SessionQuery(AlfWorldStepped, _alfworld_detail),
    },
)


async def _webshop_opened(sessions: EnvSessions, session: EnvSession) -> list[str | None]:
    return [await sessions.inspect(session, "observation"), None]


async def _webshop_stepped(sessions: EnvSessions, session: EnvSession, result: StepResult) -> WebShopStepped:
    state = await sessions.inspect(session, "observation")
    return WebShopStepped(state=state, reward=result.reward, done=session.done)


async def _webshop_state(sessions: EnvSessions, session: EnvSession) -> dict[str, str]:
    facts = {fact: await sessions.inspect(session, fact) for fact in ("html", "instruction_text")}
    return {"url": "", **facts}


_WEBSHOP = Family(
    close=requests.EnvIdxRequest,
    reset=requests.WebShopReset,
    step=requests.EnvIdxStep,
    created=_session_id,
    created_answer=int,
    opened=_webshop_opened,
    opened_answer=list[str | None],
    stepped=_webshop_stepped,
    stepped_answer=WebShopStepped,
    queries={
        "/observation": _inspect("observation", str),
        "/available_actions": _inspect("available_actions"),
        "/instruction_text": _inspect("instruction_text", str),
        "/state": SessionQuery(dict[str, str], _webshop_state),
    },
)


async def _searchqa_prompt(sessions: EnvSessions, session: EnvSession) -> str:
    """The whole prompt, instructions included, which is what AgentGym's clients are shown."""
    sessions.touch(session)
    return f"{sessions.spec.instructions}\n\n{session.observation}"


async def _searchqa_stepped(_: EnvSessions, session: EnvSession, result: StepResult) -> SearchQAStepped:
    return SearchQAStepped(observation=result.observation, reward=result.reward, done=session.done)


_SEARCHQA = Family(
    create=requests.SearchQACreate,
    close=requests.EnvIdxRequest,
    reset=requests.SearchQAReset,
    step=requests.EnvIdxStep,
    created=_session_id,
    created_answer=int,
    opened=_searchqa_prompt,
    opened_answer=str,
    stepped=_searchqa_stepped,
    stepped_answer=SearchQAStepped,
    queries={"/observation": SessionQuery(str, _searchqa_prompt)},
)


async def _webarena_opened(sessions: EnvSessions, session: EnvSession) -> WebArenaOpened:
    return WebArenaOpened(
        observation=await sessions.inspect(session, "page"),
        sites=await sessions.inspect(session, "sites"),
        object=await sessions.inspect(session, "intent"),
    )


async def _webarena_stepped(_: EnvSessions, __: EnvSession, result: StepResult) -> WebArenaStepped:
    return WebArenaStepped(
        observation=result.observation,
        reward=result.reward,
        terminated=result.terminated,
        truncated=result.truncated,
    )


_WEBARENA = Family(
    close=requests.EnvIdxRequest,
    reset=requests.WebArenaReset,
    step=requests.EnvIdxStep,
    created=lambda session: WebArenaCreated(env_idx=session.session_id),
    created_answer=WebArenaCreated,
    opened=_webarena_opened,
    opened_answer=WebArenaOpened,
    stepped=_webarena_stepped,
    stepped_answer=WebArenaStepped,
    closed={"closed": "closed"},
    queries={"/observation": SessionQuery(str, _observation)},
)

_FAMILIES = {
    "textcraft": _TEXTCRAFT,
    "sciworld": _SCIWORLD,
    "alfworld": _ALFWORLD,
    "searchqa": _SEARCHQA,
    "webarena": _WEBARENA,
    "webshop": _WEBSHOP,
}
