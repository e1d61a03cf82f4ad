"""Environments on remote servers: new sessions go to the least busy one, and not to one that failed lately.

`Servers.make` fits `EnvSpec.make`. An instance plays in a session, which it keeps for its next episode unless
another instance waits for one: there may be more instances than the servers have room for. A failed server or
connection raises `EnvCrashed`, so that the episode is retried, on another server if there is one; a failure
that no retry can fix raises `ConfigError`.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
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
"""The time between two requests for room to a server that had none: other clients may have left some."""

SLOW_S = 2.0
"""The time for a new session after which other servers are asked as well: the first one may hang."""

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
    """Makes a session there, which begins when it is opened."""
    live: int = 0
    """Sessions of this process there."""
    rest_s: float = 0.0
    """Length of its last rest; 0 if nothing has failed since an episode last began there."""
    avoided_until_s: float = 0.0
    """Monotonic time before which it gets no new session."""
    on_trial: bool = False
    """One session tests whether it works again; the others wait for the result."""
    last_failure: str = ""
    may_have_room: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a session of this process there has ended."""
    opening: "set[Session]" = field(default_factory=set)
    """Sessions of this process that are being opened there."""

    @property
    def is_avoided(self) -> bool:
        """Whether it gets no new session at the moment."""
        return self.avoided_until_s > time.monotonic()

    async def open_session(self) -> "Session":
        """A new session; the first one after a rest tests the server. Fails as `Session.open` does."""
        if self.rest_s:
            self.on_trial = True
            self.avoided_until_s = time.monotonic() + self.rest_s
        session = Session(self)
        self.opening.add(session)
        try:
            await session.open()
        finally:
            self.opening.discard(session)
        return session

    def report_failure(self, error: Exception) -> None:
        """Avoid it for a while, longer than the last time."""
        self.last_failure = str(error)
        if self.rest_s and not self.on_trial:
            return  # it is avoided already: many instances notice at once
        self.on_trial = False
        self.rest_s = min(max(FIRST_REST_S, 2 * self.rest_s), LONGEST_REST_S)
        self.avoided_until_s = time.monotonic() + self.rest_s
        _log.warning("%s is avoided for %g s: %s", self.url, self.rest_s, error)

    def report_full(self, error: Exception) -> None:
        """Ask it again soon: it answers. Whether episodes can begin there is as uncertain as before."""
        self.last_failure = str(error)
        self.avoided_until_s, self.on_trial = 0.0, False

    def report_success(self) -> None:
        """Use the server again without restrictions: it works."""
        self.rest_s, self.avoided_until_s, self.on_trial = 0.0, 0.0, False


class Session:
    """A session on one of the servers. Its requests decide whether that server gets further sessions."""

    def __init__(self, server: _Server) -> None:
        self.server = server
        self.link = server.make_link()
        self._has_begun = False
        self._is_closed = False
        server.live += 1

    @property
    def is_sound(self) -> bool:
        """Whether an episode may be expected to go on here: one has begun, or the server has not failed."""
        return self._has_begun or not self.server.rest_s

    async def open(self) -> None:
        """Begin it. Raises `ServerFull`, `SessionLost` or `ServerUnreachable` if another session may succeed;
        any failure closes it."""
        await self._report(self.link.open())

    async def reset(self, item: Item) -> str:
        """Start an episode; fails as `open` does."""
        observation = await self._report(self.link.reset(item))
        self._has_begun = True
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
                self.server.report_full(error)
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

        `request_timeout_s`: what one request may take before the server counts as dead.
        `patience_s`: how long an instance waits for a session while no instance plays, because all servers
        are dead, full of other clients' sessions, or unable to begin an episode.
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
        self._loop: asyncio.AbstractEventLoop | None = None
        """The event loop of what follows."""
        self._playing: dict[RemoteEnv, Session] = {}
        """Instances in an episode, and their sessions."""
        self._idle: dict[RemoteEnv, None] = {}
        """Those with a session, between two episodes, longest idle first; none while anybody waits."""
        self._waiting: OrderedDict[asyncio.Future[Session], float] = OrderedDict()
        """Those who wait for a session, in their order → the monotonic time at which they began to."""
        self._searches: dict[_Server, asyncio.Task[None]] = {}
        """For room for them: one search for each server, so that a server that hangs delays no other."""
        self._deliveries: set[asyncio.Task[None]] = set()
        """Of sessions that come after their instance has joined the queue."""
        self._last_played_s = 0.0
        """Monotonic time at which one of our instances was in an episode, as far as is known."""

    def make(self) -> Environment:
        """A new instance; it gets a session before its first episode."""
        return RemoteEnv(self)

    @property
    def live(self) -> dict[str, int]:
        """URL → sessions of this process there."""
        return {server.url: server.live for server in self._servers}

    async def acquire(self, env: "RemoteEnv", *, comes_first: bool = False) -> Session:
        """A session for `env`: a new one on the least busy server that works, or an idle instance's.

        If no session is available, `env` joins the end of the queue, or its front if it `comes_first`, and
        waits for as long as any instance of this process plays. Raises `EnvCrashed` if none has played for
        `patience_s` seconds.
        """
        self._enter_loop()
        session = None if self._waiting else await self._find_session()
        if session is None:
            session = await self._wait_for_session(comes_first=comes_first)
        self._playing[env] = session
        return session

    def release(self, env: "RemoteEnv") -> None:
        """The episode of `env` is over: its session goes to the first who waits, or stays its own."""
        self._stop_playing(env)
        waiter = self._pop_waiting()
        if waiter is None:
            self._idle[env] = None
        else:
            waiter.set_result(env.give_up_session())

    def resume(self, env: "RemoteEnv", session: Session) -> None:
        """`env` begins another episode in its session."""
        self._enter_loop()
        self._idle.pop(env, None)
        self._playing[env] = session

    async def end(self, env: "RemoteEnv", session: Session) -> None:
        """Close the session that `env` has given up: nobody gets it any more."""
        self._idle.pop(env, None)
        self._stop_playing(env)
        try:
            await session.close()
        finally:
            session.server.may_have_room.set()

    def _enter_loop(self) -> None:
        """Forget what an event loop that has ended left: it ran no `release` and no `close`."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop = loop
            self._playing.clear()
            self._idle.clear()
            self._waiting.clear()
            self._searches.clear()
            self._deliveries.clear()
            for server in self._servers:
                server.opening.clear()

    async def _find_session(self) -> Session | None:
        """A new session or an idle one; None if neither is available now.

        With several servers, a new one may take `SLOW_S`; if it comes later, it is for those who wait.
        """
        if len(self._servers) == 1:
            return await self._open_session() or self._take_idle()
        search = asyncio.create_task(self._open_session())
        try:
            await asyncio.wait({search}, timeout=SLOW_S)
        except asyncio.CancelledError:
            search.cancel()
            await self._deliver(search)
            raise
        if search.done():
            return search.result() or self._take_idle()
        delivery = asyncio.create_task(self._deliver(search))
        self._deliveries.add(delivery)
        delivery.add_done_callback(self._deliveries.discard)
        return self._take_idle()

    async def _deliver(self, search: "asyncio.Task[Session | None]") -> None:
        """Give what `search` finds to the first who waits."""
        await asyncio.wait({search})
        if search.cancelled():
            return
        error = search.exception()
        if error is None:
            if (session := search.result()) is not None:
                await self._hand_over_or_close(session)
        elif (waiter := self._pop_waiting()) is not None:
            waiter.set_exception(error)

    async def _open_session(self) -> Session | None:
        """A new session on the least busy server that has room; None without any."""
        failed: set[_Server] = set()
        while (server := self._next(failed)) is not None:
            try:
                return await server.open_session()
            except (ServerFull, SessionLost, ServerUnreachable):
                failed.add(server)
        return None

    def _take_idle(self) -> Session | None:
        """The session of the instance that has been idle for the longest; None without any."""
        if not self._idle:
            return None
        env = next(iter(self._idle))
        del self._idle[env]
        return env.give_up_session()

    async def _wait_for_session(self, *, comes_first: bool) -> Session:
        waiter: asyncio.Future[Session] = asyncio.get_running_loop().create_future()
        self._waiting[waiter] = time.monotonic()
        if comes_first:
            self._waiting.move_to_end(waiter, last=False)
        for server in self._servers:
            if server not in self._searches or self._searches[server].done():
                self._searches[server] = asyncio.create_task(self._search(server))
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
            waiter, _ = self._waiting.popitem(last=False)
            if not waiter.done():  # cancelled, but not yet out of the queue
                return waiter
        return None

    async def _search(self, server: _Server) -> None:
        """Look for room on `server` until nobody waits."""
        server.may_have_room = asyncio.Event()  # of this event loop
        while self._waiting:
            server.may_have_room.clear()
            # A session that is being opened there may be for those who wait, and would come earlier.
            if not server.is_avoided and not server.opening:
                try:
                    session = await server.open_session()
                except (ServerFull, SessionLost, ServerUnreachable):
                    pass
                except Exception as error:
                    waiter = self._pop_waiting()
                    if waiter is not None:
                        waiter.set_exception(error)
                    continue
                else:
                    await self._hand_over_or_close(session)
                    continue
            self._reject_impatient()
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await server.may_have_room.wait()

    def _reject_impatient(self) -> None:
        now = time.monotonic()
        if any(session.is_sound for session in self._playing.values()):
            self._last_played_s = now
        failures = "; ".join(f"{server.url} {server.last_failure or 'is full'}" for server in self._servers)
        for waiter, since in list(self._waiting.items()):
            if now - max(since, self._last_played_s) > self.patience_s and not waiter.done():
                del self._waiting[waiter]
                waiter.set_exception(EnvCrashed(f"no server has room for {self._env}: {failures}"))

    def _stop_playing(self, env: "RemoteEnv") -> None:
        session = self._playing.pop(env, None)
        if session is not None and session.is_sound:
            self._last_played_s = time.monotonic()

    def _next(self, failed: set[_Server]) -> _Server | None:
        """The least busy server that works."""
        able = [server for server in self._servers if not server.is_avoided and server not in failed]
        return min(able, key=lambda server: server.live, default=None)


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
            self._servers.resume(self, self._session)

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
        await self.acquire()
        while True:
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
            # It has waited for its turn already, and now the episode's time runs.
            self._session = await self._servers.acquire(self, comes_first=True)

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
