"""`@reward`, sums of rewards, and where they land on a trajectory."""

import asyncio
import functools
import math
import re
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any, SupportsFloat

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.rewards import (
    REWARDS,
    CombinedReward,
    FunctionReward,
    RewardInput,
    RewardResult,
    assign_rewards,
    reward,
)
from agents.rewards.environment import environment, environment_success
from agents.rewards.types import ALWAYS, Reward, check_items, read_result
from agents.types import StopReason, Trajectory
from envs.errors import ConfigError, EnvCrashed, EpisodeFault, MissingDependency, RewardFailed
from envs.requirements.detection import Package
from envs.types import Environment, Item
from tests.support.reward_toy import make_reward_input, make_trajectory
from tests.support.toy import ToyEnv, toy_item


def compute(subject: Reward, reward_input: RewardInput) -> RewardResult:
    return asyncio.run(subject.score(reward_input))


def test_a_function_gets_what_its_signature_names_and_no_more() -> None:
    arguments = []

    @reward
    def length(
        final_response: str, answer: int, target: int, item: Item, turns: int = 3, missing: str = "default"
    ) -> float:
        arguments.append((final_response, answer, target, item.item_id, turns, missing))
        return len(final_response) / turns

    reward_input = make_reward_input("first", "four", fields={"answer": 42, "turns": 2, "unasked": object()})
    assert compute(length, reward_input) == RewardResult(reward=2.0)
    assert arguments == [("four", 42, 3, "toy_7", 2, "default")]  # the 3 is of item.metadata
    assert length.name == "length"
    assert length("four", 42, 3, reward_input.item) == pytest.approx(4 / 3)  # still the function


def test_all_names_that_are_always_there() -> None:
    @reward(name="everything")
    async def everything(
        final_response: str,
        trajectory: Trajectory,
        transcript: str,
        item: Item,
        fields: Mapping[str, object],
        env: Environment,
    ) -> float:
        assert final_response == "b"
        assert [turn.text for turn in trajectory.turns] == ["a", "b"]
        assert transcript == "Assistant: a\nObservation: seen 0\nAssistant: b\nObservation: seen 1"
        assert (item.item_id, dict(fields)) == ("toy_7", {"x": 1})
        return float(isinstance(env, ToyEnv))

    reward_input = replace(make_reward_input("a", "b", fields={"x": 1}), env=ToyEnv())
    everything.check({"x", "target", "env"})
    assert compute(everything, reward_input).reward == 1.0
    assert everything.name == "everything"


def test_a_parameter_that_nothing_fills_is_found_before_anything_starts() -> None:
    @reward
    def exact(final_response: str, ground_truth: str) -> float:
        raise AssertionError("never called")

    with pytest.raises(
        ConfigError, match=r"'exact' takes 'ground_truth'.*did you mean 'groundtruth'.*question"
    ):
        exact.check(["question", "groundtruth"])
    with pytest.raises(ConfigError, match="takes 'ground_truth'"):
        compute(exact, make_reward_input("x", fields={"question": "?"}))
    with pytest.raises(ConfigError, match="takes 'env'"):
        reward(lambda env: 0.0).check([])
    with pytest.raises(ConfigError, match=r"'trajectory'.*rename the field"):
        exact.check(["ground_truth", "trajectory"])
    with pytest.raises(ConfigError, match=r"toy_1: the data has a field 'env'.*rename the field"):
        check_items(exact, [replace(toy_item(1), fields={"ground_truth": "x", "env": "prod"})])


def test_what_a_reward_needs_is_found_before_anything_starts() -> None:
    @reward(needs=[Package("no-such-package-of-wingspan")])
    def needy(final_response: str) -> float:
        return 0.0

    with pytest.raises(MissingDependency, match="'needy' needs no-such-package-of-wingspan; uv pip install"):
        needy.check([])


@pytest.mark.parametrize("bad", [lambda *texts: 0.0, lambda **fields: 0.0, eval("lambda x, /: 0.0")])
def test_parameters_without_a_name_are_refused(bad: Callable[..., float]) -> None:
    with pytest.raises(ConfigError, match="has no name"):
        reward(bad)


def test_whatever_can_be_called_is_a_reward() -> None:
    async def later(final_response: str, scale: float = 1.0) -> float:
        await asyncio.sleep(0)
        return scale * len(final_response)

    @functools.wraps(later)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return later(*args, **kwargs)

    class Length:
        async def __call__(self, final_response: str) -> float:
            return await later(final_response)

    class Sync:
        def __call__(self, final_response: str) -> float:
            return len(final_response)

    for target in (later, wrapped, Length(), Sync(), functools.partial(later, scale=1.0)):
        assert compute(reward(target), make_reward_input("four")).reward == 4
    assert [reward(target).name for target in (wrapped, Length())] == ["later", "Length"]


def test_what_is_no_reward_is_refused() -> None:
    with pytest.raises(ConfigError, match="'plain' is a function, not a reward; decorate a function"):
        CombinedReward({"plain": 1.0}, rewards={"plain": lambda final_response: 1.0})  # type: ignore[dict-item]


@pytest.mark.parametrize("options", [{"timeout_s": 0.0}, {"timeout_s": math.nan}, {"max_attempts": 0}])
def test_options_that_cannot_be_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        reward(**options)


@pytest.mark.parametrize("value", [1, True, 0.5, np.float32(0.5), np.int64(2), Fraction(1, 2)])
def test_numbers_of_any_kind(value: SupportsFloat) -> None:
    assert compute(reward(lambda: value), make_reward_input("x")).reward == float(value)


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        math.inf,
        10**400,
        "1",
        None,
        [1.0],
        1j,
        {"score": 1.0},
        {"reward": None},
        {"reward": 1.0, "metric": math.nan},
        {"reward": 1.0, "metric": "high"},
        {"reward": 1.0, "sucess": True},
        {"reward": 1.0, "success": 1},
        {"reward": 1.0, "turn_rewards": 0.5},
        {"reward": 1.0, "turn_rewards": [0.5]},
        {"reward": 1.0, "turn_rewards": [0.5, math.inf]},
    ],
)
def test_a_value_that_is_no_reward_is_a_failure_and_no_zero(value: object) -> None:
    calls = []

    @reward(max_attempts=2)
    def bad() -> object:
        calls.append(1)
        return value

    with pytest.raises(
        RewardFailed, match="toy_7, sample 2: reward 'bad' failed at each of 2 calls"
    ) as failure:
        compute(bad, make_reward_input("a", "b"))
    assert isinstance(failure.value, EpisodeFault)
    assert len(calls) == 2


def test_a_misspelt_success_is_named() -> None:
    with pytest.raises(
        ValueError, match=r"metric 'sucess' is True; did you mean 'success'\? return a number"
    ):
        read_result({"reward": 1.0, "sucess": True}, turns=1)


@pytest.mark.parametrize("success", [np.True_, np.False_])
def test_a_bool_of_numpy_is_a_success_or_none(success: object) -> None:
    result = compute(reward(lambda: {"reward": 1.0, "success": success}), make_reward_input("x"))
    assert result.success is bool(success)


def test_metrics_turns_and_success_beside_the_reward() -> None:
    @reward
    def rich() -> dict[str, object]:
        return {"reward": 1, "turn_rewards": [0.25, 0.5], "success": True, "words": 7}

    assert compute(rich, make_reward_input("a", "b")) == RewardResult(
        reward=1.0, turn_rewards=(0.25, 0.5), success=True, metrics={"words": 7.0}
    )


def test_a_failing_reward_is_tried_again() -> None:
    calls = []

    @reward(max_attempts=3)
    def shaky() -> float:
        calls.append(1)
        if len(calls) < 3:
            raise KeyError("gone")
        return 0.5

    assert compute(shaky, make_reward_input("x")).reward == 0.5
    calls.clear()
    once = reward(name="once", max_attempts=1)(shaky.function)
    with pytest.raises(RewardFailed, match="KeyError: 'gone'") as failure:
        compute(once, make_reward_input("x"))
    assert isinstance(failure.value.__cause__, KeyError)


@pytest.mark.parametrize(
    "error", [StopIteration("no more"), SystemExit(3), EnvCrashed("gone"), TimeoutError("own")]
)
def test_whatever_a_reward_raises_is_a_failure(error: BaseException) -> None:
    def raising() -> float:
        raise error

    with pytest.raises(RewardFailed, match=type(error).__name__):
        compute(reward(raising), make_reward_input("x"))


def test_what_the_user_must_mend_is_not_tried_again() -> None:
    calls = []

    @reward
    async def unusable() -> float:
        calls.append(1)
        raise MissingDependency("install it")

    with pytest.raises(MissingDependency, match="install it"):
        compute(unusable, make_reward_input("x"))
    assert len(calls) == 1


async def test_a_reward_that_blocks_holds_nobody_up() -> None:
    all_inside = threading.Barrier(9)

    @reward
    def blocks() -> float:
        all_inside.wait(30)  # broken unless 8 rewards and the event loop's helper get here
        return 1.0

    scoring = [asyncio.create_task(blocks.score(make_reward_input("x"))) for _ in range(8)]
    await asyncio.to_thread(all_inside.wait, 30)
    assert [result.reward for result in await asyncio.gather(*scoring)] == [1.0] * 8


@pytest.mark.usefixtures("brief_end")
@pytest.mark.parametrize("kind", ["sync", "async", "clings"])
def test_a_reward_that_hangs_is_left_behind(kind: str) -> None:
    let_go = threading.Event()

    def hang() -> float:
        let_go.wait(60)
        return 1.0

    async def hang_async() -> None:
        await asyncio.Event().wait()

    async def cling() -> None:
        while True:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)

    functions: dict[str, Callable[[], Any]] = {"sync": hang, "async": hang_async, "clings": cling}
    hanging = reward(name="hang", timeout_s=0.05, max_attempts=2)(functions[kind])
    with pytest.raises(
        RewardFailed, match=r"at each of 2 calls, the last: it took longer than 0\.05 s; raise"
    ):
        compute(hanging, make_reward_input("x"))
    let_go.set()


async def test_a_reward_whose_episode_is_cancelled_is_cancelled() -> None:
    calls = []
    is_running = asyncio.Event()

    @reward
    async def endless() -> None:
        calls.append(1)
        is_running.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(endless.score(make_reward_input("x")))
    await is_running.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(calls) == 1


def test_a_failed_episode_has_no_reward() -> None:
    with pytest.raises(ValueError, match="it broke"):
        compute(environment, make_reward_input(stop=StopReason.ERROR))
    with pytest.raises(ValueError, match="it broke"):
        assign_rewards(make_trajectory("a", stop=StopReason.ERROR), RewardResult(reward=1.0))
    with pytest.raises(ValueError, match="no turn"):
        assign_rewards(make_trajectory(), RewardResult(reward=1.0))


def test_several_rewards_by_hand() -> None:
    rewards = {
        "correct": reward(lambda answer: {"reward": 1.0, "success": True, "f1": 0.75}),
        "format": reward(lambda: {"reward": 0.5, "turn_rewards": [1.0, 2.0]}),
        "play": environment,
        "unused": reward(lambda: math.nan),
    }
    weighted_sum = CombinedReward({"correct": 2.0, "format": -0.5, "play": 10}, rewards=rewards)
    weighted_sum.check(["answer"])
    with pytest.raises(ConfigError, match="'answer'"):
        weighted_sum.check([])
    result = compute(weighted_sum, make_reward_input("a", "b", fields={"answer": 1}, rewards=[0.0, 0.25]))
    assert result == RewardResult(
        reward=2.0 * 1.0 - 0.5 * 0.5,
        turn_rewards=(-0.5, -1.0 + 2.5),
        success=True,
        metrics={"correct": 1.0, "correct/f1": 0.75, "format": 3.5, "play": 0.25},
    )
    after = assign_rewards(
        make_trajectory("a", "b", rewards=[0.0, 0.25], metrics={"parse_failures": 1}), result
    )
    assert [turn.reward for turn in after.turns] == [-0.5, 1.5 + 1.75]
    assert (after.reward, after.success) == (2.75, True)
    assert after.metrics["parse_failures"] == 1
    assert after.metrics["reward/correct/f1"] == 0.75


@pytest.mark.parametrize(("weight", "success"), [(0.5, False), (0.0, True), (-0.5, True)])
def test_what_only_records_or_costs_does_not_decide_the_success(weight: float, success: bool) -> None:
    rewards = {
        "solved": reward(lambda: {"reward": 1.0, "success": True}),
        "other": reward(lambda: {"reward": 0.0, "success": False}),
    }
    weighted_sum = CombinedReward({"solved": 1.0, "other": weight}, rewards=rewards)
    assert compute(weighted_sum, make_reward_input("a")).success is success


def test_parts_are_computed_side_by_side_and_fail_together() -> None:
    cancelled_parts = []

    @reward
    async def waits() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            cancelled_parts.append("waits")

    failing = reward(max_attempts=1)(lambda: 1 / 0)
    weighted_sum = CombinedReward({"waits": 1.0, "broken": 1.0}, rewards={"waits": waits, "broken": failing})
    with pytest.raises(RewardFailed, match="division by zero"):
        compute(weighted_sum, make_reward_input("x"))
    assert cancelled_parts == ["waits"]
    outer = CombinedReward({"both": 1.0}, rewards={"both": weighted_sum})
    with pytest.raises(RewardFailed, match="division by zero"):
        compute(outer, make_reward_input("x"))


def test_sums_beyond_all_numbers_are_a_failure() -> None:
    huge = reward(lambda: 1e300)
    with pytest.raises(RewardFailed, match=r"toy_7, sample 2: the weighted reward .*no finite sum"):
        compute(CombinedReward({"a": 1e10}, rewards={"a": huge}), make_reward_input("x"))
    for turn_rewards in ([1e308], [-1e308, 1e308]):
        too_large = reward(max_attempts=1)(lambda: {"reward": 1e308, "turn_rewards": turn_rewards})  # noqa: B023
        with pytest.raises(RewardFailed, match="have no finite sum"):
            compute(too_large, make_reward_input(*["x"] * len(turn_rewards)))


@pytest.mark.parametrize(
    ("weights", "message"),
    [({}, "no parts"), ({"f2": 1.0}, "'f2'"), ({"qa_f1": math.inf}, "inf"), ({"qa_f1": True}, "True")],
)
def test_weights_that_cannot_be(weights: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CombinedReward(weights, rewards=REWARDS)


def test_the_environments_rewards_stay_where_they_were() -> None:
    before = make_trajectory("a", "b", "c", rewards=[0.5, 0.0, 1.0], success=True)
    after = assign_rewards(before, compute(environment, RewardInput(final_response="c", trajectory=before)))
    assert (after.turns, after.reward, after.success) == (before.turns, before.reward, True)
    assert compute(environment_success, RewardInput(final_response="c", trajectory=before)).reward == 1.0


@given(
    per_turn=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=12),
    outcome=st.floats(-1e6, 1e6),
    knows_turns=st.booleans(),
)
def test_sums_agree_and_turns_keep_their_order(
    per_turn: list[float], outcome: float, knows_turns: bool
) -> None:
    before = make_trajectory(*(f"text {i}" for i in range(len(per_turn))), rewards=[9.0] * len(per_turn))
    result = RewardResult(reward=outcome, turn_rewards=tuple(per_turn) if knows_turns else None)
    after = assign_rewards(before, result)
    assert after.reward == sum(turn.reward for turn in after.turns)
    assert after.reward == pytest.approx(result.total, abs=1e-6)
    assert [turn.text for turn in after.turns] == [turn.text for turn in before.turns]
    turn_rewards = per_turn if knows_turns else [0.0] * len(per_turn)
    assert [turn.reward for turn in after.turns[:-1]] == turn_rewards[:-1]
    assert after.turns[-1].reward == turn_rewards[-1] + outcome
    assert before.reward == 9.0 * len(per_turn)  # as it was


@given(turns=st.integers(1, 5), more=st.integers(1, 3))
def test_rewards_of_another_number_of_turns_are_refused(turns: int, more: int) -> None:
    with pytest.raises(ValueError, match=f"{turns + more} turn_rewards for {turns} turns"):
        assign_rewards(
            make_trajectory(*["x"] * turns), RewardResult(reward=0.0, turn_rewards=(0.0,) * (turns + more))
        )


def test_prebuilt_rewards_are_called_as_they_are_listed() -> None:
    assert all(name == reward.name == REWARDS.find(name).name for name, reward in REWARDS.items())
    with pytest.raises(ConfigError, match="did you mean 'qa_f1'"):
        REWARDS.find("qa-f1")


def test_the_table_of_the_documentation_lists_all_of_them() -> None:
    page = (Path(__file__).parents[2] / "docs" / "rewards.md").read_text()
    prebuilt = page.partition("## Prebuilt")[2]
    rows = re.findall(r"^\| `(\w+)` \| ([^|]*)\|", prebuilt, re.MULTILINE)
    assert [name for name, _ in rows] == list(REWARDS)
    for name, fields in rows:
        reward = REWARDS.find(name)
        assert isinstance(reward, FunctionReward)
        required_names = {parameter for parameter, is_required in reward.parameters.items() if is_required}
        assert required_names - set(ALWAYS) == set(re.findall(r"`(\w+)`", fields.partition("optional")[0]))
