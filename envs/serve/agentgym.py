"""AgentGym's protocol, served: what its clients for TextCraft, BabyAI and SciWorld send and read.

Other environments are spoken to as BabyAI is. Errors are told by status codes, where AgentGym answers 200
and `{"error": …}`, which its clients then die of.
"""

from typing import Annotated

from aiohttp import web
from pydantic import BaseModel, Field

from envs.agentgym import dialect_of
from envs.sciworld import place_of
from envs.serve.ids import MAX_ID
from envs.serve.sessions import Refused, Session, Sessions
from envs.serve.wire import OWNER, answer, body_of, checked
from envs.types import Item, StepResult

SessionId = Annotated[int, Field(ge=0, le=MAX_ID)]
Index = Annotated[int, Field(ge=0, le=MAX_ID)]
"""Place of an item, as in `textcraft_12`."""


class Create(BaseModel):
    """Body of `POST /create`; TextCraft's client names a game of its own here, always null."""

    commands: None = None
    goal: None = None


class Close(BaseModel):
    """Body of `POST /close`."""

    id: SessionId


class Reset(BaseModel):
    """Body of `POST /reset`."""

    id: SessionId
    data_idx: Index


class TextCraftReset(Reset):
    """TextCraft's may leave the index out."""

    data_idx: Index = 0


class Step(BaseModel):
    """Body of `POST /step`."""

    id: SessionId
    action: str


class Created(BaseModel):
    """Answer to `POST /create`."""

    id: SessionId


class Scene(BaseModel):
    """What every answer about an episode has."""

    observation: str
    reward: float
    done: bool


class TextCraftCreated(Created, Scene):
    """TextCraft's create and reset: an instance plays from the start."""


class Scored(Scene):
    """Answer to a step of all others."""

    score: float


class Opened(Scored):
    """Answer to a reset of all others."""

    deleted: bool = False


class SciWorldOpened(Opened):
    """SciWorld's: the task apart from what is seen."""

    task_name: str
    var_num: int
    task_description: str


class AgentGym:
    """The handlers, for one environment."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._env = sessions.spec.name
        self._points = dialect_of(self._env).points
        self._is_textcraft = self._env == "textcraft"

    @property
    def reset_body(self) -> type[Reset]:
        """The model of a reset."""
        return TextCraftReset if self._is_textcraft else Reset

    @property
    def answers(self) -> dict[str, object]:
        """Path → type of its answer, for the description of the interface."""
        if self._is_textcraft:
            return {
                "/create": TextCraftCreated,
                "/reset": TextCraftCreated,
                "/step": Scene,
                "/observation": str,
            }
        if self._env == "sciworld":
            return {"/create": Created, "/reset": SciWorldOpened, "/step": Scored, "/observation": str}
        return {"/create": Created, "/reset": Opened, "/step": Scored, "/observation": Opened}

    async def create(self, request: web.Request) -> web.Response:
        """Make an instance; TextCraft's starts item `id` at once."""
        checked(Create, await body_of(request))
        session = self._sessions.open(request[OWNER])
        if self._is_textcraft:
            await self._sessions.reset(session, self._item(session.session_id))
            return answer(self._opened(session))
        return answer(Created(id=session.session_id))

    async def reset(self, request: web.Request, body: object) -> web.Response:
        """Start an item on an instance."""
        wanted = checked(self.reset_body, body)
        session = self._find(wanted.id, request)
        await self._sessions.reset(session, self._item(wanted.data_idx))
        return answer(self._opened(session))

    async def step(self, request: web.Request, body: object) -> web.Response:
        """Carry out an action."""
        wanted = checked(Step, body)
        session = self._find(wanted.id, request)
        return answer(self._stepped(session, await self._sessions.step(session, wanted.action)))

    async def close(self, request: web.Request) -> web.Response:
        """Free an instance."""
        await self._sessions.close(self._find(checked(Close, await body_of(request)).id, request))
        return answer(True)

    async def observation(self, request: web.Request) -> web.Response:
        """What was last seen."""
        session = self._queried(request)
        if self.answers["/observation"] is str:
            return answer(session.observation)
        return answer(self._opened(session))

    async def detail(self, request: web.Request) -> web.Response:
        """What was last answered."""
        return answer(self._opened(self._queried(request)))

    def _queried(self, request: web.Request) -> Session:
        session = self._find(checked(Close, dict(request.query), place="query").id, request)
        if session.item is None:
            raise Refused(409, f"the episode of session {session.session_id} has not begun; reset it")
        return session

    def _find(self, session_id: int, request: web.Request) -> Session:
        return self._sessions.find(session_id, request[OWNER])

    def _item(self, index: int) -> Item:
        return Item(item_id=f"{self._env}_{index}", env=self._env)

    def _stepped(self, session: Session, result: StepResult) -> Scene:
        reward = self._in_points(result.reward)
        if self._is_textcraft:
            return Scene(observation=result.observation, reward=reward, done=session.done)
        return Scored(
            observation=result.observation,
            reward=reward,
            done=session.done,
            score=self._in_points(session.score),
        )

    def _opened(self, session: Session) -> BaseModel:
        assert session.item is not None
        if self._is_textcraft:
            return TextCraftCreated(
                id=session.session_id,
                observation=session.observation,
                reward=session.reward,
                done=session.done,
            )
        opened = Opened(
            observation=session.observation,
            reward=self._in_points(session.reward),
            done=session.done,
            score=self._in_points(session.score),
        )
        if self._env != "sciworld":
            return opened
        task, variation = place_of(session.item.index)
        described, _, seen = session.observation.partition("\n")
        return SciWorldOpened(
            **(opened.model_dump() | {"observation": seen}),
            task_name=task.name,
            var_num=variation,
            task_description=described,
        )

    def _in_points(self, reward: float) -> float:
        return reward if self._points == 1 else round(self._points * reward, 6)
