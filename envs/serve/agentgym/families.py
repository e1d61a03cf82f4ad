"""What AgentGym's clients of each environment want to hear, and what more they may ask."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from envs.agentgym import dialect_of
from envs.sciworld import place_of
from envs.serve.agentgym import bodies
from envs.serve.sessions import Session, Sessions
from envs.types import StepResult


class Created(BaseModel):
    """Answer to `POST /create`."""

    id: bodies.SessionId


class Scene(BaseModel):
    """What every answer about an episode has."""

    observation: str
    reward: float
    done: bool


class TextCraftCreated(Created, Scene):
    """TextCraft's create and reset: an instance plays from the start."""


class Scored(Scene):
    """Answer to a step of most others."""

    score: float


class Opened(Scored):
    """Answer to a reset of most others."""

    deleted: bool = False


class SciWorldOpened(Opened):
    """SciWorld's: the task apart from what is seen."""

    task_name: str
    var_num: int
    task_description: str


@dataclass(frozen=True, slots=True)
class Look:
    """A GET request about a session whose episode has begun."""

    answer: Any
    """Type of what `read` returns."""
    read: Callable[[Sessions, Session], Awaitable[object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One environment's clients."""

    create: type[bodies.Create] = bodies.Create
    of_session: type[bodies.OfSession] = bodies.OfSession
    """Body of `POST /close` and query of every look."""
    reset: type[bodies.Reset] = bodies.Reset
    step: type[bodies.Step] = bodies.Step
    plays_at_once: bool = False
    """Whether an instance plays an item, that of its own number, before it is reset."""
    created: Callable[[Session], object]
    created_answer: Any
    opened: Callable[[Sessions, Session], Awaitable[object]]
    opened_answer: Any
    stepped: Callable[[Sessions, Session, StepResult], Awaitable[object]]
    stepped_answer: Any
    closed: object = True
    looks: Mapping[str, Look]
    """By path."""


def family_of(env: str) -> Family:
    """Those of an environment; one that AgentGym does not have is spoken to as BabyAI is."""
    return _FAMILIES.get(env, _PLAIN)


def _created(session: Session) -> Created:
    return Created(id=session.session_id)


def _opened(session: Session) -> Opened:
    points = _points(session)
    return Opened(
        observation=session.observation,
        reward=_in_points(session.reward, points),
        done=session.done,
        score=_in_points(session.score, points),
    )


def _stepped(session: Session, result: StepResult) -> Scored:
    points = _points(session)
    return Scored(
        observation=result.observation,
        reward=_in_points(result.reward, points),
        done=session.done,
        score=_in_points(session.score, points),
    )


def _points(session: Session) -> float:
    assert session.item is not None
    return dialect_of(session.item.env).points


def _in_points(reward: float, points: float) -> float:
    return reward if points == 1 else round(points * reward, 6)


def _textcraft_opened(session: Session) -> TextCraftCreated:
    return TextCraftCreated(
        id=session.session_id, observation=session.observation, reward=session.reward, done=session.done
    )


def _textcraft_stepped(session: Session, result: StepResult) -> Scene:
    return Scene(observation=result.observation, reward=result.reward, done=session.done)


def _sciworld_opened(session: Session) -> SciWorldOpened:
    assert session.item is not None
    task, variation = place_of(session.item.index)
    described, _, seen = session.observation.partition("\n")
    return SciWorldOpened(
        **(_opened(session).model_dump() | {"observation": seen}),
        task_name=task.name,
        var_num=variation,
        task_description=described,
    )


def _asked(what: str, answer: Any = dict[str, Any]) -> Look:
    """A fact that the environment tells."""

    async def read(sessions: Sessions, session: Session) -> object:
        return await sessions.ask(session, what)

    return Look(answer, read)


def _told(answer: Any, tell: Callable[[Session], object]) -> Look:
    """What the session knows by itself."""

    async def read(sessions: Sessions, session: Session) -> object:
        sessions.touch(session)
        return tell(session)

    return Look(answer, read)


def _opens(tell: Callable[[Session], object]) -> Callable[[Sessions, Session], Awaitable[object]]:
    """A reset is answered by what the session knows by itself."""

    async def opened(_: Sessions, session: Session) -> object:
        return tell(session)

    return opened


def _steps(
    tell: Callable[[Session, StepResult], object],
) -> Callable[[Sessions, Session, StepResult], Awaitable[object]]:
    """A step is, too."""

    async def stepped(_: Sessions, session: Session, result: StepResult) -> object:
        return tell(session, result)

    return stepped


def _seen(session: Session) -> str:
    return session.observation


_PLAIN = Family(
    created=_created,
    created_answer=Created,
    opened=_opens(_opened),
    opened_answer=Opened,
    stepped=_steps(_stepped),
    stepped_answer=Scored,
    looks={"/observation": _told(Opened, _opened), "/detail": _told(Opened, _opened)},
)

_FAMILIES = {
    "textcraft": Family(
        create=bodies.TextCraftCreate,
        reset=bodies.TextCraftReset,
        plays_at_once=True,
        created=_textcraft_opened,
        created_answer=TextCraftCreated,
        opened=_opens(_textcraft_opened),
        opened_answer=TextCraftCreated,
        stepped=_steps(_textcraft_stepped),
        stepped_answer=Scene,
        looks={
            "/observation": _told(str, _seen),
            "/detail": _told(TextCraftCreated, _textcraft_opened),
        },
    ),
    "sciworld": Family(
        created=_created,
        created_answer=Created,
        opened=_opens(_sciworld_opened),
        opened_answer=SciWorldOpened,
        stepped=_steps(_stepped),
        stepped_answer=Scored,
        looks={
            "/observation": _told(str, _seen),
            "/detail": _told(SciWorldOpened, _sciworld_opened),
            "/action_hint": _asked("action_hint"),
            "/goals": _asked("goals"),
            "/task_description": _asked("task_description"),
            "/object_tree": _asked("object_tree"),
            "/state": _asked("state"),
        },
    ),
}
