"""ScienceWorld: numbering, splits, scores, and the simulator's own gold paths through our interface."""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from envs.builtin.sciworld import TASKS, Jvm, SciWorldEnv, expert, find_variation, make_item, split
from envs.errors import ConfigError, MissingDependency
from envs.requirements.detection import JAVA
from envs.types import Item
from tests.support.needs import needs

needs_java = needs(JAVA)


def first_of(number: str) -> int:
    index = 0
    for task in TASKS:
        if task.number == number:
            return index
        index += task.variations
    raise KeyError(number)


@needs_java
def test_the_table_of_tasks_is_the_packages() -> None:
    """Names, numbers of variations and their split, as the simulator says them."""
    from scienceworld.constants import ID2TASK

    left_out = {"5-1", "5-2", "9-1", "9-2", "9-3", "10-1", "10-2"}
    assert [(task.number, task.name) for task in TASKS] == [
        (number, name) for number, name in ID2TASK.items() if number not in left_out
    ]
    jvm = Jvm()
    try:
        for task in TASKS:
            simulator = jvm.simulator
            simulator.load(task.name, 0, "", False)
            assert simulator.getTaskMaxVariations(task.name) == task.variations
            assert list(simulator.getVariationsTrain()) == list(range(task.train))
            assert list(simulator.getVariationsTest()) == list(range(task.test, task.variations))
    finally:
        jvm.close()


def test_items_are_numbered_task_by_task() -> None:
    assert (find_variation(0)[0].name, find_variation(0)[1]) == ("boil", 0)
    assert (find_variation(29)[0].name, find_variation(29)[1]) == ("boil", 29)
    assert (find_variation(30)[0].name, find_variation(30)[1]) == ("melt", 0)
    last = sum(task.variations for task in TASKS) - 1
    assert (find_variation(last)[0].name, find_variation(last)[1]) == ("identify-life-stages-2", 9)
    with pytest.raises(ConfigError, match=str(last + 1)):
        find_variation(last + 1)


def test_the_split_keeps_the_packages_training_and_test_variations_apart() -> None:
    items = split(0)
    assert (len(items.train), len(items.test)) == (2120, 200)
    for item in items.train:
        task, variation = find_variation(int(item.item_id.removeprefix("sciworld_")))
        assert variation < task.train
    for item in items.test:
        task, variation = find_variation(int(item.item_id.removeprefix("sciworld_")))
        assert variation >= task.test
    assert split(0) == items
    assert split(1).test != items.test


@pytest.fixture(scope="module")
def env() -> Iterator[SciWorldEnv]:
    """One JVM for the tests that need no fresh one."""
    env = SciWorldEnv()
    yield env
    asyncio.run(env.close())


@needs_java
async def test_gold_paths_reach_full_marks(env: SciWorldEnv) -> None:
    """The first variations of tasks whose gold path is items in a second or two, in one simulator."""
    for number in ("1-2", "4-2", "7-1", "8-2"):
        item = make_item(first_of(number))
        opening = await env.reset(item)
        assert opening.startswith("Your task is to")
        rewards = []
        for step in expert(item):
            result = await env.step(step.resolve(""))
            rewards.append(result.reward)
            if result.terminated:
                break
        assert result.terminated, number
        assert result.success, number
        assert sum(rewards) == pytest.approx(1.0), number


@needs_java
async def test_the_same_item_is_the_same_whatever_was_played_before() -> None:
    """Java's own order of objects differs from game to game: here in the container that the path opens."""
    item, other_item = make_item(35), make_item(34)

    async def play(*items: Item) -> list[list[object]]:
        env = SciWorldEnv()
        games: list[list[object]] = []
        try:
            for item in items:
                games.append([await env.reset(item)])
                for step in path:
                    result = await env.step(step.resolve(""))
                    games[-1].append((result.observation, result.reward))
                    if result.terminated:
                        break
            return games
        finally:
            await env.close()

    path = expert(item)
    expert(other_item)
    assert expert(item) == path
    first, second = await play(item, item)
    assert second == first
    assert (await play(other_item, other_item, item))[-1] == first


@needs_java
async def test_a_wrong_focus_ends_the_task_without_a_score(env: SciWorldEnv) -> None:
    await env.reset(make_item(first_of("4-4")))
    nonsense = await env.step("dance with the stove")
    assert not nonsense.terminated
    assert nonsense.reward == 0
    wrong = await env.step("focus on air")
    assert wrong.terminated
    assert not wrong.success
    assert wrong.reward == 0


@needs_java
async def test_a_killed_jvm_is_a_fault_and_close_leaves_no_process() -> None:
    env = SciWorldEnv()
    await env.reset(make_item(0))
    assert env.jvm
    pid = env.jvm.pid
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(Exception, match=r"."):
        await env.step("look around")
    await env.close()
    await env.close()
    assert not psutil.pid_exists(pid)
    await env.reset(make_item(1))  # it starts another
    assert env.jvm
    second_pid = env.jvm.pid
    await env.close()
    assert not psutil.pid_exists(second_pid)


def test_without_java_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingDependency, match="apt-get install default-jre-headless"):
        Jvm()
