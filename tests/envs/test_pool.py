"""The environment pool: its cap, its queue, which instances it reuses and which it closes."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

import pytest

from envs.errors import EnvCrashed, EpisodeTimeout, MissingDependency
from envs.runtime.pool import EnvPool, unwrap
from envs.types import StepResult
from tests.support.toy import ToyEnv, toy_item
from tests.support.waiting import wait_until_async

E = TypeVar("E", bound=ToyEnv)


class Factory(Generic[E]):
    """Makes toy environments and records them."""

    def __init__(self, make: Callable[[], E]) -> None:
        self.instances: list[E] = []
        self._make = make

    def __call__(self) -> E:
        self.instances.append(self._make())
        return self.instances[-1]


async def test_never_more_than_its_capacity() -> None:
    make = Factory(ToyEnv)
    pool = EnvPool(make, capacity=3)
    lent = 0
    most_lent = 0

    async def user() -> None:
        nonlocal lent, most_lent
        async with pool.lease() as env:
            lent += 1
            most_lent = max(most_lent, lent)
            await env.reset(toy_item())
            for _ in range(10):
                await asyncio.sleep(0)
                assert pool.metrics.live <= 3
            lent -= 1

    await asyncio.gather(*(user() for _ in range(20)))
    assert most_lent == 3
    assert len(make.instances) == 3
    assert sum(env.resets for env in make.instances) == 20
    metrics = pool.metrics
    assert (metrics.live, metrics.idle, metrics.waiting) == (3, 3, 0)
    assert (metrics.created, metrics.replaced, metrics.recycled) == (3, 0, 0)


async def test_first_come_first_served() -> None:
    pool = EnvPool(Factory(ToyEnv), capacity=1)
    order: list[int] = []

    async def user(number: int) -> None:
        async with pool.lease():
            order.append(number)
            await asyncio.sleep(0)

    await asyncio.gather(*(user(i) for i in range(10)))
    assert order == list(range(10))


async def test_waiting_ends_at_the_timeout_and_says_why() -> None:
    pool = EnvPool(Factory(ToyEnv), capacity=2)
    async with pool.lease(), pool.lease():
        with pytest.raises(EpisodeTimeout, match=r"2 of the pool's 2 .*max_live_envs") as error_info:
            async with pool.lease(timeout_s=0.02):
                pass
        assert "0.02 s" in str(error_info.value)
        assert pool.metrics.waiting == 0
    async with pool.lease(timeout_s=1):  # a caller that gave up takes no slot with it
        assert pool.metrics.live == 2


async def test_a_broken_instance_is_closed_and_replaced() -> None:
    make = Factory(ToyEnv)
    pool = EnvPool(make, capacity=1)
    with pytest.raises(KeyError):
        async with pool.lease() as failing:
            raise KeyError("broken")
    async with pool.lease(timeout_s=1) as env:
        assert env is not failing
        assert [e.is_closed for e in make.instances] == [True, False]
        assert (pool.metrics.created, pool.metrics.replaced) == (2, 1)


async def test_an_instance_that_cannot_even_close_is_let_go() -> None:
    class Stubborn(ToyEnv):
        async def close(self) -> None:
            raise OSError("no")

    pool = EnvPool(Stubborn, capacity=1)
    with pytest.raises(KeyError):
        async with pool.lease():
            raise KeyError("broken")
    async with pool.lease(timeout_s=1):
        assert pool.metrics.live == 1
    await pool.close()
    assert pool.metrics.live == 0


async def test_fresh_means_a_new_instance_within_the_cap() -> None:
    make = Factory(ToyEnv)
    pool = EnvPool(make, capacity=1)
    async with pool.lease() as first:
        pass
    async with pool.lease() as again:
        assert again is first
    async with pool.lease(fresh=True, timeout_s=1) as fresh_env:
        assert fresh_env is not first
        assert make.instances[0].is_closed
        assert pool.metrics.live == 1


@pytest.mark.usefixtures("brief_end")
async def test_an_instance_that_resists_the_end_of_its_close_is_let_go(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Clings(ToyEnv):
        async def close(self) -> None:
            self.cling_at = 0
            await self._fail_if_due()
            await super().close()

    monkeypatch.setattr("envs.runtime.pool.CLOSE_TIMEOUT_S", 0.1)
    make = Factory(Clings)
    pool = EnvPool(make, capacity=1)
    async with pool.lease():
        pass
    await pool.close()
    assert not make.instances[0].is_closed  # nobody has waited for it
    assert caplog.messages[0].startswith("closing <Clings> runs on after it was cancelled")


class ClosesOnRequest(ToyEnv):
    def __init__(self) -> None:
        super().__init__()
        self.is_closing, self.may_close = asyncio.Event(), asyncio.Event()

    async def close(self) -> None:
        self.is_closing.set()
        await self.may_close.wait()
        await super().close()


async def test_giving_up_while_an_instance_is_replaced_frees_its_slot_when_it_is_closed() -> None:
    make = Factory(ClosesOnRequest)
    pool = EnvPool(make, capacity=1)
    async with pool.lease():
        pass

    async def replace() -> None:
        async with pool.lease(fresh=True):
            pass

    waiting = asyncio.create_task(replace())
    await make.instances[0].is_closing.wait()
    waiting.cancel()
    with suppress(asyncio.CancelledError):
        await waiting
    assert pool.metrics.live == 1  # it still runs
    make.instances[0].may_close.set()
    async with pool.lease(timeout_s=5):
        assert make.instances[0].is_closed
        assert len(make.instances) == 2
        make.instances[1].may_close.set()
    await pool.close()


async def test_a_cancelled_waiter_and_a_cancelled_user_leave_no_hole() -> None:
    make = Factory(ToyEnv)
    pool = EnvPool(make, capacity=1)

    async def user() -> None:
        async with pool.lease():
            await asyncio.Event().wait()

    using, waiting = asyncio.create_task(user()), asyncio.create_task(user())
    await wait_until_async(lambda: pool.metrics.waiting == 1)
    waiting.cancel()
    using.cancel()
    await asyncio.gather(using, waiting, return_exceptions=True)
    async with pool.lease(timeout_s=1):
        assert make.instances[0].is_closed


async def cancel_user(pool: EnvPool, *, ticks: int) -> "asyncio.Task[None]":
    """Warm an instance of `pool`; returns a user of it, cancelled after `ticks` turns of the loop."""
    async with pool.lease():
        pass

    async def user() -> None:
        async with pool.lease():
            await asyncio.sleep(0)

    task = asyncio.create_task(user())
    for _ in range(ticks):
        await asyncio.sleep(0)
    task.cancel()
    return task


@pytest.mark.parametrize("ticks", range(6))
async def test_cancellation_at_any_moment_of_a_grant(ticks: int) -> None:
    pool = EnvPool(Factory(ToyEnv), capacity=1)
    task = await cancel_user(pool, ticks=ticks)
    await asyncio.gather(task, return_exceptions=True)
    async with pool.lease(timeout_s=1):
        metrics = pool.metrics
        assert (metrics.live, metrics.idle, metrics.waiting) == (1, 0, 0)


@pytest.mark.parametrize("ticks", range(6))
async def test_closing_at_any_moment_of_a_grant_that_is_cancelled(ticks: int) -> None:
    make = Factory(ToyEnv)
    pool = EnvPool(make, capacity=1)
    task = await cancel_user(pool, ticks=ticks)
    await pool.close()
    await asyncio.gather(task, return_exceptions=True)
    await wait_until_async(lambda: pool.metrics.live == 0)
    assert make.instances[0].is_closed


async def test_starts_are_spread_over_the_loops_turns() -> None:
    """Hundreds of samples start at once; between two starts, other tasks run."""
    pool = EnvPool(Factory(ToyEnv), capacity=50)
    events: list[str] = []
    everyone_started = asyncio.Event()

    async def user() -> None:
        async with pool.lease():
            events.append("start")
            if events.count("start") == 50:
                everyone_started.set()
            await everyone_started.wait()

    async def bystander() -> None:
        while not everyone_started.is_set():
            events.append("other")
            await asyncio.sleep(0)

    await asyncio.gather(*(user() for _ in range(50)), bystander())
    assert "startstart" not in "".join(events)


async def test_what_cannot_be_made_is_a_fault_and_takes_no_slot() -> None:
    causes: list[Exception] = [OSError("no port"), MissingDependency("install it")]

    def make() -> ToyEnv:
        if causes:
            raise causes.pop(0)
        return ToyEnv()

    pool = EnvPool(make, capacity=1)
    with pytest.raises(EnvCrashed, match="OSError: no port"):
        async with pool.lease():
            pass
    with pytest.raises(MissingDependency, match="install it"):  # a retry would not help
        async with pool.lease(timeout_s=1):
            pass
    async with pool.lease(timeout_s=1):
        assert pool.metrics.live == 1


async def test_closing_the_pool() -> None:
    make = Factory(ToyEnv)
    pool = EnvPool(make, capacity=2)
    async with pool.lease(), pool.lease():
        pass
    async with pool.lease() as lent:

        async def late() -> None:
            async with pool.lease(), pool.lease():
                pass

        waiting = asyncio.create_task(late())
        await wait_until_async(lambda: pool.metrics.waiting == 1)
        await pool.close()
        with pytest.raises(RuntimeError, match="closed"):
            await waiting
        with pytest.raises(RuntimeError, match="closed"):
            async with pool.lease():
                pass
        assert pool.metrics.idle == 0
        assert await lent.reset(toy_item())  # what is lent plays on
    await pool.close()
    assert all(env.is_closed for env in make.instances)
    assert pool.metrics.live == 0


async def test_closing_turns_the_others_away_though_one_has_just_been_cancelled() -> None:
    pool = EnvPool(ToyEnv, capacity=1)

    async def user() -> None:
        async with pool.lease():
            pass

    async with pool.lease():
        waiting = [asyncio.create_task(user()) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await pool.close()
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(error) for error in outcomes] == [asyncio.CancelledError, RuntimeError, RuntimeError]


def test_a_pool_outlives_an_event_loop_that_was_cut_short() -> None:
    pool = EnvPool(Factory(ToyEnv), capacity=2)

    async def user(seconds: float) -> None:
        async with pool.lease(timeout_s=1) as env:
            await env.reset(toy_item())
            await asyncio.sleep(seconds)

    async def cut_short() -> None:
        users = [asyncio.create_task(user(30)) for _ in range(5)]
        await wait_until_async(lambda: pool.metrics.waiting == 3)
        assert len(users) == 5  # left to the loop, which cancels them

    async def in_full() -> None:
        await asyncio.gather(*(user(0) for _ in range(5)))

    asyncio.run(cut_short())
    asyncio.run(in_full())
    assert (pool.metrics.live, pool.metrics.idle, pool.metrics.waiting) == (2, 2, 0)


@dataclass
class Mortal(ToyEnv):
    """A toy that can die and counts its preparations."""

    is_alive: bool = True
    num_preparations: int = 0

    async def prepare(self) -> None:
        self.num_preparations += 1
        await asyncio.sleep(0)
        if not self.is_alive:
            raise OSError("stillborn")


async def test_a_dead_instance_is_replaced_and_not_lent() -> None:
    make = Factory(Mortal)
    pool = EnvPool(make, capacity=2)
    async with pool.lease(), pool.lease():
        pass
    for instance in make.instances:
        instance.is_alive = False
    async with pool.lease(timeout_s=1) as env:
        assert await env.reset(toy_item()) == "Goal: reach 3."
        assert [dead.resets for dead in make.instances] == [0, 0, 1]
        assert [dead.is_closed for dead in make.instances].count(
            True
        ) == 1  # the other one when it is its turn
        assert (pool.metrics.live, pool.metrics.replaced) == (2, 1)


async def test_an_instance_is_recycled_after_its_last_episode() -> None:
    make = Factory(ToyEnv)
    pool = EnvPool(make, capacity=1, max_episodes=3)
    for _ in range(7):
        async with pool.lease(timeout_s=1) as env:
            await env.reset(toy_item())
    assert [env.resets for env in make.instances] == [3, 3, 1]
    assert [env.is_closed for env in make.instances] == [True, True, False]
    assert (pool.metrics.recycled, pool.metrics.replaced) == (2, 0)


async def test_warm_instances_are_ready_and_within_the_cap() -> None:
    make = Factory(Mortal)
    pool = EnvPool(make, capacity=3)
    await pool.warm_up(2)
    await pool.warm_up(9)
    assert [env.num_preparations for env in make.instances] == [1, 1, 1]
    assert (pool.metrics.live, pool.metrics.idle) == (3, 3)
    async with pool.lease():
        assert pool.metrics.created == 3


async def test_an_environment_that_cannot_be_prepared_is_an_error_and_holds_no_slot() -> None:
    make = Factory(partial(Mortal, is_alive=False))
    pool = EnvPool(make, capacity=2)
    with pytest.raises(OSError, match="stillborn"):
        await pool.warm_up(2)
    await pool.close()
    assert pool.metrics.live == 0
    assert all(env.is_closed for env in make.instances)


async def test_resets_and_steps_are_timed_whether_they_end_well_or_not() -> None:
    class Slow(ToyEnv):
        async def step(self, action: str) -> StepResult:
            await asyncio.sleep(0.02 if action == "add 2" else 0)
            return await super().step(action)

    pool = EnvPool(partial(Slow, crash_at=3), capacity=1)
    with suppress(KeyError):
        async with pool.lease() as env:
            await env.reset(toy_item(target=9))
            for action in ("add 1", "add 2", "add 1"):
                await env.step(action)
    assert (pool.metrics.reset.count, pool.metrics.step.count) == (1, 3)
    assert pool.metrics.step.longest >= 0.02
    assert pool.metrics.step.mean >= 0.02 / 3
    assert 0 < pool.metrics.reset.longest < pool.metrics.step.longest


async def test_the_environment_itself_is_reached_through_the_lease() -> None:
    pool = EnvPool(ToyEnv, capacity=1)
    async with pool.lease() as env:
        inner = unwrap(env)
        assert isinstance(inner, ToyEnv)
        assert unwrap(inner) is inner
        assert not hasattr(env, "max_steps")
        assert inner.max_steps == 100


def test_a_pool_holds_something() -> None:
    with pytest.raises(ValueError, match="capacity 0"):
        EnvPool(ToyEnv, capacity=0)
