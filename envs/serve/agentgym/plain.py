"""TextCraft's, BabyAI's and SciWorld's clients."""

from pydantic import BaseModel

from envs.builtin.sciworld import place_of
from envs.serve.agentgym import bodies
from envs.serve.agentgym.family import Created, Family, Look, asked, created, opens, seen, steps, told
from envs.serve.sessions import EnvSession, EnvSessions
from envs.types import StepResult


class Scene(BaseModel):
    """What every answer about an episode has."""

    observation: str
    reward: float
    done: bool


class TextCraftCreated(Created, Scene):
    """TextCraft's create, whose observation is empty here, and its reset."""


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


def _opened(session: EnvSession) -> Opened:
    return Opened(
        observation=session.observation, reward=session.reward, done=session.done, score=session.score
    )


def _stepped(session: EnvSession, result: StepResult) -> Scored:
    return Scored(
        observation=result.observation, reward=result.reward, done=session.done, score=session.score
    )


def _textcraft_goal(number: int) -> int:
    """As AgentGym's server counts: after the last goal comes the first."""
    from envs.builtin.textcraft.world import goals

    return number % len(goals())


def _textcraft_opened(session: EnvSession) -> TextCraftCreated:
    return TextCraftCreated(
        id=session.session_id, observation=session.observation, reward=session.reward, done=session.done
    )


def _textcraft_stepped(session: EnvSession, result: StepResult) -> Scene:
    return Scene(observation=result.observation, reward=result.reward, done=session.done)


async def _sciworld_opened(sessions: EnvSessions, session: EnvSession) -> SciWorldOpened:
    assert session.item is not None
    task, variation = place_of(session.item.index)
    described = (await sessions.ask(session, "task_description"))["task_description"]
    return SciWorldOpened(
        observation=session.observation.removeprefix(f"{described}\n"),  # a step's does not begin with it
        done=session.done,
        task_name=task.name,
        var_num=variation,
        task_description=described,
        **await sessions.ask(session, "points"),
    )


async def _sciworld_stepped(sessions: EnvSessions, session: EnvSession, result: StepResult) -> Scored:
    points = await sessions.ask(session, "points")
    return Scored(observation=result.observation, done=session.done, **points)


PLAIN = Family(
    created=created,
    created_answer=Created,
    opened=opens(_opened),
    opened_answer=Opened,
    stepped=steps(_stepped),
    stepped_answer=Scored,
    looks={"/observation": told(Opened, _opened), "/detail": told(Opened, _opened)},
)
TEXTCRAFT = Family(
    create=bodies.TextCraftCreate,
    reset=bodies.TextCraftReset,
    number_of=_textcraft_goal,
    begins_unasked=True,
    created=_textcraft_opened,
    created_answer=TextCraftCreated,
    opened=opens(_textcraft_opened),
    opened_answer=TextCraftCreated,
    stepped=steps(_textcraft_stepped),
    stepped_answer=Scene,
    looks={"/observation": told(str, seen), "/detail": told(TextCraftCreated, _textcraft_opened)},
)
SCIWORLD = Family(
    created=created,
    created_answer=Created,
    opened=_sciworld_opened,
    opened_answer=SciWorldOpened,
    stepped=_sciworld_stepped,
    stepped_answer=Scored,
    looks={
        "/observation": told(str, seen),
        "/detail": Look(SciWorldOpened, _sciworld_opened),
        "/action_hint": asked("action_hint"),
        "/goals": asked("goals"),
        "/task_description": asked("task_description"),
        "/object_tree": asked("object_tree"),
        "/state": asked("state"),
    },
)
