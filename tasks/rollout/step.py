"""What a training step samples: the groups of its items, and what its algorithm asks for besides.

Everything that is drawn here is a function of the seed, the step and earlier rewards, never of the order in
which episodes end.
"""

import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from agents.types import StopReason, Trajectory
from envs.types import Item
from tasks.config.pipelines import Pipeline
from tasks.data.trajectories import is_informative, sampled_tokens
from tasks.rollout.runner import RolloutSpec, make_training_spec

Group = list[Trajectory]
RunRollout = Callable[[Sequence[Item], RolloutSpec], Awaitable[list[Group]]]
"""`RolloutRunner.run`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSample:
    """The episodes of one training step."""

    step: int
    spec: RolloutSpec
    groups: list[Group]
    """As first sampled."""
    batch: list[Group]
    """What the step learns from: `groups`, where dynamic sampling has replaced those that teach nothing."""
    num_replaced: int
    """Groups that were sampled and replaced."""
    greedy_rewards: list[float | None]
    """By place in `batch`: the reward of a greedy episode of the item, where the algorithm asks for them and
    it was played to its end."""
    seconds: float

    @property
    def num_played(self) -> int:
        """Episodes of the batch, those that failed included."""
        return sum(map(len, self.batch))

    @property
    def played_tokens(self) -> int:
        """Sampled tokens of the batch."""
        return sum(sampled_tokens(t) for group in self.batch for t in group)


class StepSampler:
    """Samples the steps of a training run."""

    def __init__(self, pipeline: Pipeline, items: Sequence[Item], run: RunRollout) -> None:
        """`items`: in the order in which training samples them, `rollout.items_per_step` a step."""
        self._pipeline = pipeline
        self._items = items
        self._distinct_items = list({item.item_id: item for item in items}.values())
        self._run = run

    async def sample(self, step: int) -> StepSample:
        """The episodes of training step `step` (from 1), with the policy that the sampler has."""
        start_time = time.perf_counter()
        count = self._pipeline.rollout.items_per_step
        items = self._items[(step - 1) * count : step * count]
        spec = make_training_spec(self._pipeline, step=step)
        groups = await self._run(items, spec)
        batch, batch_items, num_replaced = await self._refill(groups, items, spec, step=step)
        return StepSample(
            step=step,
            spec=spec,
            groups=groups,
            batch=batch,
            num_replaced=num_replaced,
            greedy_rewards=await self._sample_greedily(batch_items, spec),
            seconds=time.perf_counter() - start_time,
        )

    async def _refill(
        self, groups: list[Group], items: Sequence[Item], spec: RolloutSpec, *, step: int
    ) -> tuple[list[Group], list[Item], int]:
        """Replace groups that teach nothing by groups of other items, if the algorithm samples dynamically.

        Returns the groups, their items, and how many groups were replaced.
        """
        batch, batch_items = list(groups), list(items)
        sampling = self._pipeline.train.algorithm.dynamic_sampling
        drawn = {item.item_id for item in items}
        num_replaced = 0
        for refill in range(1, 1 + (sampling.max_refills if sampling else 0)):
            places = [place for place, group in enumerate(batch) if not is_informative(group)]
            others = [item for item in self._distinct_items if item.item_id not in drawn]
            random.Random(f"refill/{self._pipeline.seed}/{step}/{refill}").shuffle(others)
            new_items = others[: len(places)]
            if not new_items:
                break
            drawn |= {item.item_id for item in new_items}
            new_groups = await self._run(new_items, replace(spec, name=f"{spec.name} refill {refill}"))
            for place, item, group in zip(places, new_items, new_groups, strict=False):
                batch[place], batch_items[place] = group, item
            num_replaced += len(new_items)
        return batch, batch_items, num_replaced

    async def _sample_greedily(self, items: Sequence[Item], spec: RolloutSpec) -> list[float | None]:
        if not self._pipeline.train.algorithm.needs_greedy:
            return [None] * len(items)
        greedy = replace(spec, name=f"{spec.name} greedy", num_samples=1, temperature=0.0)
        groups = await self._run(items, greedy)
        return [None if t.stop_reason is StopReason.ERROR else t.reward for [t] in groups]
