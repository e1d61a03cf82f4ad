"""What a training step samples, with a runner that answers at once."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from agents.types import Completion, FinishReason, StopReason, Trajectory, Turn
from envs.types import Item
from tasks.data.items import training_items, write_items
from tasks.rollout.history import History
from tasks.rollout.spec import RolloutSpec, horizon_metrics
from tasks.rollout.step import StepSample, StepSampler
from tests.support.verl_toy import toy_items, toy_pipeline

ITEMS = toy_items(12)
"""Of three steps of four."""
Rewards = Callable[[Item, int], float | None]
"""Of an item's sample; None for an episode that fails."""
Stop = StopReason | Callable[[Item], StopReason]
NOTHING_YET = History()


class Runner:
    """Answers with episodes of the given rewards, and remembers what it was asked for."""

    def __init__(self, rewards: Rewards, stop: Stop = StopReason.TERMINATED) -> None:
        self.requests: list[tuple[str, tuple[str, ...], int, float]] = []
        self._rewards = rewards
        self._stop = stop

    async def run(self, items: Sequence[Item], spec: RolloutSpec) -> list[list[Trajectory]]:
        ids = tuple(item.item_id for item in items)
        self.requests.append((spec.name, ids, spec.num_samples, spec.temperature))
        return [
            [
                episode(
                    item,
                    index,
                    self._rewards(item, index),
                    self._stop if isinstance(self._stop, StopReason) else self._stop(item),
                )
                for index in range(spec.num_samples)
            ]
            for item in items
        ]


def test_without_dynamic_sampling_a_step_is_its_own_items() -> None:
    runner, [first, second] = sample_steps(lambda item, index: 0.0, steps=(1, 2))
    assert [names for _, names, _, _ in runner.requests] == [ids(ITEMS[:4]), ids(ITEMS[4:8])]
    assert first.groups == first.batch
    assert (first.num_replaced, first.num_played, first.played_tokens) == (0, 16, 32)
    assert second.greedy_rewards == [None] * 4


def test_groups_that_teach_nothing_are_replaced_by_groups_of_other_items() -> None:
    """Items with an odd number teach: those with an even one are replaced until all are odd."""

    def rewards(item: Item, index: int) -> float:
        return float(index == 0 and number(item) % 2 == 1)

    runner, [sample] = sample_steps(rewards, steps=(1,), dynamic_sampling={"max_refills": 8})
    assert [t.item.item_id for t in first_of(sample.groups)] == list(ids(ITEMS[:4])), "as first sampled"
    assert all(number(t.item) % 2 == 1 for t in first_of(sample.batch))
    assert sample.batch[1] is sample.groups[1], "what teaches stays in its place"
    refills = [request for request in runner.requests if "refill" in request[0]]
    assert sample.num_replaced == sum(len(names) for _, names, _, _ in refills)
    item_names = [name for _, names, _, _ in runner.requests for name in names]
    assert len(set(item_names)) == len(item_names), "no item is drawn twice in a step"


def test_which_items_replace_others_is_a_function_of_seed_step_and_rewards() -> None:
    def requests(seed: int) -> list[Any]:
        runner, _ = sample_steps(lambda item, index: 0.0, steps=(1, 2), seed=seed, dynamic_sampling={})
        return runner.requests

    assert requests(0) == requests(0)
    assert requests(0) != requests(1)


def test_refills_are_bounded_and_end_with_the_items() -> None:
    runner, [sample] = sample_steps(lambda item, index: 1.0, steps=(1,), dynamic_sampling={"max_refills": 1})
    assert (len(runner.requests), sample.num_replaced) == (2, 4)
    runner, [sample] = sample_steps(lambda item, index: 1.0, steps=(1,), dynamic_sampling={"max_refills": 9})
    assert sample.num_replaced == 8, "all other items"


def test_a_group_of_which_one_episode_is_left_teaches_nothing() -> None:
    _, [sample] = sample_steps(
        lambda item, index: None if index else 1.0, steps=(1,), dynamic_sampling={"max_refills": 1}
    )
    assert sample.num_replaced == 4


def test_a_step_whose_first_episodes_all_fail_has_no_entropy() -> None:
    """It is trained on what has replaced them."""
    _, [sample] = sample_steps(
        lambda item, index: None if item in ITEMS[:4] else float(index == 0), steps=(1,), dynamic_sampling={}
    )
    assert sample.played_tokens > 0
    assert (sample.metrics["episodes"], sample.metrics["dropped"]) == (0, 16)
    assert "entropy" not in sample.metrics
    _, [sample] = sample_steps(lambda item, index: None if index else 1.0, steps=(1,))
    logprobs = [x for t in first_of(sample.groups) for turn in t.turns for x in turn.completion.logprobs]
    assert sample.metrics["entropy"] == pytest.approx(-fmean(logprobs))


@pytest.mark.parametrize(
    "options", [{"dynamic_sampling": {"max_refills": 2}}, {"algorithm": {"name": "remax"}}, {}]
)
def test_all_that_was_played_is_recorded(options: dict[str, Any]) -> None:
    """Against what the runner was asked for: every episode has a turn of two tokens, but those that fail."""
    runner, [sample] = sample_steps(
        lambda item, index: None if number(item) % 5 == 2 else 1.0, steps=(1,), **options
    )
    episodes = sum(
        num_samples * sum(int(name.rpartition("_")[2]) % 5 != 2 for name in names)
        for _, names, num_samples, _ in runner.requests
    )
    failures = sum(
        num_samples * sum(int(name.rpartition("_")[2]) % 5 == 2 for name in names)
        for _, names, num_samples, _ in runner.requests
    )
    metrics = sample.metrics
    assert metrics["episodes"] + metrics.get("added_episodes", 0) == episodes
    assert metrics["dropped"] + metrics.get("added_dropped", 0) == failures
    causes = [count for key, count in metrics.items() if "dropped_" in key]
    assert sum(causes) == failures
    assert metrics["episodes"] * metrics["turns"] + metrics.get("added_turns", 0) == episodes
    assert metrics["tokens"] + metrics.get("added_tokens", 0) == 2 * episodes
    assert metrics["tokens_per_s"] * metrics["seconds_rollout"] == pytest.approx(2 * episodes)
    assert ("added_episodes" in metrics) == bool(options)


def test_greedy_episodes_are_of_the_items_that_are_trained_on() -> None:
    runner, [sample] = sample_steps(
        lambda item, index: None if number(item) == 2 else 0.5, steps=(1,), algorithm={"name": "remax"}
    )
    assert runner.requests[1] == ("train 1 greedy", ids(ITEMS[:4]), 1, 0.0)
    assert sample.greedy_rewards == [0.5, 0.5, None, 0.5], "one that fails is none"


def test_a_group_is_replaced_by_one_of_its_own_part() -> None:
    """Depth 1 has even numbers, depth 2 odd ones: 6 items each."""
    runner, [sample] = sample_steps(
        lambda item, index: 0.0, steps=(1,), dynamic_sampling={"max_refills": 1}, parts=BY_DEPTH
    )
    (_, names, _, _), (_, new_names, _, _) = runner.requests
    assert [int(name[7:]) % 2 for name in names] == [int(name[7:]) % 2 for name in new_names]
    assert sample.num_replaced == 4


BY_DEPTH = {f"depth{depth}": {"env": "parity", "where": {"depth": [depth]}} for depth in (1, 2)}
FIXED = {"type": "fixed", "max_turns": [4]}
ADAPTIVE = {"type": "adaptive", "max_turns": [2, 9], "raise_when": {"window": 1, "min_steps": 2}}


def test_the_curriculum_draws_from_all_items_and_keeps_the_share_of_each_part() -> None:
    _, samples = sample_steps(
        lambda item, index: 0.0, steps=(1, 2, 3), rollout__curriculum={"hard": 0.001}, parts=BY_DEPTH
    )
    numbers = [[number(t.item) for t in first_of(sample.groups)] for sample in samples]
    assert [[n % 2 for n in step] for step in numbers] == [[0, 1, 0, 1]] * 3
    assert sorted(chain.from_iterable(numbers)) == list(range(12)), "unseen ones first, at these weights"
    assert [sample.pools["unseen"] for sample in samples] == [4, 4, 4]


def test_a_part_with_few_items_gives_each_once_before_any_again() -> None:
    _, [sample] = sample_steps(
        lambda item, index: 0.0,
        steps=(1,),
        items=ITEMS[:3] * 3,
        rollout__curriculum={},
        rollout__items_per_step=7,
    )
    numbers = [number(t.item) for t in first_of(sample.groups)]
    assert [sorted(numbers[:3]), sorted(numbers[3:6])] == [[0, 1, 2]] * 2


def test_items_are_drawn_in_proportion_to_the_weight_of_their_pool() -> None:
    """One item each is unseen, never, sometimes and always solved; 4,000 steps draw one."""
    success = {"parity_1": 0.0, "parity_2": 0.5, "parity_3": 1.0}
    pipeline = toy_pipeline(
        Path("model"), rollout__curriculum={"hard": 0.5, "medium": 2.0}, rollout__items_per_step=1
    )
    sampler = StepSampler(
        pipeline, ITEMS[:4] * 1000, Runner(lambda *_: 0).run, history=History(success=success)
    )
    first = Counter(number(item) for step in range(1, 4001) for item in sampler.choose_items(step))
    for item, weight in {0: 1.0, 1: 0.5, 2: 2.0, 3: 0.2}.items():
        share = weight / 3.7
        error = (share * (1 - share) / 4000) ** 0.5
        assert first[item] / 4000 == pytest.approx(share, abs=4 * error)


def test_every_item_that_was_sampled_is_remembered_by_its_last_success() -> None:
    def rewards(item: Item, index: int) -> float | None:
        return None if number(item) == 2 or (number(item) == 3 and index > 1) else float(index == 0)

    runner, [sample] = sample_steps(lambda item, index: 1.0, steps=(1,), dynamic_sampling={"max_refills": 1})
    names = {name for _, names, _, _ in runner.requests for name in names}
    assert sample.history.success == dict.fromkeys(names, 1.0), "with those that have replaced others"
    _, [sample] = sample_steps(rewards, steps=(1,))
    assert sample.history.success == {"parity_0": 0.25, "parity_1": 0.25, "parity_3": 0.5}, "2: none ended"


def test_an_item_that_comes_twice_in_a_step_is_remembered_by_all_its_episodes() -> None:
    """Two of four are solved in its first group, none in its second."""
    parts = toy_pipeline(Path("model")).data
    [item], [part] = toy_items(1), parts.parts
    groups = [
        [episode(item, index, reward, StopReason.TERMINATED) for index, reward in enumerate(rewards)]
        for rewards in ((1.0, 1.0, 0.0, 0.0), (0.0, 0.0, 0.0, 0.0))
    ]
    history = NOTHING_YET.extend(groups, max_turns={part: 3}, data=parts)
    assert history.success == {item.item_id: 2 / 8}


def test_a_resumed_run_draws_the_same_items_and_raises_the_horizon_at_the_same_steps(tmp_path: Path) -> None:
    """Killed after step 5 of 12: what is left is what the checkpoint has."""
    horizon = {"type": "adaptive", "max_turns": [4, 6], "raise_when": {"window": 2, "min_steps": 4}}
    options: dict[str, Any] = {
        "rollout__curriculum": {},
        "horizon": horizon,
        "train__steps": 12,
        "items": ITEMS * 4,
    }

    def rewards(item: Item, index: int) -> float | None:
        return float(index < number(item) % 4) or None if index else 0.5

    def facts(samples: Sequence[StepSample]) -> list[Any]:
        return [(ids([t.item for t in first_of(s.groups)]), s.spec, s.raise_reason, s.pools) for s in samples]

    _, samples = sample_steps(rewards, steps=range(1, 13), stop=StopReason.MAX_TURNS, **options)
    samples[4].history.write(tmp_path)
    _, second_steps = sample_steps(
        rewards, steps=range(6, 13), stop=StopReason.MAX_TURNS, history=History.read(tmp_path), **options
    )
    assert facts(second_steps) == facts(samples[5:])
    assert second_steps[-1].history == samples[-1].history
    _, forgetful = sample_steps(rewards, steps=range(6, 13), stop=StopReason.MAX_TURNS, **options)
    assert facts(forgetful) != facts(samples[5:])


def test_the_items_of_a_step_do_not_depend_on_the_number_of_steps(tmp_path: Path) -> None:
    """Of a run of 2 steps and one of 9, which reaches other items in the order of training."""

    def requests(steps: int) -> list[Any]:
        pipeline = toy_pipeline(tmp_path, train__steps=steps, data={"parts": BY_DEPTH})
        runner, _ = sample_steps(
            lambda item, index: float(index == 0 and number(item) % 3 == 0),
            steps=(1, 2),
            dynamic_sampling={},
            items=training_items(pipeline, tmp_path),
            parts=BY_DEPTH,
            train__steps=steps,
            rollout__curriculum={},
        )
        return [(name, names) for name, names, _, _ in runner.requests]

    write_items(tmp_path / "data" / "train.jsonl", toy_items(40))
    assert requests(2) == requests(9)


def test_an_adaptive_horizon_is_decided_for_each_part_by_its_own_episodes() -> None:
    parts = {name: part | {"horizon": ADAPTIVE} for name, part in BY_DEPTH.items()}
    _, samples = sample_steps(
        lambda item, index: float(number(item) % 2),
        steps=(1, 2, 3),
        parts=parts,
        stop=lambda item: StopReason.TERMINATED if number(item) % 2 else StopReason.MAX_TURNS,
    )
    turns = [sample.spec.max_turns for sample in samples]
    assert turns == [{"depth1": 2, "depth2": 2}] * 2 + [{"depth1": 9, "depth2": 2}]
    assert [bool(sample.raise_reason) for sample in samples] == [False, False, True]
    assert samples[2].raise_reason.startswith("depth1: 9 turns, because success within 2 turns has levelled")


@pytest.mark.parametrize(
    ("horizon", "parts", "names"),
    [
        (ADAPTIVE, BY_DEPTH, ["depth1", "depth2"]),  # one block, and a decision for each part
        (ADAPTIVE, {"parity": {}}, []),
        (FIXED, BY_DEPTH, []),
        (
            FIXED,
            {"depth1": BY_DEPTH["depth1"] | {"horizon": ADAPTIVE}, "depth2": BY_DEPTH["depth2"]},
            ["depth1", "depth2"],
        ),
    ],
)
def test_the_horizon_of_each_part_is_recorded_where_it_is_its_own(
    horizon: dict[str, Any], parts: dict[str, Any], names: list[str]
) -> None:
    pipeline = toy_pipeline(Path("m"), horizon=horizon, data={"parts": parts})
    turns = {name: 2 + place for place, name in enumerate(parts)}
    by_part = {f"horizon_{name}": turns[name] for name in names}
    assert horizon_metrics(pipeline, turns) == {"horizon": max(turns.values()), **by_part}


def sample_steps(
    rewards: Rewards,
    *,
    steps: Sequence[int],
    dynamic_sampling: dict[str, Any] | None = None,
    algorithm: dict[str, Any] | None = None,
    items: Sequence[Item] = ITEMS,
    parts: dict[str, Any] | None = None,
    history: History = NOTHING_YET,
    stop: Stop = StopReason.TERMINATED,
    **overrides: Any,
) -> tuple[Runner, list[StepSample]]:
    runner = Runner(rewards, stop)
    overrides["train__algorithm"] = algorithm or {"name": "grpo", "dynamic_sampling": dynamic_sampling}
    if parts:
        overrides["data"] = {"parts": parts}
    pipeline = toy_pipeline(Path("model"), **overrides)
    sampler = StepSampler(pipeline, items, runner.run, history=history)
    return runner, [asyncio.run(sampler.sample(step)) for step in steps]


def episode(item: Item, sample_index: int, reward: float | None, stop: StopReason) -> Trajectory:
    completion = Completion(
        token_ids=(4, 5), logprobs=(-0.5, -1.5), finish_reason=FinishReason.STOP, policy_version=0
    )
    turn = Turn(completion=completion, text="", action="", observation="", reward=reward or 0.0)
    return Trajectory(
        item=item,
        sample_index=sample_index,
        prompt_ids=(1, 2, 3),
        turns=() if reward is None else (turn,),
        stop_reason=StopReason.ERROR if reward is None else stop,
        reward=reward or 0.0,
        success=bool(reward),
        seconds=0.0,
    )


def first_of(groups: Sequence[Sequence[Trajectory]]) -> list[Trajectory]:
    return [group[0] for group in groups]


def ids(items: Sequence[Item]) -> tuple[str, ...]:
    return tuple(item.item_id for item in items)


def number(item: Item) -> int:
    return int(item.item_id.removeprefix("parity_"))
