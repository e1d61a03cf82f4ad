"""What a training step samples, with a runner that answers at once."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from agents.types import Completion, FinishReason, StopReason, Trajectory, Turn
from envs.types import Item
from tasks.rollout.runner import RolloutSpec
from tasks.rollout.step import StepSample, StepSampler
from tests.support.verl_toy import toy_items, toy_pipeline

ITEMS = toy_items(12)
"""Of three steps of four."""
Rewards = Callable[[Item, int], float | None]
"""Of an item's sample; None for an episode that fails."""


class Runner:
    """Answers with episodes of the given rewards, and remembers what it was asked for."""

    def __init__(self, rewards: Rewards) -> None:
        self.requests: list[tuple[str, tuple[str, ...], int, float]] = []
        self._rewards = rewards

    async def run(self, items: Sequence[Item], spec: RolloutSpec) -> list[list[Trajectory]]:
        ids = tuple(item.item_id for item in items)
        self.requests.append((spec.name, ids, spec.num_samples, spec.temperature))
        return [
            [episode(item, index, self._rewards(item, index)) for index in range(spec.num_samples)]
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
    drawn = [name for _, names, _, _ in runner.requests for name in names]
    assert len(set(drawn)) == len(drawn), "no item is drawn twice in a step"


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


def test_greedy_episodes_are_of_the_items_that_are_trained_on() -> None:
    runner, [sample] = sample_steps(
        lambda item, index: None if number(item) == 2 else 0.5, steps=(1,), algorithm={"name": "remax"}
    )
    assert runner.requests[1] == ("train 1 greedy", ids(ITEMS[:4]), 1, 0.0)
    assert sample.greedy_rewards == [0.5, 0.5, None, 0.5], "one that fails is none"


def sample_steps(
    rewards: Rewards,
    *,
    steps: Sequence[int],
    seed: int = 0,
    dynamic_sampling: dict[str, Any] | None = None,
    algorithm: dict[str, Any] | None = None,
) -> tuple[Runner, list[StepSample]]:
    runner = Runner(rewards)
    settings = algorithm or {"name": "grpo", "dynamic_sampling": dynamic_sampling}
    pipeline = toy_pipeline(Path("model"), seed=seed, train__algorithm=settings)
    sampler = StepSampler(pipeline, ITEMS, runner.run)
    return runner, [asyncio.run(sampler.sample(step)) for step in steps]


def episode(item: Item, sample_index: int, reward: float | None) -> Trajectory:
    completion = Completion(
        token_ids=[4, 5], logprobs=[-0.5, -1.5], finish_reason=FinishReason.STOP, policy_version=0
    )
    turn = Turn(completion=completion, text="", action="", observation="", reward=reward or 0.0)
    return Trajectory(
        item=item,
        sample_index=sample_index,
        prompt_ids=(1, 2, 3),
        turns=(turn,),
        stop_reason=StopReason.ERROR if reward is None else StopReason.TERMINATED,
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
