"""Taking turns in an event loop, by a clock that only work moves."""

import asyncio
from collections import Counter

import pytest

from envs.runtime.concurrency import TURNS_PER_ITERATION, TURNS_S, gather_or_cancel, take_turn


class Clock:
    """The loop's clock, and the number of its iteration."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.iteration = 0
        self._loop = asyncio.get_running_loop()
        monkeypatch.setattr(self._loop, "time", lambda: self.now)
        self._loop.call_soon(self._tick)

    def _tick(self) -> None:
        self.iteration += 1
        self._loop.call_soon(self._tick)


@pytest.mark.xfail(raises=AssertionError, strict=True)
async def test_an_assertion_that_fails_in_a_coroutine_fails_its_test() -> None:
    """An error unless tests/conftest.py runs coroutine tests to their end."""
    await asyncio.sleep(0)
    assert not asyncio.get_running_loop().is_running()


async def test_an_iteration_has_as_many_turns_as_fit_into_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    turns_per_iteration: Counter[int] = Counter()
    order: list[int] = []
    clock = Clock(monkeypatch)

    async def work(number: int) -> None:
        await take_turn()
        turns_per_iteration[clock.iteration] += 1
        order.append(number)
        clock.now += 0.4 * TURNS_S

    async with asyncio.timeout(None), asyncio.TaskGroup() as group:
        for number in range(300):
            group.create_task(work(number))
    assert sorted(order) == list(range(300))
    assert max(turns_per_iteration.values()) == 3  # the third begins within the time
    assert len(turns_per_iteration) >= 100


async def test_work_that_takes_no_time_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    await gather_or_cancel(take_turn() for _ in range(TURNS_PER_ITERATION - 1))
    assert clock.iteration <= 3


async def test_who_is_cancelled_while_waiting_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    results: list[str] = []

    async def work(name: str) -> None:
        await take_turn()
        results.append(name)
        clock.now += 2 * TURNS_S

    first = asyncio.create_task(work("first"))
    cancelled_tasks = [asyncio.create_task(work(f"cancelled {n}")) for n in range(2 * TURNS_PER_ITERATION)]
    last = asyncio.create_task(work("last"))
    await first
    await asyncio.sleep(0)
    for task in cancelled_tasks:
        task.cancel()
    await last
    assert results[0] == "first"
    assert results[-1] == "last"
    assert len(results) < TURNS_PER_ITERATION


async def test_many_coroutines_end_with_the_first_error() -> None:
    num_started = 0

    async def work(number: int) -> int:
        nonlocal num_started
        num_started += 1
        if number == 5:
            raise ValueError("five")
        await asyncio.sleep(3600)
        return number

    with pytest.raises(ValueError, match="five"):
        await gather_or_cancel(work(n) for n in range(100 * TURNS_PER_ITERATION))
    assert num_started <= 3 * TURNS_PER_ITERATION  # the others were never made
