"""Live environments, lent one episode at a time: a cap, a fair queue, warm reuse.

Owns how many instances live and who gets the next. Knows nothing of episodes: that an instance is
broken it learns from an exception that leaves a lease.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from envs.base import Environment
from envs.errors import EnvCrashed, EpisodeTimeout, WingspanError

CLOSE_TIMEOUT_S = 10.0
"""What a broken instance may take to close before it is abandoned."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolMetrics:
    """A pool at one moment."""

    live: int
    """Instances that hold resources: lent, idle or being closed. Never above the capacity."""
    idle: int
    waiting: int
    """Callers in the queue."""
    created: int
    """Instances made so far."""
    replaced: int
    """Instances closed so far because a lease ended in an exception or asked for a fresh one."""


class EnvPool:
    """At most `capacity` instances of one environment."""

    def __init__(self, make: Callable[[], Environment], *, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity {capacity}: a pool holds at least one environment")
        self.capacity = capacity
        self._make = make
        self._idle: list[Environment] = []
        self._taken = 0  # slots lent, or held by an instance that is being closed
        # First come, first served. The result is a warm instance, or None: make one.
        self._waiting: dict[asyncio.Future[Environment | None], None] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._grant_is_due = False
        self._closed = False
        self._created = 0
        self._replaced = 0

    @asynccontextmanager
    async def lease(
        self, *, timeout_s: float | None = None, fresh: bool = False
    ) -> AsyncIterator[Environment]:
        """Lend one instance; it comes back on leaving, or is closed if an exception leaves with it.

        Waits at most `timeout_s` seconds for its turn (None: as long as it takes), else raises
        `EpisodeTimeout`. `fresh` asks for a new instance instead of a warm one. Raises `EnvCrashed`
        if one cannot be made.
        """
        env = await self._wait_for_slot(timeout_s)
        try:
            if fresh and env is not None:
                self._replaced += 1
                await _close(env)
                env = None
            if env is None:
                env = self._create()
        except BaseException:
            self._free_slot()
            raise
        try:
            yield env
        except BaseException:
            self._replaced += 1
            self._discard(env)
            raise
        if self._closed:
            self._discard(env)
        else:
            self._idle.append(env)
            self._free_slot()

    @property
    def metrics(self) -> PoolMetrics:
        """Where the pool stands now."""
        return PoolMetrics(
            live=self._taken + len(self._idle),
            idle=len(self._idle),
            waiting=len(self._waiting),
            created=self._created,
            replaced=self._replaced,
        )

    async def close(self) -> None:
        """Close idle instances, now, and lent ones as they come back; turn waiting callers away."""
        self._closed = True
        for waiter in self._waiting:
            waiter.set_exception(_pool_closed())
        self._waiting.clear()
        idle, self._idle = self._idle, []
        await asyncio.gather(*map(_close, idle), *self._closing)

    async def _wait_for_slot(self, timeout_s: float | None) -> Environment | None:
        if self._closed:
            raise _pool_closed()
        waiter: asyncio.Future[Environment | None] = asyncio.get_running_loop().create_future()
        self._waiting[waiter] = None
        self._grant_soon()
        try:
            async with asyncio.timeout(timeout_s):
                return await waiter
        except BaseException as error:
            self._waiting.pop(waiter, None)
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                # The grant and the end of the wait crossed.
                env = waiter.result()
                if env is not None:
                    self._idle.append(env)
                self._free_slot()
            if isinstance(error, TimeoutError):
                raise EpisodeTimeout(
                    f"no environment came free within {timeout_s:g} s: the pool's {self.capacity} are all "
                    "in use; raise rollout.max_live_envs"
                ) from None
            raise

    def _create(self) -> Environment:
        try:
            env = self._make()
        except WingspanError:
            raise
        except Exception as error:
            raise EnvCrashed(f"cannot make an environment: {type(error).__name__}: {error}") from error
        self._created += 1
        return env

    def _grant_soon(self) -> None:
        # One grant per turn of the event loop: a reset is often CPU work, and hundreds of them in
        # a row would stall every episode that is already running.
        if not self._grant_is_due and self._waiting and self._taken < self.capacity:
            self._grant_is_due = True
            asyncio.get_running_loop().call_soon(self._grant)

    def _grant(self) -> None:
        self._grant_is_due = False
        while self._waiting and self._taken < self.capacity:
            waiter = next(iter(self._waiting))
            del self._waiting[waiter]
            if not waiter.done():  # a cancelled one has not come round to leave the queue
                self._taken += 1
                waiter.set_result(self._idle.pop() if self._idle else None)
                self._grant_soon()
                return

    def _free_slot(self) -> None:
        self._taken -= 1
        self._grant_soon()

    def _discard(self, env: Environment) -> None:
        """Close an instance without keeping its user waiting; its slot is free once it is gone."""
        task = asyncio.get_running_loop().create_task(_close(env))
        self._closing.add(task)
        task.add_done_callback(self._discarded)

    def _discarded(self, task: asyncio.Task[None]) -> None:
        self._closing.discard(task)
        self._free_slot()


def _pool_closed() -> RuntimeError:
    return RuntimeError("the environment pool is closed")


async def _close(env: Environment) -> None:
    """Close, whatever happens: a broken instance may well fail at this too."""
    try:
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await env.close()
    except Exception as error:
        _log.warning("closing %s failed: %s: %s", type(env).__name__, type(error).__name__, error)
