"""Environments on remote servers: new sessions go to the least busy one, and not to one that failed lately.

`Servers.make` fits `EnvSpec.make`. An instance plays in a session, which it keeps for its next episode unless
another instance waits for one: there may be more instances than the servers have room for. A failed server or
connection raises `EnvCrashed`, so that the episode is retried, on another server if there is one; a failure
that no retry can fix raises `ConfigError`.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, TypeVar

from envs.errors import ConfigError, EnvCrashed
from envs.network.client import is_http_url
from envs.registry import EnvSpec
from envs.remote.agentgym_link import AgentGymLink
from envs.remote.link import Link, ServerFull, ServerUnreachable, SessionLost
from envs.remote.wingspan_link import Connections
from envs.types import Environment, Item, StepResult

T = TypeVar("T")
WireProtocol = Literal["wingspan", "agentgym"]

FIRST_REST_S, LONGEST_REST_S = 1.0, 60.0
"""How long a server that did not answer is avoided: doubled each time until it answers again."""

POLL_S = 0.2
"""The time between two searches for room while no server has any: others may have left some."""

_log = logging.getLogger(__name__)


def _agentgym(env: str, url: str, token: str | None, timeout_s: float) -> Callable[[], Link]:
    return partial(AgentGymLink, env, url, token, timeout_s)


def _wingspan(env: str, url: str, token: str | None, timeout_s: float) -> Callable[[], Link]:
    return Connections(url, token, timeout_s=timeout_s).make_link


_LINKS = {"wingspan": _wingspan, "agentgym": _agentgym}
"""Protocol → what makes the links to a server, by environment, URL, token and time limit for a request."""


@dataclass(slots=True, eq=False)
class _Server:
    """One URL and the state of its server."""

    url: str
    make_link: Callable[[], Link]
    """A new session there, which begins with its first reset."""
    live: int = 0
    """Sessions of this process there."""
    rest_s: float = 0.0
    """Length of its last rest; 0 while it answers."""
    avoided_until_s: float = 0.0
    """Monotonic time before which it gets no new session."""
    on_trial: bool = False
    """One session tests whether it works again; the others wait for the result."""
    last_failure: str = ""

    def try_again(self) -> None:
        """Let one session test it after a rest."""
        self.on_trial = True
        self.avoided_until_s = time.monotonic() + self.rest_s

    def report_failure(self, error: Exception) -> None:
        """Avoid it for a while, longer than the last time."""
        self.last_failure = str(error)
        if self.rest_s and not self.on_trial:
            return  # it is avoided already: many instances notice at once
        self.on_trial = False
        self.rest_s = min(max(FIRST_REST_S, 2 * self.rest_s), LONGEST_REST_S)
        self.avoided_until_s = time.monotonic() + self.rest_s
        _log.warning("%s is avoided for %g s: %s", self.url, self.rest_s, error)

    def report_success(self) -> None:
        """Use the server again without restrictions: it works."""
        self.rest_s, self.avoided_until_s, self.on_trial = 0.0, 0.0, False


class Session:
    """A session on one of the servers, which learns from what becomes of it."""

    def __init__(self, server: _Server) -> None:
        self.server = server
        self.link = server.make_link()
        self._is_closed = False
        server.live += 1

    async def open(self) -> None:
        """Begin it. Raises `ServerFull`, `SessionLost` or `ServerUnreachable` if another session may succeed;
        any failure closes it."""
        await self._report(self.link.open())

    async def reset(self, item: Item) -> str:
        """Start an episode; fails as `open` does."""
        observation = await self._report(self.link.reset(item))
        self.server.report_success()
        return observation

    async def close(self) -> None:
        """End it. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            self.server.live -= 1
            await self.link.close()

    async def _report(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return await work
        except BaseException as error:
            if isinstance(error, ServerFull):
                self.server.report_success()
                self.server.last_failure = str(error)
            elif isinstance(error, ServerUnreachable | EnvCrashed):
                # The least busy server is often the one on which no episode can begin.
                self.server.report_failure(error)
            await self.close()
            raise


class Servers:
    """The servers of one environment, and this process's sessions there; one event loop at a time."""

    def __init__(
        self,
        env: str,
        urls: Sequence[str],
        *,
        protocol: WireProtocol = "wingspan",
        token: str | None = None,
        request_timeout_s: float = 120.0,
        patience_s: float = 60.0,
    ) -> None:
        """`protocol`: AgentGym's own servers know only "agentgym".

        `request_timeout_s`: what one reset or step may take before the server counts as dead.
        `patience_s`: how long an instance waits for a session while all servers are dead, or full of other
        clients' sessions.
        """
        if not urls:
            raise ConfigError("servers: the list of URLs is empty; name at least one, e.g. http://host:8000")
        for url in urls:
            if not is_http_url(url):
                raise ConfigError(f"servers: {url!r} is not like http://host:8000")
        make_link = _LINKS.get(protocol)
        if make_link is None:
            raise ConfigError(f"servers: unknown protocol {protocol!r}; there are: {', '.join(_LINKS)}")
        self._servers = [
            _Server(url, make_link(env, url, token, request_timeout_s))
            for url in dict.fromkeys(url.rstrip("/") for url in urls)
        ]
        self._env = env
        self.patience_s = patience_s
        self.has_states = protocol == "wingspan"
        """Whether answers carry the keys of states."""
        self._playing: set[RemoteEnv] = set()
        """Instances with a session, in an episode."""
        self._idle: dict[RemoteEnv, None] = {}
        """Those with a session, between two episodes; longest idle first."""
        self._waiting: dict[asyncio.Future[Session], float] = {}
        """Who waits for a session, in their order → the time since which it has waited."""
        self._searching: asyncio.Task[None] | None = None
        """Searches for room for them."""
        self._may_have_room = asyncio.Event()
        self._last_played_s = 0.0
        """Monotonic time at which one of our instances had a session, as far as is known."""

    def make(self) -> Environment:
        """A new instance; it gets a session before its first episode."""
        return RemoteEnv(self)

    @property
    def live(self) -> dict[str, int]:
        """URL → sessions of this process there."""
        return {server.url: server.live for server in self._servers}

    async def acquire(self, env: "RemoteEnv") -> Session:
        """A session for `env`: a new one on the least busy server that works, or an idle instance's.

        If there is none, it waits behind those that asked before, for as long as any instance of this process
        plays. Raises `EnvCrashed` if none has for `patience_s` seconds.
        """
        session = None if self._waiting else await self._find_session()
        if session is None:
            session = await self._wait_for_session()
        self._playing.add(env)
        return session

    def release(self, env: "RemoteEnv") -> None:
        """The episode of `env` is over: its session is for the first who waits, or else stays its own."""
        self._playing.discard(env)
        waiter = self._pop_waiting()
        if waiter is None:
            self._idle[env] = None
        else:
            waiter.set_result(env.give_up_session())

    def resume(self, env: "RemoteEnv") -> None:
        """`env` begins another episode in its session."""
        self._idle.pop(env, None)
        self._playing.add(env)

    async def end(self, env: "RemoteEnv", session: Session) -> None:
        """Close the session that `env` has given up: nobody gets it any more."""
        self._idle.pop(env, None)
        self._playing.discard(env)
        try:
            await session.close()
        finally:
            self._may_have_room.set()

    async def _find_session(self) -> Session | None:
        """A new session, or an idle one; None if there is none at the moment."""
        failed: set[_Server] = set()
        while (server := self._next(failed)) is not None:
            session = Session(server)
            try:
                await session.open()
            except (ServerFull, SessionLost, ServerUnreachable):
                failed.add(server)
            else:
                return session
        if self._idle:
            env = next(iter(self._idle))
            del self._idle[env]
            return env.give_up_session()
        return None

    async def _wait_for_session(self) -> Session:
        waiter: asyncio.Future[Session] = asyncio.get_running_loop().create_future()
        self._waiting[waiter] = time.monotonic()
        if self._searching is None or self._searching.done():
            self._searching = asyncio.create_task(self._search())
        try:
            return await waiter
        except BaseException:
            self._waiting.pop(waiter, None)
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                await self._hand_over_or_close(waiter.result())  # it came at the moment the wait ended
            raise

    async def _hand_over_or_close(self, session: Session) -> None:
        """Give `session` to the first who waits, if anybody does."""
        waiter = self._pop_waiting()
        if waiter is None:
            await session.close()
        else:
            waiter.set_result(session)

    def _pop_waiting(self) -> asyncio.Future[Session] | None:
        while self._waiting:
            waiter = next(iter(self._waiting))
            del self._waiting[waiter]
            if not waiter.done():  # cancelled, but not yet out of the queue
                return waiter
        return None

    async def _search(self) -> None:
        """Look for room until nobody waits."""
        self._may_have_room = asyncio.Event()  # of this event loop
        while self._waiting:
            self._may_have_room.clear()
            try:
                session = await self._find_session()
            except Exception as error:
                waiter = self._pop_waiting()
                if waiter is None:
                    raise
                waiter.set_exception(error)
                continue
            if session is not None:
                await self._hand_over_or_close(session)
                continue
            self._reject_impatient()
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await self._may_have_room.wait()

    def _reject_impatient(self) -> None:
        now = time.monotonic()
        if self._playing:
            self._last_played_s = now
        failures = "; ".join(f"{server.url} {server.last_failure or 'is full'}" for server in self._servers)
        for waiter, since in list(self._waiting.items()):
            if now - max(since, self._last_played_s) > self.patience_s and not waiter.done():
                del self._waiting[waiter]
                waiter.set_exception(EnvCrashed(f"no server has room for {self._env}: {failures}"))

    def _next(self, failed: set[_Server]) -> _Server | None:
        now = time.monotonic()
        able = [server for server in self._servers if server.avoided_until_s <= now and server not in failed]
        if not able:
            return None
        server = min(able, key=lambda server: server.live)
        if server.rest_s:
            server.try_again()
        return server


def on_servers(spec: EnvSpec, servers: Servers) -> EnvSpec:
    """`spec`, with its instances on `servers`: they need nothing of this machine."""
    return replace(
        spec,
        make=servers.make,
        isolation="none",
        preload=(),
        max_episodes=None,
        requirements=(),
        has_states=spec.has_states and servers.has_states,
    )


class RemoteEnv:
    """One live instance: it plays in a session on one of the servers."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._session: Session | None = None

    async def acquire(self) -> None:
        """Wait for a session, unless the last one is still its own."""
        if self._session is None:
            self._session = await self._servers.acquire(self)
        else:
            self._servers.resume(self)

    def release(self) -> None:
        """The episode is over: another instance that waits for a session may have this one."""
        if self._session is not None:
            self._servers.release(self)

    def give_up_session(self) -> Session:
        """Its session, which is another instance's from now on."""
        session, self._session = self._session, None
        assert session is not None
        return session

    async def reset(self, item: Item) -> str:
        """Start `item`; in another session if its own was lost between two episodes."""
        deadline = time.monotonic() + self._servers.patience_s
        while True:
            await self.acquire()
            assert self._session is not None
            session = self._session
            try:
                return await session.reset(item)
            except (ServerFull, SessionLost, ServerUnreachable) as error:
                await self.close()
                if time.monotonic() > deadline:
                    raise EnvCrashed(f"{session.server.url}: {error}") from error
            except BaseException:
                await self.close()
                raise

    async def step(self, action: str) -> StepResult:
        """Apply one action of the current episode. Every failure is an `EnvCrashed`, or a `ConfigError`."""
        session = self._session
        if session is None:
            raise RuntimeError("step before reset")
        server = session.server
        try:
            return await session.link.step(action)
        except asyncio.CancelledError:
            # The caller's own time limit or end came first. It is unknown whether this server still
            # answers, so others are preferred.
            server.report_failure(ServerUnreachable("a step was cancelled before it was answered"))
            raise
        except ServerUnreachable as error:
            server.report_failure(error)
            raise EnvCrashed(f"{server.url}: {error}") from error
        except SessionLost as error:
            raise EnvCrashed(f"{server.url}: {error}") from error

    def state_key(self) -> str | None:
        """The key that came with the last answer."""
        return None if self._session is None else self._session.link.state

    async def close(self) -> None:
        """End the session. Idempotent."""
        session, self._session = self._session, None
        if session is not None:
            await self._servers.end(self, session)
