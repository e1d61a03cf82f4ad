"""Sessions: one live environment each, for its owner, until it is closed, idle for too long, or broken.

Owns ids, owners, the cap, idle expiry and the rule that a session does one thing at a time. Knows
nothing of HTTP but the statuses of its errors.
"""

import asyncio
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, TypeVar

from envs.errors import ConfigError, EnvCrashed, WingspanError, describe, hide_folders, text_with_place
from envs.network.server import RequestRejected
from envs.registry import EnvSpec, get_item
from envs.runtime.hosted import HostedEnv
from envs.runtime.manager import make_host
from envs.runtime.time_limits import TooSlow, run_in_time
from envs.serve.limits import ServerLimits
from envs.serve.metrics import Metrics
from envs.types import (
    Environment,
    Image,
    Inspectable,
    Item,
    Observation,
    StepResult,
    read_state_key,
    reset_env,
    step_env,
)

T = TypeVar("T")

CLOSE_TIMEOUT_S = 10.0
"""The time for an environment to close, before it is abandoned."""
MAX_ID = (1 << 52) - 1
"""The highest id of a session, which is a number in AgentGym's protocol. JavaScript reads larger ones
inexactly."""
REMEMBERED_IDS = 1 << 16
"""Ids of ended sessions, by which a late request is answered with 410; that of an older one with 404."""

_log = logging.getLogger(__name__)


class Cause(StrEnum):
    """Why a session ended."""

    CLOSE = "closed"
    IDLE = "idle"
    CRASH = "crashed"
    TIMEOUT = "timeout"
    SHUTDOWN = "shutdown"


@dataclass(slots=True, kw_only=True, eq=False)
class EnvSession:
    """One live instance and the state of its episode."""

    id: int
    owner: str
    """Only requests of the same owner find it."""
    env: Environment
    item: Item | None = None
    """None before the first reset, and after one that was refused."""
    episode_id: str | None = None
    """The client's name of the episode."""
    episodes: int = 0
    """Begun on `env`."""
    steps: int = 0
    observation: str = ""
    reward: float = 0.0
    """The reward of the last step."""
    score: float = 0.0
    """The score of the episode so far."""
    terminated: bool = False
    truncated: bool = False
    used_at: float = field(default_factory=time.monotonic)
    caller: asyncio.Task[Any] | None = None
    """The task that waits for an answer of `env`."""
    end: asyncio.Event = field(default_factory=asyncio.Event)
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when `env` has answered its caller, or the caller has been cancelled."""

    @property
    def busy(self) -> bool:
        """Whether `env` is at work."""
        return self.caller is not None

    @property
    def done(self) -> bool:
        """Whether the episode has ended."""
        return self.terminated or self.truncated

    @property
    def state_key(self) -> str | None:
        """The key of the environment's state, if it has any."""
        return read_state_key(self.env)


class EnvSessions:
    """The sessions of one environment on one server."""

    def __init__(self, spec: EnvSpec, limits: ServerLimits) -> None:
        self.spec = spec
        self.limits = limits
        self.metrics = Metrics(spec.name, live=lambda: self.live, capacity=limits.max_sessions)
        self._open: OrderedDict[int, EnvSession] = OrderedDict()  # longest unused first
        self._past_ids: OrderedDict[int, None] = OrderedDict()  # ids, oldest first
        self._closing: set[asyncio.Task[None]] = set()  # one for each instance
        self._draining = False
        self._host = make_host(spec)

    @property
    def live(self) -> int:
        """Instances that hold resources."""
        return len(self._open) + len(self._closing)

    def open(self, owner: str) -> EnvSession:
        """A new session with its own environment."""
        if self._draining:
            raise RequestRejected(503, "the server is shutting down")
        if self.live >= self.limits.max_sessions:
            raise RequestRejected(
                429,
                f"all {self.limits.max_sessions} instances are in use; close some, or serve with a larger "
                "--max-sessions",
                retry_after_s=1,
            )
        session = EnvSession(id=secrets.randbelow(MAX_ID + 1), owner=owner, env=self._make())
        self._open[session.id] = session
        self.metrics.opened_sessions.inc()
        return session

    def find(self, session_id: int, owner: str) -> EnvSession:
        """The session of an id, if it is the owner's."""
        session = self._open.get(session_id)
        if session is not None and session.owner == owner:
            return session
        if session is None and session_id in self._past_ids:
            raise RequestRejected(
                410,
                f"session {session_id} is over: it was closed, lost to a crash, or unused for "
                f"{self.limits.idle_s:g} s; create another",
            )
        raise RequestRejected(404, f"there is no session {session_id}; create one")

    def item(
        self,
        index: int,
        *,
        field: tuple[str, ...],
        seed: int = 0,
        metadata: Mapping[str, object] | None = None,
    ) -> Item:
        """The item of a number; raises `RequestRejected` 422 for the request's `field` if there is none."""
        try:
            item = get_item(self.spec, index)
        except ConfigError as error:
            if error.__cause__ is not None:  # make_item raised
                _log_failure(f"item {index}:", error)
            fault = {"loc": [*field], "msg": hide_folders(error.reason), "type": "value_error"}
            raise RequestRejected(422, [fault]) from None
        return replace(item, seed=seed or item.seed, metadata={**item.metadata, **(metadata or {})})

    def find_item(
        self, item_id: str, *, field: tuple[str, ...], seed: int, metadata: Mapping[str, object]
    ) -> Item:
        """The item of an id; raises `RequestRejected` 422 for the request's `field` if there is none."""
        name, _, index = item_id.rpartition("_")
        if name != self.spec.name or not (index.isascii() and index.isdecimal() and len(index) <= 16):
            fault = f"{item_id[:60]!r} is no item of {self.spec.name!r}, e.g. '{self.spec.name}_12'"
            raise RequestRejected(422, [{"loc": [*field], "msg": fault, "type": "value_error"}])
        return self.item(int(index), field=field, seed=seed, metadata=metadata)

    def touch(self, session: EnvSession) -> None:
        """Restart its idle time."""
        session.used_at = time.monotonic()
        if session.id in self._open:
            self._open.move_to_end(session.id)

    async def inspect(self, session: EnvSession, fact: str) -> Any:
        """A fact of the episode under way, from its environment (`Inspectable`)."""
        env = session.env
        if not isinstance(env, Inspectable):
            raise RequestRejected(501, f"{self.spec.name} cannot be asked for {fact!r}")
        return await self._do(session, lambda: env.inspect(fact), self.limits.step_timeout_s)

    async def reset(self, session: EnvSession, item: Item) -> str:
        """Start an episode; returns the first observation."""
        with self.metrics.reset_s.time():
            observation = await self._do(
                session, lambda: self._begin(session, item), self.limits.step_timeout_s
            )
        await self._only_text(session, observation.images)
        session.item = item
        session.steps, session.reward, session.score = 0, 0.0, 0.0
        session.terminated = session.truncated = False
        session.observation = observation.text
        return observation.text

    async def step(self, session: EnvSession, action: str, *, timeout_s: float | None = None) -> StepResult:
        """One action, within the server's time limit or `timeout_s` if that is smaller."""
        if session.item is None or session.done:
            state = "has not begun" if session.item is None else "has ended"
            raise RequestRejected(409, f"the episode of session {session.id} {state}; reset it")
        limit_s = min(timeout_s or self.limits.step_timeout_s, self.limits.step_timeout_s)
        with self.metrics.step_s.time():
            result = await self._do(session, lambda: step_env(session.env, action), limit_s)
        await self._only_text(session, result.images)
        session.steps += 1
        session.observation, session.reward = result.observation, result.reward
        session.score += result.reward
        session.terminated, session.truncated = result.terminated, result.truncated
        return result

    async def close(self, session: EnvSession, cause: Cause = Cause.CLOSE) -> None:
        """End a session and free its resources, after its call under way has been cancelled. Idempotent.

        It goes on if the caller is cancelled.
        """
        if self._open.pop(session.id, None) is None:
            return
        self._past_ids[session.id] = None
        if len(self._past_ids) > REMEMBERED_IDS:
            self._past_ids.popitem(last=False)
        self.metrics.count_end(cause)
        session.end.set()
        caller = session.caller
        if caller is None or caller is asyncio.current_task():
            await self._close(session, session.env)
        else:
            caller.cancel()
            await self._close(session, session.env, after=session.idle)

    def _make(self) -> Environment:
        try:
            return self.spec.make() if self._host is None else HostedEnv(self._host)
        except Exception as error:
            subject = "cannot make an environment:"
            _log_failure(subject, error)
            raise RequestRejected(500, hide_folders(f"{subject} {_reason(error)}")) from error

    async def _begin(self, session: EnvSession, item: Item) -> Observation:
        """Begin an episode, on a new instance after `max_episodes`."""
        if session.episodes == self.spec.max_episodes:
            old_env, session.env, session.episodes = session.env, self._make(), 0
            await self._close(session, old_env)
        session.episodes += 1
        session.item = None  # the episode before has ended, even if the environment refuses this item
        return await reset_env(session.env, item)

    async def _close(
        self, session: EnvSession, env: Environment, *, after: asyncio.Event | None = None
    ) -> None:
        closing = asyncio.create_task(_close_env(env, f"closing session {session.id}", after=after))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        await asyncio.shield(closing)  # an environment that is half closed keeps what it holds

    async def _only_text(self, session: EnvSession, images: Sequence[Image]) -> None:
        """Reject images, which the protocols cannot carry, rather than drop them."""
        if images:
            await self.close(session)
            raise RequestRejected(
                501, f"{self.spec.name} answers with images, which cannot be served; use it without a server"
            )

    async def expire_forever(self) -> None:
        """Close idle sessions, until cancelled."""
        while True:
            await asyncio.sleep(min(5.0, self.limits.idle_s / 4))
            before = time.monotonic() - self.limits.idle_s
            stale = []
            for session in self._open.values():
                if session.used_at > before:
                    break
                if not session.busy:
                    stale.append(session)
            await asyncio.gather(*(self.close(session, Cause.IDLE) for session in stale))

    async def drain(self, *, grace_s: float) -> None:
        """Open no more sessions; let steps finish within `grace_s` seconds; close all sessions."""
        self._draining = True
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                while any(session.busy for session in self._open.values()):
                    await asyncio.sleep(0.02)
        await asyncio.gather(*(self.close(session, Cause.SHUTDOWN) for session in list(self._open.values())))
        await asyncio.gather(*self._closing)
        if self._host is not None:
            await self._host.close()

    async def _do(self, session: EnvSession, work: Callable[[], Coroutine[Any, Any, T]], limit_s: float) -> T:
        """Call the session's environment; a failure ends the session."""
        if session.busy:
            raise RequestRejected(409, f"session {session.id} is busy: one request at a time")
        caller = session.caller = asyncio.current_task()
        assert caller is not None
        session.idle.clear()
        try:
            return await run_in_time(work(), timeout_s=limit_s, name=f"session {session.id}")
        except asyncio.CancelledError:
            if session.end.is_set() and caller.uncancel() == 0:  # by `close` alone
                raise RequestRejected(410, f"session {session.id} was closed before it answered") from None
            raise
        except ConfigError as error:
            _log_failure(f"session {session.id}:", error)
            raise RequestRejected(422, hide_folders(error.reason)) from error
        except TooSlow:
            await self.close(session, Cause.TIMEOUT)
            raise RequestRejected(
                504, f"the environment took longer than {limit_s:g} s; it was closed"
            ) from None
        except Exception as error:
            await self.close(session, Cause.CRASH)
            _log_failure(f"session {session.id}:", error)
            subject = "" if isinstance(error, EnvCrashed) else "the environment raised "
            raise RequestRejected(500, hide_folders(f"{subject}{_reason(error)}; it was closed")) from error
        finally:
            session.caller = None
            session.idle.set()
            self.touch(session)


def _reason(error: Exception) -> str:
    """The text of an exception for a client."""
    if isinstance(error, EnvCrashed):
        return error.reason
    if isinstance(error, WingspanError):
        return f"{type(error).__name__}: {error.reason}"
    return describe(error)


def _log_failure(subject: str, error: Exception) -> None:
    """With the line of a user's code, and all tracebacks."""
    _log.warning("%s %s", subject, text_with_place(error), exc_info=error)


async def _close_env(env: Environment, name: str, *, after: asyncio.Event | None) -> None:
    """Close `env`, and never raise; `name` is for the log."""
    if after is not None:
        await after.wait()
    try:
        await run_in_time(env.close(), timeout_s=CLOSE_TIMEOUT_S, name=name)
    except Exception as error:
        _log.warning("%s failed: %s", name, text_with_place(error))
