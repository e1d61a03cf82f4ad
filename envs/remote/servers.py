"""Environments on servers elsewhere: several URLs, the least busy one next, a dead one left out for a while.

`Servers.make` fits `EnvSpec.make`: each instance is a session on one of the servers for as long as it lives.
What goes wrong on the way is an `EnvCrashed`, so that the episode is retried, on another server where there
is one; what no retry can mend is a `ConfigError`.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal
from urllib.parse import urlsplit

from envs.base import Environment
from envs.errors import ConfigError, EnvCrashed
from envs.registry import EnvSpec
from envs.remote.links import AgentGymLink, Full, Gone, Link, OpenEnvLink, Unreachable
from envs.types import Item, StepResult

WireProtocol = Literal["openenv", "agentgym"]

_LINKS: dict[str, type[AgentGymLink] | type[OpenEnvLink]] = {"openenv": OpenEnvLink, "agentgym": AgentGymLink}

FIRST_REST_S, LONGEST_REST_S = 1.0, 60.0
"""How long a server that did not answer is left alone: doubled each time, until it answers again."""

POLL_S = 0.2
"""Between two looks for a server, while none has room."""

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Server:
    """One URL and what is known of it."""

    url: str
    live: int = 0
    """Our instances there."""
    rest_s: float = 0.0
    """Length of its last rest; 0 while it answers."""
    until: float = 0.0
    """Monotonic time before which it gets no new instance."""
    on_trial: bool = False
    """One instance finds out whether it works again; the others wait for what comes of it."""
    said: str = ""
    """Its last failure."""

    def try_again(self) -> None:
        """After a rest."""
        self.on_trial = True
        self.until = time.monotonic() + self.rest_s

    def failed(self, error: Exception) -> None:
        """Leave it alone for a while, longer than the last time."""
        self.said = str(error)
        if self.rest_s and not self.on_trial:
            return  # it is resting already; many instances notice at once
        self.on_trial = False
        self.rest_s = min(max(FIRST_REST_S, 2 * self.rest_s), LONGEST_REST_S)
        self.until = time.monotonic() + self.rest_s
        _log.warning("%s is left out for %g s: %s", self.url, self.rest_s, error)

    def answered(self) -> None:
        """It works."""
        self.rest_s, self.until, self.on_trial = 0.0, 0.0, False


class Servers:
    """Servers of one environment."""

    def __init__(
        self,
        urls: Sequence[str],
        *,
        protocol: WireProtocol = "openenv",
        token: str | None = None,
        request_timeout_s: float = 120.0,
        patience_s: float = 60.0,
    ) -> None:
        """`protocol`: how the servers are spoken to; AgentGym's own know only "agentgym".

        `request_timeout_s`: what one reset or step may take before the server counts as dead.
        `patience_s`: how long a new instance waits while all servers are full or dead.
        """
        if not urls:
            raise ConfigError("servers: the list of URLs is empty; name at least one, e.g. http://host:8000")
        for url in urls:
            if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
                raise ConfigError(f"servers: {url!r} is not like http://host:8000")
        if protocol not in _LINKS:
            raise ConfigError(f"servers: unknown protocol {protocol!r}; there are: {', '.join(_LINKS)}")
        self._servers = [_Server(url.rstrip("/")) for url in dict.fromkeys(urls)]
        self._link = _LINKS[protocol]
        self._token = token
        self._request_timeout_s = request_timeout_s
        self._patience_s = patience_s

    def make(self) -> Environment:
        """A new instance; it finds its server at the first reset."""
        return RemoteEnv(self)

    @property
    def live(self) -> dict[str, int]:
        """URL → our instances there."""
        return {server.url: server.live for server in self._servers}

    async def start(self, item: Item) -> tuple["Seat", str]:
        """A session on the least busy server that works, and its first observation.

        Raises `EnvCrashed` if none does within `patience_s` seconds, or if an environment breaks.
        """
        deadline = time.monotonic() + self._patience_s
        refused: set[_Server] = set()
        while True:
            server = self._next(refused)
            if server is None:
                if time.monotonic() > deadline:
                    raise EnvCrashed(f"no server has room for {item.item_id}: {self._told()}")
                refused.clear()
                await asyncio.sleep(POLL_S)
                continue
            seat = Seat(server, self._link(server.url, self._token, self._request_timeout_s))
            try:
                return seat, await seat.reset(item)
            except (Full, Gone, Unreachable):
                refused.add(server)
                await seat.leave()
            except BaseException:
                await seat.leave()
                raise

    def _next(self, refused: set[_Server]) -> _Server | None:
        now = time.monotonic()
        able = [server for server in self._servers if server.until <= now and server not in refused]
        if not able:
            return None
        server = min(able, key=lambda server: server.live)
        if server.rest_s:
            server.try_again()
        return server

    def _told(self) -> str:
        return "; ".join(f"{server.url} {server.said or 'is full'}" for server in self._servers)


def on_servers(spec: EnvSpec, servers: Servers) -> EnvSpec:
    """`spec`, with its instances on `servers`: they need nothing of this machine."""
    return replace(spec, make=servers.make, isolation="none", preload=(), max_episodes=None, requirements=())


class Seat:
    """One session on one server."""

    def __init__(self, server: _Server, link: Link) -> None:
        self._server = server
        self._link: Link | None = link
        server.live += 1

    async def reset(self, item: Item) -> str:
        """Start `item`. Raises `Full`, `Unreachable` or `Gone` where another session could."""
        assert self._link is not None
        try:
            observation = await self._link.reset(item)
        except Full as full:
            self._server.answered()
            self._server.said = str(full)
            raise
        except Unreachable as lost:
            self._server.failed(lost)
            raise
        self._server.answered()
        return observation

    async def step(self, action: str) -> StepResult:
        """One action; every failure is an `EnvCrashed`, or a `ConfigError`."""
        assert self._link is not None
        try:
            return await self._link.step(action)
        except asyncio.CancelledError:
            # Whoever plays has his own limit for a step, or ends the play: in both cases nobody knows whether
            # this server answers at all, and others are asked before it.
            self._server.failed(Unreachable("a step was given up before it was answered"))
            raise
        except Unreachable as lost:
            self._server.failed(lost)
            raise EnvCrashed(f"{self._server.url}: {lost}") from lost
        except Gone as gone:
            raise EnvCrashed(f"{self._server.url}: {gone}") from gone

    async def leave(self) -> None:
        """Give the session up. Idempotent."""
        link, self._link = self._link, None
        if link is not None:
            self._server.live -= 1
            await link.close()


class RemoteEnv:
    """One live instance on one of the servers."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._seat: Seat | None = None

    async def reset(self, item: Item) -> str:
        """Start `item`, in the session of the last episode where that still is."""
        seat, self._seat = self._seat, None
        if seat is not None:
            try:
                observation = await seat.reset(item)
            except (Full, Gone, Unreachable):
                await seat.leave()
            except BaseException:
                await seat.leave()
                raise
            else:
                self._seat = seat
                return observation
        self._seat, observation = await self._servers.start(item)
        return observation

    async def step(self, action: str) -> StepResult:
        """Apply one action of the current episode."""
        if self._seat is None:
            raise RuntimeError("step before reset")
        return await self._seat.step(action)

    async def close(self) -> None:
        """End the session."""
        seat, self._seat = self._seat, None
        if seat is not None:
            await seat.leave()
