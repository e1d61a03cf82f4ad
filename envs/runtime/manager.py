"""All live environments of a program: one pool for each kind, each with a cap, and an optional total cap.

Owns where the instances of a kind live: in this process, each in a process of its own, or on the host that
`remote_host` makes. Which caller gets the next instance of a kind is decided by its pool
(`envs/runtime/pool.py`); how many a kind may take from the total is decided here.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial

from envs.base import Environment
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
        """`capacity`: live instances of each kind at most, or of each by its name; `total`: of all together.

        `remote_host` chooses another host than this machine for kinds that are or need processes.
        """
        self._pools: dict[str, EnvPool] = {}
        self._hosts: list[Host] = []
        kinds = {spec.name: spec for spec in specs}
        capacities = capacity if isinstance(capacity, Mapping) else dict.fromkeys(kinds, capacity)
        caps = {name: capacities[name] for name in kinds}
        shares = None if total is None or total >= sum(caps.values()) else Shares(total, caps)
        for name, spec in kinds.items():
            pool = EnvPool(
                self._maker(spec, remote_host),
                capacity=capacities[name],
                max_episodes=spec.max_episodes,
                budget=shares,
            )
            self._pools[name] = pool
            if shares is not None:
                shares.join(name, pool)
        self._shares = shares

    def lease(
        self, env: str, *, timeout_s: float | None = None, fresh: bool = False
    ) -> AbstractAsyncContextManager[Instance]:
        """Lend an instance of the kind `env`; see `EnvPool.lease`."""
        return self._pool(env).lease(timeout_s=timeout_s, fresh=fresh)

    async def warm_up(self, env: str, count: int) -> None:
        """Have `count` instances of the kind `env` ready, as many as the caps allow."""
        pool = self._pool(env)
        room = count if self._shares is None else self._shares.room
        await pool.warm_up(min(count, pool.live + room))

    @property
    def metrics(self) -> dict[str, PoolMetrics]:
        """Where each kind stands now."""
        return {name: pool.metrics for name, pool in self._pools.items()}

    async def close(self) -> None:
        """Close idle instances, now, and lent ones as they come back; turn waiting callers away."""
        await asyncio.gather(*(pool.close() for pool in self._pools.values()))
        await asyncio.gather(*(host.close() for host in self._hosts))

    def _pool(self, env: str) -> EnvPool:
        if env not in self._pools:
            raise ConfigError(
                f"no environment {env!r} here, only {', '.join(self._pools)}; is the item another pipeline's?"
            )
        return self._pools[env]

    def _maker(
        self, spec: EnvSpec, remote_host: Callable[[EnvSpec], Host] | None
    ) -> Callable[[], Environment]:
        host = make_host(spec, remote_host=remote_host)
        if host is None:
            return spec.make
        self._hosts.append(host)
        return partial(HostedEnv, host)


def make_host(spec: EnvSpec, *, remote_host: Callable[[EnvSpec], Host] | None = None) -> Host | None:
    """Where instances of `spec` are to live, each in a `HostedEnv`; None for this very process."""
    if spec.isolation == "none" or (spec.isolation == "own" and remote_host is None):
        return None
    return ProcessHost(spec.make, preload=spec.preload) if remote_host is None else remote_host(spec)


class Shares:
    """A cap over several pools. What one does not use the others may, until it wants its share back.

    A share is what the cap would give a pool in proportion to its capacity, one at least. A pool below its
    share that has somebody waiting is served before those above theirs: what they get back is closed, not
    lent again. So nobody waits for ever, and where all wait, nothing is made and closed by turns.
    """

    def __init__(self, total: int, capacities: Mapping[str, int]) -> None:
        """`capacities` of the pools by name; each is to `join`."""
        if total < len(capacities):
            raise ValueError(f"total {total}: each of {len(capacities)} kinds of environments needs one")
        spare, whole = total - len(capacities), sum(capacities.values())
        self._total = total
        self._shares = {name: 1 + spare * capacity // whole for name, capacity in capacities.items()}
        self._pools: dict[EnvPool, int] = {}

    def join(self, name: str, pool: EnvPool) -> None:
        """`pool` is that of `name`."""
        self._pools[pool] = self._shares[name]

    @property
    def room(self) -> int:
        """How many more instances may live."""
        return self._total - sum(pool.live for pool in self._pools)

    def admits(self, pool: EnvPool) -> bool:
        live, share = pool.live, self._pools[pool]
        is_claimed = any(
            pool_with_claim is not pool and self._claims(pool_with_claim) for pool_with_claim in self._pools
        )
        room = self.room
        if pool.idle:  # one is lent again
            if is_claimed and live > share and room <= 0:
                pool.drop_idle()
                return False
            return True
        if room > 0:
            return live < share or not is_claimed
        if not any(pool_with_claim.is_closing_some for pool_with_claim in self._pools):
            self._make_room(pool)
        return False

    def notify(self) -> None:
        for pool in self._pools:
            pool.wake()

    def _claims(self, pool: EnvPool) -> bool:
        """Whether `pool` is to be served first: below its share, and somebody waits for a new instance."""
        return pool.waiting > 0 and pool.idle == 0 and pool.live < min(self._pools[pool], pool.capacity)

    def _make_room(self, wanting: EnvPool) -> None:
        """Close what idles elsewhere, in the pool that is furthest above its share."""
        idling = [pool for pool in self._pools if pool.idle > pool.waiting]
        if idling:
            max(idling, key=lambda pool: pool.live - self._pools[pool]).drop_idle()
        # else the next that a pool above its share gets back makes room
