"""All live environments of a program: one pool for each kind with its cap, and an optional total cap.

Decides where the instances of a kind live: in this process, each in its own process, or on the host from
`remote_host`. The pools (`envs/runtime/pool.py`) decide which caller gets the next instance.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial

from envs.errors import ConfigError
from envs.registry import EnvSpec
from envs.runtime.hosted import Host, HostedEnv
from envs.runtime.metrics import PoolMetrics
from envs.runtime.pool import EnvPool, Instance, Shares
from envs.runtime.processes import ProcessHost


class EnvManager:
    """Lends environments by name; one event loop at a time."""

    def __init__(
        self,
        specs: Iterable[EnvSpec],
        *,
        capacity: int | Mapping[str, int],
        total: int | None = None,
        remote_host: Callable[[EnvSpec], Host] | None = None,
    ) -> None:
        """`capacity`: most live instances of each kind, or of each by name; `total`: of all kinds together.

        `remote_host` replaces this machine as the host of kinds that are or need processes.
        """
        kinds = {spec.name: spec for spec in specs}
        capacities = capacity if isinstance(capacity, Mapping) else dict.fromkeys(kinds, capacity)
        is_capped = total is not None and total < sum(capacities[name] for name in kinds)
        self._shares = Shares(total) if total is not None and is_capped else None
        self._pools: dict[str, EnvPool] = {}
        self._hosts: list[Host] = []
        for name, spec in kinds.items():
            host = make_host(spec, remote_host=remote_host)
            if host is not None:
                self._hosts.append(host)
            self._pools[name] = EnvPool(
                spec.make if host is None else partial(HostedEnv, host),
                capacity=capacities[name],
                max_episodes=spec.max_episodes,
                shares=self._shares,
            )
        if self._shares is not None:
            self._shares.divide(self._pools.values())

    def lease(
        self, env: str, *, timeout_s: float | None = None, fresh: bool = False
    ) -> AbstractAsyncContextManager[Instance]:
        """Lend an instance of the kind `env`, as `EnvPool.lease` does."""
        return self._pool(env).lease(timeout_s=timeout_s, fresh=fresh)

    async def warm_up(self, env: str, count: int) -> None:
        """Prepare instances of the kind `env` until `count` are live, as far as the caps allow."""
        pool = self._pool(env)
        room = count if self._shares is None else self._shares.room
        await pool.warm_up(min(count, pool.live + room))

    @property
    def metrics(self) -> dict[str, PoolMetrics]:
        """The metrics of each pool, by kind."""
        return {name: pool.metrics for name, pool in self._pools.items()}

    async def close(self) -> None:
        """Close idle instances now and lent ones when they come back; reject waiting callers."""
        await asyncio.gather(*(pool.close() for pool in self._pools.values()))
        await asyncio.gather(*(host.close() for host in self._hosts))

    def _pool(self, env: str) -> EnvPool:
        if env not in self._pools:
            raise ConfigError(
                f"no environment {env!r} here, only {', '.join(self._pools)}; is the item another pipeline's?"
            )
        return self._pools[env]


def make_host(spec: EnvSpec, *, remote_host: Callable[[EnvSpec], Host] | None = None) -> Host | None:
    """Return the host of the instances of `spec`, each in a `HostedEnv`; None for this process."""
    if spec.isolation == "none" or (spec.isolation == "own" and remote_host is None):
        return None
    return ProcessHost(spec.make, preload=spec.preload) if remote_host is None else remote_host(spec)
