"""The guarantees of every registered environment (`envs/types.py`), in this process and in its own process.

A new environment is tested here as soon as it is registered. One with missing requirements is skipped, with
the command that installs them. One without items gets made-up ones without a known solution; any action ends
their episodes.
"""

import asyncio
import itertools
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from envs.errors import EnvCrashed, MissingDependency
from envs.registry import ENVIRONMENTS, MAX_EXPERT_TURNS, EnvSpec, ExpertStep, get_env
from envs.runtime.hosted import HostedEnv
from envs.runtime.processes import ProcessHost
from envs.types import Environment, Item, StepResult, read_state_key
from tests.support.leaks import Growth, measure, some_items
from tests.support.openings import read_opening

T = TypeVar("T")

ROOT = Path(__file__).parents[2]

GARBAGE = (
    "",
    " \t",
    "\n",
    "\n\n\n",
    "two\nlines",
    "\r\x00\x1b[2J",
    "é 漢字 🙂 \u202e",
    "word " * 20_000,
    "get " + "9" * 5_000,
    "-1",
    "{}[]()<>%s${x}'\"\\",
)

QUICK = {"sciworld": Item(item_id="sciworld_4240", env="sciworld")}
"""Items with a quick solution, for environments whose first item has none."""


ANY: dict[bool, Sequence[ExpertStep]] = {True: (), False: (ExpertStep(thought="", action="4"),)}
"""Replaces an unknown solution; the key is whether the environment has items."""


class Sample:
    """An item with its solution, and one instance's results for malformed actions and for the solution, with
    the key of the state after the reset and after each of them."""

    def __init__(self, spec: EnvSpec) -> None:
        spec.check()
        if spec.has_items and not spec.has_expert:
            pytest.skip(f"no solution of {spec.name}'s items is known")
        self.spec = spec
        train = some_items(spec)
        items = [QUICK[spec.name]] if spec.name in QUICK else train
        solutions = ((item, spec.solve(item) or ANY[spec.has_items]) for item in items)
        self.item, self.solution = next((item, solution) for item, solution in solutions if solution)
        self.second_item = next(i for i in train if i != self.item)
        self.opening, self.garbage, self.results, self.keys = on(spec.make, self.play)

    async def play(
        self, env: Environment
    ) -> tuple[str, list[StepResult], list[StepResult], list[str | None]]:
        opening = await read_opening(env, self.item)
        keys = [read_state_key(env)]
        garbage = []
        for action in GARBAGE:
            garbage.append(await env.step(action))
            if garbage[-1].terminated:
                await env.reset(self.item)
            keys.append(read_state_key(env))
        results = await run_script(env, self.solution, observation=opening, keys=keys)
        return opening, garbage, results, keys  # garbage changes nothing


async def run_script(
    env: Environment,
    solution: Sequence[ExpertStep],
    *,
    observation: str,
    keys: list[str | None] | None = None,
) -> list[StepResult]:
    results: list[StepResult] = []
    for step in solution:
        results.append(await env.step(step.resolve(observation)))
        if keys is not None:
            keys.append(read_state_key(env))
        observation = results[-1].observation
        if results[-1].terminated:
            break
    return results


def on(make: Callable[[], Environment], use: Callable[[Environment], Awaitable[T]]) -> T:
    """Return the result of `use` on a new instance, which is then closed."""

    async def main() -> T:
        env = make()
        try:
            return await use(env)
        finally:
            await env.close()

    return asyncio.run(main())


ENV_PARAMS = [
    pytest.param(name, marks=[pytest.mark.heavy] * (name in ("alfworld-mini", "textworld")))
    for name in ENVIRONMENTS
]
"""The heavy ones make their games by a planner or a compiler."""


@pytest.fixture(scope="module", params=ENV_PARAMS)
def sample(request: pytest.FixtureRequest) -> Sample:
    try:
        return Sample(get_env(request.param))
    except MissingDependency as missing:
        pytest.skip(str(missing))


def test_observations_rewards_and_ends_have_their_documented_types(sample: Sample) -> None:
    assert type(sample.opening) is str
    assert sample.opening.strip()
    for result in [*sample.garbage, *sample.results]:
        assert type(result) is StepResult
        assert type(result.observation) is str
        assert type(result.reward) is float
        flags = (result.terminated, result.truncated, result.success)
        assert {type(flag) for flag in flags} == {bool}
        assert not (result.terminated and result.truncated)
        assert result.terminated or not result.success
        result.observation.encode()  # it is text, to be sent and stored


def test_garbage_is_answered_and_ends_and_spoils_nothing(sample: Sample) -> None:
    if not sample.spec.has_items:
        assert {*sample.garbage, *sample.results} == {StepResult("", terminated=True)}
        return
    for action, result in zip(GARBAGE, sample.garbage, strict=True):
        assert result.observation.strip(), action[:20]
        assert len(result.observation) < 10_000
        assert (result.reward, result.terminated, result.truncated) == (0.0, False, False)
    *before, last = sample.results
    assert not any(result.terminated for result in before)
    assert last.success
    assert 0 < sum(result.reward for result in sample.results) <= 1.0 + 1e-9


def test_an_item_plays_the_same_on_any_instance_whatever_it_did_before(sample: Sample) -> None:
    async def twice(env: Environment) -> None:
        opening = await env.reset(sample.second_item)
        assert opening != sample.opening
        for _ in range(2):
            assert await sample.play(env) == (sample.opening, sample.garbage, sample.results, sample.keys)

    on(sample.spec.make, twice)


@pytest.mark.heavy
def test_an_item_plays_the_same_in_another_process(sample: Sample) -> None:
    host = ProcessHost(sample.spec.make, preload=sample.spec.preload)

    async def there(env: Environment) -> None:
        assert await sample.play(env) == (sample.opening, sample.garbage, sample.results, sample.keys)
        with pytest.raises(EnvCrashed, match="RuntimeError: step before reset, or after the end"):
            await env.step("look around")

    on(lambda: HostedEnv(host), there)
    asyncio.run(host.close())


def test_states_have_keys_until_the_end(sample: Sample) -> None:
    if not sample.spec.has_states:
        assert set(sample.keys) == {None}
        return
    assert read_state_key(sample.spec.make()) is None, "before a reset"
    first, *after_garbage = sample.keys[: 1 + len(GARBAGE)]
    *on_the_way, last = sample.keys[1 + len(GARBAGE) :]
    assert first
    assert set(after_garbage) == {first}, "what is no action changes nothing"
    assert None not in on_the_way
    assert last is None, "after the end"
    assert len({first, *on_the_way}) == 1 + len(on_the_way), "a solution does not come back"


def test_nothing_is_played_before_a_reset_or_after_the_end(sample: Sample) -> None:
    async def out_of_turn(env: Environment) -> None:
        with pytest.raises(RuntimeError, match="before reset"):
            await env.step("look around")
        await env.close()
        results = await run_script(env, sample.solution, observation=await read_opening(env, sample.item))
        assert results[-1].terminated
        with pytest.raises(RuntimeError, match="after the end"):
            await env.step("look around")
        assert await env.reset(sample.item) == sample.opening
        await env.close()
        await env.close()
        with pytest.raises(RuntimeError, match="before reset"):
            await env.step("look around")

    on(sample.spec.make, out_of_turn)


@pytest.mark.heavy
@pytest.mark.parametrize("is_hosted", [False, True])
def test_nothing_is_left_behind(sample: Sample, is_hosted: bool) -> None:
    """`bench/conformance.py` does it a thousand times. A leak grows in every measurement; what earlier tests
    have left running in this process's family may grow in one or two."""
    is_light = sample.spec.isolation == "none"
    if is_hosted and not is_light:
        pytest.skip("it has a process of its own already")
    # Each process of a hosted one makes its item anew, which TextWorld does by a compiler, for seconds.
    cycles, warm_up = {(True, False): (40, 13), (True, True): (2, 1), (False, False): (2, 0)}[
        is_light, is_hosted
    ]

    def grow() -> Growth:
        return asyncio.run(measure(sample.spec.name, cycles=cycles, is_hosted=is_hosted, warm_up=warm_up))

    for _ in range(3):
        growth = grow()
        if not growth.processes and growth.handles <= 0:
            break
    assert growth.processes == 0
    assert growth.handles <= 0
    assert growth.memory_growth <= 0.05


def test_the_benchmark_of_leaks_takes_its_own_options() -> None:
    command = [sys.executable, "-m", "bench.conformance", "textcraft", "--cycles", "2"]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=ROOT).stdout
    growth = Growth(**json.loads(output))
    assert (growth.env, growth.is_hosted, growth.cycles, growth.processes) == ("textcraft", False, 2, 0)


def test_every_item_has_a_name_of_its_own(sample: Sample) -> None:
    if not sample.spec.has_items:
        pytest.skip("its items are a user's; tests/tasks/test_data_files.py")
    split = sample.spec.split(0)
    items: list[Item] = [*split.train, *split.test]
    assert len({item.item_id for item in items}) == len(items)
    assert {item.env for item in items} == {sample.spec.name}
    assert all(item.item_id.startswith(f"{sample.spec.name}_") for item in items)


def test_an_expert_without_an_end_knows_no_solution() -> None:
    turn, spec = ExpertStep(thought="", action="inventory"), get_env("textcraft")
    item = spec.split(0).train[0]
    assert replace(spec, expert=lambda _: itertools.repeat(turn)).solve(item) == ()
    longest = (turn,) * MAX_EXPERT_TURNS
    assert replace(spec, expert=lambda _: longest).solve(item) == longest
    assert replace(spec, expert=lambda _: (*longest, turn)).solve(item) == ()
