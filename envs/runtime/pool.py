"""Live environments of one kind, lent one episode at a time: a cap, a fair queue, warm reuse.

Decides how many instances live and who gets the next. It learns that an instance is broken from an exception
that leaves a lease, and that it is dead from the instance itself. `Shares` divides a cap among several pools.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager

from envs.errors import EnvCrashed, EpisodeTimeout, boundary
from envs.runtime.concurrency import gather_or_cancel
from envs.runtime.metrics import Clock, PoolMetrics
from envs.runtime.time_limits import run_in_time
from envs.types import (
    Environment,
    HasProcess,
    HasSession,
    Item,
    Observation,
    StepResult,
    await_result,
    read_state_key,
)

CLOSE_TIMEOUT_S = 10.0
"""Seconds a broken instance may take to close before it is abandoned."""

_CLOSED_MESSAGE = "the environment pool is closed"
_log = logging.getLogger(__name__)


class Instance:
    """An `Environment` as a pool lends it: with clocks and a count of its episodes.

    It is around `unwrapped`, which tools and rewards receive (`unwrap`) because it may have more than the
    protocol's methods, such as a workspace. An environment in another process has no more.
    """

    __slots__ = ("_process", "_resets", "_session", "_steps", "episodes", "is_reusable", "unwrapped")

    def __init__(self, env: Environment, *, resets: Clock, steps: Clock) -> None:
        """All instances of a pool share its clocks."""
        self.unwrapped = env
        self._process = env if isinstance(env, HasProcess) else None
        self._session = env if isinstance(env, HasSession) else None
        self._resets = resets
        self._steps = steps
        self.episodes = 0
        """Number of episodes begun."""
        self.is_reusable = True
        """Whether the pool may lend it again."""

    @property
    def is_alive(self) -> bool:
        """False if its process is known to be dead."""
        return self._process is None or self._process.is_alive

    async def prepare(self) -> None:
        """Start its process, if any, before the first reset."""
        if self._process is not None:
            await self._process.prepare()

    async def acquire(self) -> None:
        """Wait for its session, if it needs one, before an episode."""
        if self._session is not None:
            await self._session.acquire()

    def release(self) -> None:
        """Let others have its session, if it has one, after an episode."""
        if self._session is not None:
            self._session.release()

    async def reset(self, item: Item) -> str | Observation:
        self.episodes += 1
        start = time.perf_counter()
        try:
            return await await_result(self.unwrapped.reset(item), name="reset")
        finally:
            self._resets.add_since(start)

    async def step(self, action: str) -> StepResult:
        start = time.perf_counter()
        try:
            return await await_result(self.unwrapped.step(action), name="step")
        finally:
            self._steps.add_since(start)

    def state_key(self) -> str | None:
        """None as well if the environment has no states."""
        return read_state_key(self.unwrapped)

    async def close(self) -> None:
        await self.unwrapped.close()

    def __repr__(self) -> str:
        return f"<{type(self.unwrapped).__name__}>"


def unwrap(env: Environment) -> Environment:
    """Return the environment inside a pool's `Instance`, or `env` itself."""
    return env.unwrapped if isinstance(env, Instance) else env


class EnvPool:
    """At most `capacity` instances of one environment."""

    def __init__(
        self,
        make: Callable[[], Environment],
        *,
        capacity: int,
        max_episodes: int | None = None,
        shares: "Shares | None" = None,
    ) -> None:
        """`max_episodes`: the number of episodes after which an instance is closed."""
        if capacity < 1:
            raise ValueError(f"capacity {capacity}: a pool holds at least one environment")
        self.capacity = capacity
        self._make = make
        self._max_episodes = max_episodes
        self._shares = shares
        self._idle: list[Instance] = []
        self._num_occupied = 0  # slots of instances that are lent, or being prepared or closed
        # First come, first served. The result is a warm instance, or None for a slot to make one.
        self._waiting: dict[asyncio.Future[Instance | None], None] = {}
        self._num_acquiring = 0  # instances that wait for a session
        self._closing: set[asyncio.Task[None]] = set()
        self._grant_is_due = False
        self._is_closed = False
        self._num_created = 0
        self._num_replaced = 0
        self._num_recycled = 0
        self._resets = Clock()
        self._steps = Clock()

    @asynccontextmanager
    async def lease(self, *, timeout_s: float | None = None, fresh: bool = False) -> AsyncIterator[Instance]:
        """Lend one instance; it returns to the pool on exit, or is closed if the block raises.

        Waits up to `timeout_s` seconds for a slot (None: without limit), then raises `EpisodeTimeout`. An
        instance that needs a session then waits for it. `fresh` asks for a new instance instead of a warm
        one. Raises `EnvCrashed` if the instance cannot be made or gets no session.
        """
        instance = await self._wait_for_slot(timeout_s)
        if instance is not None and (fresh or not instance.is_alive):
            self._num_replaced += 1
            try:
                await _close(instance)
            except BaseException:
                self._discard(instance)
                raise
            instance = None
        if instance is None:
            try:
                instance = self._create()
            except BaseException:
                self._free_slot()
                raise
        try:
            self._num_acquiring += 1
            try:
                await instance.acquire()
            finally:
                self._num_acquiring -= 1
            if self._is_closed:
                raise RuntimeError(_CLOSED_MESSAGE)
            yield instance
        except BaseException:
            self._num_replaced += 1
            self._discard(instance)
            raise
        self._take_back(instance)

    async def warm_up(self, count: int) -> None:
        """Prepare instances until `count` are live, at most the capacity; raise if one fails."""
        missing = max(0, min(count, self.capacity) - self.live)
        self._num_occupied += missing
        num_begun = 0

        async def prepare() -> None:
            nonlocal num_begun
            num_begun += 1
            await self._prepare()

        try:
            await gather_or_cancel(prepare() for _ in range(missing))
        finally:  # after a failure, some of the others did not begin
            for _ in range(missing - num_begun):
                self._free_slot()

    @property
    def live(self) -> int:
        return self._num_occupied + len(self._idle)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def idle(self) -> int:
        return len(self._idle)

    @property
    def closing(self) -> int:
        """The number of slots that are about to become free."""
        return len(self._closing)

    @property
    def metrics(self) -> PoolMetrics:
        """The current state and counts."""
        return PoolMetrics(
            live=self.live,
            idle=self.idle,
            waiting=self.waiting + self._num_acquiring,
            created=self._num_created,
            replaced=self._num_replaced,
            recycled=self._num_recycled,
            reset=self._resets.seconds,
            step=self._steps.seconds,
        )

    def wake(self) -> None:
        """Serve the first waiter in the event loop's next iteration, if there is a free slot."""
        # One grant per iteration: a reset is often CPU work, and hundreds in a row would stall the running
        # episodes.
        if not self._grant_is_due and self._waiting and self._num_occupied < self.capacity:
            self._grant_is_due = True
            asyncio.get_running_loop().call_soon(self._grant)

    def drop_idle(self) -> None:
        """Close the instance that has been idle for the longest time."""
        self._num_recycled += 1
        self._num_occupied += 1
        self._discard(self._idle.pop(0))

    async def close(self) -> None:
        """Close idle instances now and lent ones when they come back; reject waiting callers."""
        self._is_closed = True
        for waiter in self._waiting:
            if not waiter.done():  # cancelled, but not yet out of the queue
                waiter.set_exception(RuntimeError(_CLOSED_MESSAGE))
        self._waiting.clear()
        idle, self._idle = self._idle, []
        await asyncio.gather(*map(_close, idle), *self._closing)
        await asyncio.sleep(0)  # slots come free by callbacks, which a task that was done already still owes

    async def _wait_for_slot(self, timeout_s: float | None) -> Instance | None:
        if self._is_closed:
            raise RuntimeError(_CLOSED_MESSAGE)
        waiter: asyncio.Future[Instance | None] = asyncio.get_running_loop().create_future()
        self._waiting[waiter] = None
        self.wake()
        try:
            async with asyncio.timeout(timeout_s):
                return await waiter
        except BaseException as error:
            self._waiting.pop(waiter, None)
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                # The slot was granted at the moment the wait ended.
                instance = waiter.result()
                if instance is None:
                    self._free_slot()
                else:
                    self._take_back(instance)
            else:
                self._notify_shares()
            if isinstance(error, TimeoutError):
                raise EpisodeTimeout(
                    f"no environment became free within {timeout_s:g} s: {self._num_occupied} of the pool's "
                    f"{self.capacity} are in use; raise rollout.max_live_envs"
                ) from None
            raise

    def _create(self) -> Instance:
        with boundary(EnvCrashed, "making an environment"):
            env = self._make()
        self._num_created += 1
        return Instance(env, resets=self._resets, steps=self._steps)

    async def _prepare(self) -> None:
        try:
            instance = self._create()
        except BaseException:
            self._free_slot()
            raise
        try:
            await instance.prepare()
        except BaseException:
            self._num_replaced += 1
            self._discard(instance)
            raise
        self._take_back(instance)

    def _grant(self) -> None:
        self._grant_is_due = False
        while self._waiting and self._num_occupied < self.capacity:
            waiter = next(iter(self._waiting))
            if waiter.done():  # cancelled, but not yet out of the queue
                del self._waiting[waiter]
                continue
            if self._shares is not None and not self._shares.admits(self):
                return
            del self._waiting[waiter]
            self._num_occupied += 1
            waiter.set_result(self._idle.pop() if self._idle else None)
            self.wake()
            self._notify_shares()
            return

    def _take_back(self, instance: Instance) -> None:
        if self._is_closed:
            self._discard(instance)
        elif not instance.is_reusable:
            self._num_replaced += 1
            self._discard(instance)
        elif self._max_episodes is not None and instance.episodes >= self._max_episodes:
            self._num_recycled += 1
            self._discard(instance)
        else:
            instance.release()
            self._idle.append(instance)
            self._free_slot()

    def _free_slot(self) -> None:
        self._num_occupied -= 1
        self.wake()
        self._notify_shares()

    def _notify_shares(self) -> None:
        if self._shares is not None:
            self._shares.notify()

    def _discard(self, instance: Instance) -> None:
        """Close an instance in the background; its slot is freed afterwards."""
        task = asyncio.get_running_loop().create_task(_close(instance))
        self._closing.add(task)
        task.add_done_callback(self._finish_discard)

    def _finish_discard(self, task: asyncio.Task[None]) -> None:
        self._closing.discard(task)
        self._free_slot()


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
        """Whether `pool` may serve its first waiter now; if not, `pool.wake` is called later."""
        live, share = pool.live, self._pools[pool]
        is_claimed = any(rival is not pool and self._has_claim(rival) for rival in self._pools)
        room = self.room
        if pool.idle:  # an idle instance would be lent again
            if is_claimed and live - pool.closing > share and room <= 0:
                pool.drop_idle()
                return False
            return True
        if room > 0:
            return live < share or not is_claimed
        if not any(rival.closing for rival in self._pools):
            self._make_room()
        return False

    def notify(self) -> None:
        """React to a pool's change in its number of instances or waiters."""
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


async def _close(instance: Instance) -> None:
    """Close an instance; a failure is logged, because a broken instance often fails to close."""
    try:
        await run_in_time(instance.close(), timeout_s=CLOSE_TIMEOUT_S, name=f"closing {instance!r}")
    except Exception as error:
        _log.warning("closing %r failed: %s: %s", instance, type(error).__name__, error)
