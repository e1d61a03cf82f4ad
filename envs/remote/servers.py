"""Environments on remote servers: new instances go to the least busy one, and not to one that failed lately.

`Servers.make` fits `EnvSpec.make`: each instance is a session on one of the servers for as long as it lives.
A failed server or connection raises `EnvCrashed`, so that the episode is retried, on another server if there
is one; a failure that no retry can fix raises `ConfigError`.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from envs.errors import ConfigError, EnvCrashed
from envs.network.client import is_http_url
from envs.registry import EnvSpec
from envs.remote.agentgym_link import AgentGymLink
from envs.remote.link import Link, ServerFull, ServerUnreachable, SessionLost
from envs.remote.wingspan_link import Connections
from envs.types import Environment, Item, StepResult

WireProtocol = Literal["wingspan", "agentgym"]

FIRST_REST_S, LONGEST_REST_S = 1.0, 60.0
"""How long a server that did not answer is avoided: doubled each time until it answers again."""

POLL_S = 0.2
"""The time between two searches for a server while none has room."""

_log = logging.getLogger(__name__)


def _agentgym(url: str, token: str | None, timeout_s: float) -> Callable[[], Link]:
    return partial(AgentGymLink, url, token, timeout_s)


def _wingspan(url: str, token: str | None, timeout_s: float) -> Callable[[], Link]:
    return Connections(url, token, timeout_s=timeout_s).make_link


_LINKS = {"wingspan": _wingspan, "agentgym": _agentgym}
"""Protocol → what makes the links to a server, by its URL, token and time limit for a request."""


@dataclass(slots=True, eq=False)
class _Server:
    """One URL and the state of its server."""

    url: str
    make_link: Callable[[], Link]
    """A new session there, which begins with its first reset."""
    live: int = 0
    """Instances of this process there."""
    rest_s: float = 0.0
    """Length of its last rest; 0 while it answers."""
    avoided_until_s: float = 0.0
    """Monotonic time before which it gets no new instance."""
    on_trial: bool = False
    """One instance tests whether it works again; the others wait for the result."""
    last_failure: str = ""

    def try_again(self) -> None:
        """Let one instance test it after a rest."""
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


class Servers:
    """The servers of one environment."""

    def __init__(
        self,
        urls: Sequence[str],
        *,
        protocol: WireProtocol = "wingspan",
        token: str | None = None,
        request_timeout_s: float = 120.0,
        patience_s: float = 60.0,
    ) -> None:
        """`protocol`: AgentGym's own servers know only "agentgym".

        `request_timeout_s`: what one reset or step may take before the server counts as dead.
        `patience_s`: how long a new instance waits while all servers are full or dead.
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
            _Server(url, make_link(url, token, request_timeout_s))
            for url in dict.fromkeys(url.rstrip("/") for url in urls)
        ]
        self._patience_s = patience_s
        self.has_states = protocol == "wingspan"
        """Whether answers carry the keys of states."""

    def make(self) -> Environment:
        """A new instance; it finds its server at the first reset."""
        return RemoteEnv(self)

    @property
    def live(self) -> dict[str, int]:
        """URL → instances of this process there."""
        return {server.url: server.live for server in self._servers}

    async def start(self, item: Item, env: "RemoteEnv") -> str:
        """Start `item` in a new session on the least busy server that works; returns the first observation.

        Raises `EnvCrashed` if none does within `patience_s` seconds, or if an environment breaks.
        """
        deadline = time.monotonic() + self._patience_s
        unavailable: set[_Server] = set()
        while True:
            server = self._next(unavailable)
            if server is None:
                if time.monotonic() > deadline:
                    failures = (
                        f"{server.url} {server.last_failure or 'is full'}" for server in self._servers
                    )
                    raise EnvCrashed(f"no server has room for {item.item_id}: {'; '.join(failures)}")
                unavailable.clear()
                await asyncio.sleep(POLL_S)
                continue
            env.connect(server, server.make_link())
            try:
                return await env.reset_session(item)
            except (ServerFull, SessionLost, ServerUnreachable):
                unavailable.add(server)

    def _next(self, unavailable: set[_Server]) -> _Server | None:
        now = time.monotonic()
        able = [
            server for server in self._servers if server.avoided_until_s <= now and server not in unavailable
        ]
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
    """One live instance: a session on one of the servers."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._server: _Server | None = None
        self._link: Link | None = None

    async def reset(self, item: Item) -> str:
        """Start `item`, in the session of the last episode if it is still open."""
        if self._link is not None:
            with suppress(ServerFull, SessionLost, ServerUnreachable):
                return await self.reset_session(item)
        return await self._servers.start(item, self)

    async def step(self, action: str) -> StepResult:
        """Apply one action of the current episode. Every failure is an `EnvCrashed`, or a `ConfigError`."""
        server, link = self._server, self._link
        if server is None or link is None:
            raise RuntimeError("step before reset")
        try:
            return await link.step(action)
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
        return None if self._link is None else self._link.state

    async def close(self) -> None:
        """End the session. Idempotent."""
        server, link = self._server, self._link
        self._server = self._link = None
        if server is not None and link is not None:
            server.live -= 1
            await link.close()

    def connect(self, server: _Server, link: Link) -> None:
        """Use `link` to `server` for the next session."""
        self._server, self._link = server, link
        server.live += 1

    async def reset_session(self, item: Item) -> str:
        """Start `item` on the current link, which is closed on failure. Raises `ServerFull`, `SessionLost` or
        `ServerUnreachable` if another session may succeed."""
        server, link = self._server, self._link
        assert server is not None
        assert link is not None
        try:
            observation = await link.reset(item)
        except BaseException as error:
            if isinstance(error, ServerFull):
                server.report_success()
                server.last_failure = str(error)
            elif isinstance(error, ServerUnreachable):
                server.report_failure(error)
            await self.close()
            raise
        server.report_success()
        return observation
