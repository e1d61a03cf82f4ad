"""All live environments of a program: one pool for each kind with its cap, and an optional total cap.

Decides where the instances of a kind live (in this process, each in its own process, or on the host from
`remote_host`) and how many a kind may take from the total. Which caller gets the next instance is decided by
the kind's pool (`envs/runtime/pool.py`).
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial

from envs.errors import ConfigError
from envs.registry import EnvSpec
from envs.runtime.hosted import Host, HostedEnv
from envs.runtime.instance import Instance
from envs.runtime.metrics import PoolMetrics
from envs.runtime.pool import EnvPool
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
                budget=self._shares,
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


class Shares:
    """A cap over several pools: a pool may use what others leave until they claim their shares.

    A pool's share of the cap is proportional to its capacity, and at least one. A pool below its share with a
    waiting caller is served before pools above theirs, whose returned instances are closed instead of lent
    again. So no caller waits forever, and if all pools have callers, instances are not closed and made in
    turn.
    """

    def __init__(self, total: int) -> None:
        """`divide` assigns the shares."""
        self._total = total
        self._pools: dict[EnvPool, int] = {}

    def divide(self, pools: Collection[EnvPool]) -> None:
        """Give each pool its share; raise `ValueError` if there are more pools than the total."""
        if self._total < len(pools):
            raise ValueError(f"total {self._total}: each of {len(pools)} kinds of environments needs one")
        spare, whole = self._total - len(pools), sum(pool.capacity for pool in pools)
        self._pools = {pool: 1 + spare * pool.capacity // whole for pool in pools}

    @property
    def room(self) -> int:
        """Number of instances that may still be made."""
        return self._total - sum(pool.live for pool in self._pools)

    def admits(self, pool: EnvPool) -> bool:
        live, share = pool.live, self._pools[pool]
        is_claimed = any(rival is not pool and self._has_claim(rival) for rival in self._pools)
        room = self.room
        if pool.idle:  # an idle instance would be lent again
            if is_claimed and live > share and room <= 0:
                pool.drop_idle()
                return False
            return True
        if room > 0:
            return live < share or not is_claimed
        if not any(rival.is_closing_some for rival in self._pools):
            self._make_room()
        return False

    def notify(self) -> None:
        for pool in self._pools:
            pool.wake()

    def _has_claim(self, pool: EnvPool) -> bool:
        """Whether `pool` comes first: it is below its share, and a caller waits for a new instance."""
        return pool.waiting > 0 and pool.idle == 0 and pool.live < min(self._pools[pool], pool.capacity)

    def _make_room(self) -> None:
        """Close an idle instance of the pool furthest above its share; if none idles, the next one that such
        a pool gets back is closed."""
        pools = [pool for pool in self._pools if pool.idle > pool.waiting]
        if pools:
            max(pools, key=lambda pool: pool.live - self._pools[pool]).drop_idle()
