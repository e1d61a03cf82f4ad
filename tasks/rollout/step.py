"""What a training step samples: the groups of its items, and what its algorithm asks for besides.

Everything that is drawn here is a function of the seed, the step and earlier episodes, never of the order in
which episodes end.
"""

import math
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import get_args

from agents.types import Trajectory
from envs.types import Item
from tasks.config.curriculum import Pool
from tasks.config.data import DataSettings
from tasks.config.pipelines import Pipeline
from tasks.data.items import horizons
from tasks.data.trajectories import is_informative, sampled_tokens, summarise
from tasks.rollout.history import History
from tasks.rollout.spec import RolloutSpec, make_training_spec

Group = list[Trajectory]
RunRollout = Callable[[Sequence[Item], RolloutSpec], Awaitable[list[Group]]]
"""`RolloutRunner.run`."""
Weigh = Callable[[Item], float]
"""The weight of an item, above 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSample:
    """The episodes of one training step."""

    step: int
    seed: int
    """The seed of all draws of the step."""
    spec: RolloutSpec
    groups: list[Group]
    """The groups as first sampled."""
    batch: list[Group]
    """What the step learns from: `groups`, where dynamic sampling has replaced those that teach nothing."""
    num_replaced: int
    """Groups that were sampled and replaced."""
    added_groups: list[Group]
    """What was sampled besides `groups`: all that have replaced a group, and greedy episodes."""
    greedy_rewards: list[float | None]
    """The reward by place in `batch`: that of a greedy episode of the item, where the algorithm asks for them
    and it was played to its end."""
    raise_reason: str
    """Why an adaptive horizon is higher than in the step before, one line; empty if it is not."""
    pools: Mapping[str, int]
    """Items of the step that came from each pool of the curriculum; empty without one."""
    history: History
    """The history of the run up to and including this step."""
    seconds: float

    @property
    def staleness(self) -> float:
        """Steps by which the policy that sampled a token was behind; mean over the batch's tokens."""
        lags = [
            (self.step - 1 - turn.completion.policy_version, len(turn.completion.token_ids))
            for group in self.batch
            for trajectory in group
            for turn in trajectory.turns
        ]
        return sum(lag * tokens for lag, tokens in lags) / max(1, sum(tokens for _, tokens in lags))

    @property
    def metrics(self) -> dict[str, float]:
        """What a step's record has of them (`StepRecord.metrics`): `summarise` of `groups` and more."""
        episodes = [t for group in self.groups for t in group]
        added_episodes = [t for group in self.added_groups for t in group]
        logprobs = [x for t in episodes for turn in t.turns for x in turn.completion.logprobs]
        return summarise(episodes) | {
            "replaced_groups": self.num_replaced,
            **{f"items_{pool}": count for pool, count in self.pools.items()},
            "staleness": self.staleness,
            **({"entropy": -sum(logprobs) / len(logprobs)} if logprobs else {}),
            "tokens_per_s": sum(map(sampled_tokens, episodes + added_episodes)) / self.seconds,
            **_count_added(added_episodes),
            "temperature": self.spec.temperature,
            "seconds_rollout": self.seconds,
        }

    @property
    def num_played(self) -> int:
        """Episodes of the batch, those that failed included."""
        return sum(map(len, self.batch))

    @property
    def played_tokens(self) -> int:
        """Sampled tokens of the batch."""
        return sum(sampled_tokens(t) for group in self.batch for t in group)


def _count_added(episodes: Sequence[Trajectory]) -> dict[str, float]:
    if not episodes:
        return {}
    valid = [t for t in episodes if not t.has_failed]
    causes = Counter(t.error_class for t in episodes if t.has_failed)
    return {
        "added_episodes": len(valid),
        "added_dropped": causes.total(),
        **{f"added_dropped_{cause}": count for cause, count in causes.items()},
        "added_turns": sum(len(t.turns) for t in valid),
        "added_tokens": sum(map(sampled_tokens, valid)),
    }


class StepSampler:
    """Samples the steps of a training run, one after another."""

    def __init__(
        self, pipeline: Pipeline, items: Sequence[Item], run: RunRollout, *, history: History
    ) -> None:
        """`items`: in the order in which training samples them, `rollout.items_per_step` a step, and all
        other training items after these; `history`: of the steps so far."""
        self._pipeline = pipeline
        self._items = items
        # Not in the order of training, which has another beginning for each `train.steps`.
        unique_items = {item.item_id: item for item in items}
        self._draws = ItemDraws([unique_items[item_id] for item_id in sorted(unique_items)], pipeline.data)
        self._run = run
        self._history = history

    async def sample(self, step: int) -> StepSample:
        """The episodes of training step `step` (from 1), with the policy that the sampler has."""
        start_time = time.perf_counter()
        history = self._history
        items = self.choose_items(step)
        spec = make_training_spec(self._pipeline, step=step, evidence=history.evidence)
        groups = await self._run(items, spec)
        batch, batch_items, added_groups = await self._refill(groups, items, spec, step=step)
        greedy_groups = await self._sample_greedily(batch_items, spec)
        self._history = history.extend(
            groups, others=added_groups, max_turns=spec.max_turns, data=self._pipeline.data
        )
        return StepSample(
            step=step,
            seed=self._pipeline.seed,
            spec=spec,
            groups=groups,
            batch=batch,
            num_replaced=len(added_groups),
            added_groups=[*added_groups, *greedy_groups],
            greedy_rewards=[None if t.has_failed else t.reward for [t] in greedy_groups]
            or [None] * len(batch),
            raise_reason=self._raise_reason(history),
            pools=self._count_pools(items, history),
            history=self._history,
            seconds=time.perf_counter() - start_time,
        )

    def continue_after(self, sample: StepSample) -> None:
        """Take `sample`, of an earlier process, for the step before the next one."""
        self._history = sample.history

    def choose_items(self, step: int) -> list[Item]:
        """The items whose turn it is; with a curriculum, others of the same parts in their places."""
        num_items = self._pipeline.rollout.items_per_step
        items = list(self._items[(step - 1) * num_items : step * num_items])
        if self._pipeline.rollout.curriculum is None:
            return items
        return self._draws.draw(items, seed=f"{self._pipeline.seed}/curriculum/{step}", weigh=self._weigh)

    def _weigh(self, item: Item) -> float:
        curriculum = self._pipeline.rollout.curriculum
        return curriculum.weigh(self._history.success.get(item.item_id)) if curriculum else 1.0

    def _count_pools(self, items: Sequence[Item], history: History) -> Mapping[str, int]:
        curriculum = self._pipeline.rollout.curriculum
        if curriculum is None:
            return {}
        counts = Counter(curriculum.pool_of(history.success.get(item.item_id)) for item in items)
        return {pool: counts[pool] for pool in get_args(Pool)}

    async def _refill(
        self, groups: list[Group], items: Sequence[Item], spec: RolloutSpec, *, step: int
    ) -> tuple[list[Group], list[Item], list[Group]]:
        """Replace groups that teach nothing by groups of other items of the same parts, if the algorithm
        samples dynamically.

        Returns the groups, their items, and all groups that have replaced one, some of which may have been
        replaced themselves.
        """
        batch, batch_items, added_groups = list(groups), list(items), list[Group]()
        sampling = self._pipeline.train.online_algorithm.dynamic_sampling
        drawn_ids = {item.item_id for item in items}
        for refill in range(1, 1 + (sampling.max_refills if sampling else 0)):
            places = [place for place, group in enumerate(batch) if not is_informative(group)]
            other_items = self._draws.draw_others(
                [items[place] for place in places],
                seed=f"{self._pipeline.seed}/refill/{step}/{refill}",
                weigh=self._weigh,
                excluded_ids=drawn_ids,
            )
            new_items = {
                place: item for place, item in zip(places, other_items, strict=True) if item is not None
            }
            if not new_items:
                break
            drawn_ids |= {item.item_id for item in new_items.values()}
            refill_spec = replace(spec, name=f"{spec.name} refill {refill}")
            new_groups = await self._run(list(new_items.values()), refill_spec)
            for (place, item), group in zip(new_items.items(), new_groups, strict=True):
                batch[place], batch_items[place] = group, item
            added_groups += new_groups
        return batch, batch_items, added_groups

    def _raise_reason(self, history: History) -> str:
        """Why the horizon is higher in the step after `history`; empty if it is not."""
        reasons = []
        for name, horizon in horizons(self._pipeline).items():
            evidence = history.evidence.get(name, ())
            raises = horizon.list_raises(evidence)
            if raises and raises[-1].step == len(evidence) + 1:
                prefix = f"{name}: " if len(self._pipeline.data.parts) > 1 else ""
                reasons.append(f"{prefix}{raises[-1].max_turns} turns, because {raises[-1].reason}")
        return "; ".join(reasons)

    async def _sample_greedily(self, items: Sequence[Item], spec: RolloutSpec) -> list[Group]:
        """A greedy episode of each item, or none where the algorithm asks for none."""
        if not self._pipeline.train.online_algorithm.needs_greedy:
            return []
        greedy = replace(spec, name=f"{spec.name} greedy", num_samples=1, temperature=0.0)
        return await self._run(items, greedy)


class ItemDraws:
    """The items of the training split by part, to be drawn from.

    The items of a part come in a random order in which each next one is drawn with a probability in
    proportion to its weight (Efraimidis & Spirakis 2006). All draws are pure functions of their arguments.
    """

    def __init__(self, items: Sequence[Item], data: DataSettings) -> None:
        """`items`: each once, in an order that depends on nothing but the items."""
        self._items: dict[str | None, list[Item]] = {}
        for item in items:
            self._items.setdefault(data.part_of(item), []).append(item)
        self._data = data

    def draw(self, places: Sequence[Item], *, seed: str, weigh: Weigh) -> list[Item]:
        """Draw an item for each place, of the same part as the one that it has; within a part each item comes
        once before any comes again."""
        parts = [self._data.part_of(place) for place in places]
        orders = {part: self._repeat_order(part, seed=seed, weigh=weigh) for part in dict.fromkeys(parts)}
        return [next(orders[part]) for part in parts]

    def draw_others(
        self, places: Sequence[Item], *, seed: str, weigh: Weigh, excluded_ids: Collection[str]
    ) -> list[Item | None]:
        """Draw items as `draw` does, but without the items of `excluded_ids` and without repetition; None for
        a place whose part has no item left."""
        parts = [self._data.part_of(place) for place in places]
        orders: dict[str | None, Iterator[Item]] = {}
        for part in dict.fromkeys(parts):
            order = self._order(part, seed=seed, weigh=weigh)
            orders[part] = iter([item for item in order if item.item_id not in excluded_ids])
        return [next(orders[part], None) for part in parts]

    def _repeat_order(self, part: str | None, *, seed: str, weigh: Weigh) -> Iterator[Item]:
        for lap in count():
            yield from self._order(part, seed=f"{seed}/{lap}", weigh=weigh)

    def _order(self, part: str | None, *, seed: str, weigh: Weigh) -> list[Item]:
        rng = random.Random(f"{seed}/{part}")
        # Each item has an exponential clock of its weight's rate, and the first to ring comes first.
        clocks = [(-math.log(1.0 - rng.random()) / weigh(item), item) for item in self._items[part]]
        return [item for _, item in sorted(clocks, key=lambda clock: clock[0])]
