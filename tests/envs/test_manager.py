"""Several kinds of environments under one manager: their caps, and how they share a total."""

import asyncio
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.errors import ConfigError, EpisodeTimeout
from envs.runtime.manager import EnvManager
from tests.support.examples import examples
from tests.support.toy import ToyEnv, toy_item, toy_spec


class A(ToyEnv): ...


class B(ToyEnv): ...


def make_manager(*, capacity: int | dict[str, int], total: int | None = None) -> EnvManager:
    specs = [toy_spec(A, name="a"), toy_spec(B, name="b")]
    return EnvManager(specs, capacity=capacity, total=total)


async def users(envs: EnvManager, kind: str, count: int, *, lent_kinds: list[str], turns: int = 3) -> None:
    async def user() -> None:
        async with envs.lease(kind) as env:
            lent_kinds.append(kind)
            await env.reset(toy_item())
            for _ in range(turns):
                await asyncio.sleep(0)

    await asyncio.gather(*(user() for _ in range(count)))


async def test_each_kind_has_its_own_instances_and_its_own_cap() -> None:
    envs = make_manager(capacity={"a": 2, "b": 1})
    async with envs.lease("a") as first_a, envs.lease("a") as second_a, envs.lease("b") as only_b:
        assert "<A>" in repr(first_a) + repr(second_a)
        assert repr(only_b) == "<B>"
        for full in ("a", "b"):
            with pytest.raises(EpisodeTimeout):
                async with envs.lease(full, timeout_s=0.01):
                    pass
    assert {name: metrics.idle for name, metrics in envs.metrics.items()} == {"a": 2, "b": 1}
    await envs.close()
    assert [metrics.live for metrics in envs.metrics.values()] == [0, 0]


def test_a_kind_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match="'c' here, only a, b"):
        make_manager(capacity=1).lease("c")


async def test_what_idles_makes_room_for_another_kind() -> None:
    envs = make_manager(capacity=4, total=4)
    await users(envs, "a", 4, lent_kinds=[])
    assert envs.metrics["a"].idle == 4
    async with envs.lease("b", timeout_s=1), envs.lease("b", timeout_s=1):
        assert {name: metrics.live for name, metrics in envs.metrics.items()} == {"a": 2, "b": 2}
    assert envs.metrics["a"].recycled == 2


@pytest.mark.parametrize("iterations", [0, 3])
async def test_a_kind_in_constant_use_does_not_starve_another(
    iterations: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`iterations`: of the event loop, that it takes to close an instance."""

    async def close(env: ToyEnv) -> None:
        for _ in range(iterations):
            await asyncio.sleep(0)

    monkeypatch.setattr(ToyEnv, "close", close)
    envs = make_manager(capacity=4, total=4)
    lent_kinds: list[str] = []
    busy = asyncio.create_task(users(envs, "a", 40, lent_kinds=lent_kinds))
    for _ in range(6):
        await asyncio.sleep(0)
    assert envs.metrics["a"].live == 4
    await users(envs, "b", 10, lent_kinds=lent_kinds)
    await busy
    first, last = lent_kinds.index("b"), len(lent_kinds) - 1 - lent_kinds[::-1].index("b")
    assert first < 10
    assert last < 40  # b has had its half of the instances while a went on
    # Where both wait, neither takes an instance from the other again and again.
    assert envs.metrics["a"].recycled <= 2
    assert envs.metrics["b"].recycled <= 2


@pytest.mark.heavy
@settings(max_examples=examples(40))
@given(
    total=st.integers(2, 6),
    capacity=st.fixed_dictionaries({"a": st.integers(1, 5), "b": st.integers(1, 5)}),
    calls=st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 4), st.booleans()), max_size=25),
)
def test_everybody_is_served_and_no_cap_is_passed(
    total: int, capacity: dict[str, int], calls: list[tuple[str, int, bool]]
) -> None:
    """Every caller is served, whenever it comes, however long it stays, whatever it breaks."""

    async def main() -> None:
        envs = make_manager(capacity=capacity, total=total)
        lent_kinds: list[str] = []

        async def user(kind: str, turns: int, breaks: bool) -> None:
            async with envs.lease(kind, timeout_s=5):
                lent_kinds.append(kind)
                for _ in range(turns):
                    await asyncio.sleep(0)
                    lives = {name: metrics.live for name, metrics in envs.metrics.items()}
                    assert sum(lives.values()) <= total
                    assert all(lives[name] <= capacity[name] for name in lives)
                if breaks:
                    raise KeyError(kind)

        ends = await asyncio.gather(*(user(*call) for call in calls), return_exceptions=True)
        assert [type(end) for end in ends] == [KeyError if breaks else type(None) for *_, breaks in calls]
        assert len(lent_kinds) == len(calls)
        await envs.close()
        assert sum(metrics.live for metrics in envs.metrics.values()) == 0

    asyncio.run(main())


async def test_warming_up_takes_nothing_from_others() -> None:
    envs = make_manager(capacity=4, total=5)
    await envs.warm_up("a", 3)
    await envs.warm_up("b", 4)
    assert {name: metrics.idle for name, metrics in envs.metrics.items()} == {"a": 3, "b": 2}
    assert envs.metrics["a"].recycled == 0


def test_a_total_leaves_one_for_each_kind() -> None:
    with pytest.raises(ValueError, match="total 1: each of 2 kinds"):
        make_manager(capacity=4, total=1)


async def test_an_instance_may_be_limited_in_episodes_by_its_kind() -> None:
    envs = EnvManager([toy_spec(partial(ToyEnv), max_episodes=1)], capacity=1)
    for _ in range(3):
        async with envs.lease("toy", timeout_s=1) as env:
            await env.reset(toy_item())
    assert envs.metrics["toy"].recycled == 3
