"""MiniWoB++ in the browser of the web tasks: its own pages, its own rewards."""

from dataclasses import replace

from envs.builtin.browser.expert_steps import find
from envs.builtin.browser.program import CHROMIUM
from envs.builtin.miniwob.env import MiniWobEnv, find_task, pages
from envs.builtin.miniwob.expert import EXPERTS
from envs.builtin.miniwob.spec import SPEC, make_item, split
from envs.builtin.miniwob.tasks import TASKS
from envs.types import Item
from tests.support.kills import kill_browser, measure
from tests.support.needs import needs

pytestmark = needs(CHROMIUM)


def item(task: str, seed: int = 0) -> Item:
    return make_item(seed * len(TASKS) + TASKS.index(task))


def test_items_are_tasks_and_seeds() -> None:
    assert len(TASKS) == len(set(TASKS)) == 65
    assert set(EXPERTS) <= set(TASKS)
    assert len(EXPERTS) >= 15
    for task in TASKS:
        assert (pages() / "miniwob" / f"{task}.html").is_file()
    sides = split(0)
    assert (len(sides.train), len(sides.test)) == (780, 130)
    assert {test_item.metadata["task"] for test_item in sides.test} == set(TASKS)
    assert not {find_task(test_item.index)[1] for test_item in sides.train} & {
        find_task(test_item.index)[1] for test_item in sides.test
    }
    assert find_task(65 * 3 + 1) == (TASKS[1], 3)


async def test_scripts_solve_tasks_from_observations_and_pages_give_the_rewards() -> None:
    """`python -m bench.experts miniwob` plays all scripts."""
    items = [item(task, seed) for seed, task in enumerate(("login-user", "choose-list", "read-table-2"))]
    env = MiniWobEnv()
    results = []
    for task_item in items:
        observation = await env.reset(task_item)
        assert "OBJECTIVE: " in observation
        assert "Time left" not in observation
        for step in SPEC.expert(task_item):
            results.append(await env.step(step.resolve(observation)))
            observation = results[-1].observation
    dialog = await env.reset(item("click-dialog-2"))
    wrong_name = next(name for name in ("OK", "Cancel") if f'"{name}"' not in dialog)
    results.append(await env.step(f"click [{find(dialog, 'button', wrong_name)}]"))
    await env.reset(item("focus-text"))
    refusal = await env.step("goto [http://miniwob.test/miniwob/click-test.html]")
    assert "one page only" in refusal.observation
    results.append(await env.step("stop"))
    await env.close()
    *turns, wrong, stop = results
    lengths = [len(SPEC.solve(task_item)) for task_item in items]
    assert len(turns) == sum(lengths)
    lasts = [turns[sum(lengths[: n + 1]) - 1] for n in range(len(lengths))]
    assert all(last == replace(turns[-1], reward=1.0, terminated=True, success=True) for last in lasts)
    assert (wrong.reward, wrong.terminated, wrong.success) == (-1.0, True, False)
    assert (stop.reward, stop.terminated, stop.success) == (0.0, True, False)


def test_a_killed_browser_costs_attempts_and_nothing_else() -> None:
    outcome = measure("miniwob", [item("login-user")], kills=1, num_samples=2, capacity=2, kill=kill_browser)
    assert outcome.kills == 1
    assert (outcome.episodes, outcome.successes) == (2, 1)
    assert outcome.is_same
    assert outcome.retries >= 1
