"""How one environment's clients are spoken to: what they send, what they are told, what they may ask."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from envs.serve.agentgym import bodies
from envs.serve.sessions import EnvSession, EnvSessions
from envs.types import StepResult


class Created(BaseModel):
    """Answer to `POST /create`."""

    id: bodies.SessionId


@dataclass(frozen=True, slots=True)
class Look:
    """A GET request about a session whose episode has begun."""

    answer: Any
    """Type of what `read` returns."""
    read: Callable[[EnvSessions, EnvSession], Awaitable[object]]


def _as_asked(number: int) -> int:
    return number


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One environment's clients."""

    create: type[bodies.Create] = bodies.Create
    of_session: type[bodies.OfSession] = bodies.OfSession
    """Body of `POST /close` and query of every look."""
    reset: type[bodies.OfSession] = bodies.Reset
    """Has an `index`, too."""
    step: type[bodies.OfSession] = bodies.Step
    """Has an `action`, too."""
    number_of: Callable[[int], int] = _as_asked
    """The number of the item that is played where clients ask for another: upstream's server may take more
    numbers than it has items."""
    begins_unasked: bool = False
    """Whether an instance that is stepped or looked at before any reset begins the item of its own number."""
    created: Callable[[EnvSession], object]
    created_answer: Any
    opened: Callable[[EnvSessions, EnvSession], Awaitable[object]]
    opened_answer: Any
    stepped: Callable[[EnvSessions, EnvSession, StepResult], Awaitable[object]]
    stepped_answer: Any
    closed: object = True
    looks: Mapping[str, Look]
    """By path."""


def created(session: EnvSession) -> Created:
    """What most clients are told of a new instance."""
    return Created(id=session.session_id)


def asked(what: str, answer: Any = dict[str, Any]) -> Look:
    """A fact that the environment tells."""

    async def read(sessions: EnvSessions, session: EnvSession) -> object:
        return await sessions.ask(session, what)

    return Look(answer, read)


def told(answer: Any, tell: Callable[[EnvSession], object]) -> Look:
    """What the session knows by itself."""

    async def read(sessions: EnvSessions, session: EnvSession) -> object:
        sessions.touch(session)
        return tell(session)

    return Look(answer, read)


def opens(tell: Callable[[EnvSession], object]) -> Callable[[EnvSessions, EnvSession], Awaitable[object]]:
    """A reset is answered by what the session knows by itself."""

    async def opened(_: EnvSessions, session: EnvSession) -> object:
        return tell(session)

    return opened


def steps(
    tell: Callable[[EnvSession, StepResult], object],
) -> Callable[[EnvSessions, EnvSession, StepResult], Awaitable[object]]:
    """A step is, too."""

    async def stepped(_: EnvSessions, session: EnvSession, result: StepResult) -> object:
        return tell(session, result)

    return stepped


def seen(session: EnvSession) -> str:
    """What the policy was shown last."""
    return session.observation
