"""A rollout of a pipeline's items: how many episodes, at which horizon and temperature; and what runs it.

The one place where the settings of a pipeline become those of a rollout.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agents.horizon import HorizonEvidence, anneal
from agents.rollout.group import Callbacks, GroupSpec
from agents.types import Trajectory
from envs.runtime.metrics import PoolMetrics
from envs.types import Item
from tasks.config.pipelines import Pipeline
from tasks.data.items import training_turns


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSpec:
    """One rollout of some items; passed unchanged to the process that has the sampler."""

    name: str
    """Unique per rollout, as in `GroupSpec`."""
    max_turns: Mapping[str, int]
    """Turns per episode, by part of the pipeline's data."""
    num_samples: int
    """Episodes per item."""
    temperature: float
    """0 is greedy."""
    finished_samples: Mapping[tuple[int, int], Trajectory] = field(default_factory=dict)
    """As in `GroupSpec`."""


def make_training_spec(
    pipeline: Pipeline, *, step: int, evidence: Mapping[str, Sequence[HorizonEvidence]]
) -> RolloutSpec:
    """The rollout of training step `step` (from 1); `evidence`: by part, of the steps before it."""
    return RolloutSpec(
        name=f"train {step}",
        max_turns=training_turns(pipeline, step=step, evidence=evidence),
        num_samples=pipeline.rollout.group_size,
        temperature=training_temperature(pipeline, step=step),
    )


def horizon_metrics(pipeline: Pipeline, turns: Mapping[str, int]) -> dict[str, int]:
    """The record of a training step's horizon, `turns` by part: `horizon`, the longest, and `horizon_<part>`
    of each where several parts have horizons that may differ."""
    parts = pipeline.data.parts.values()
    may_differ = len(turns) > 1 and any(
        part.horizon is not None or pipeline.horizon.type == "adaptive" for part in parts
    )
    by_part = {f"horizon_{name}": count for name, count in turns.items()} if may_differ else {}
    return {"horizon": max(turns.values()), **by_part}


def training_temperature(pipeline: Pipeline, *, step: int) -> float:
    """The temperature of training step `step` (from 1)."""
    rollout = pipeline.rollout
    last = rollout.temperature if rollout.final_temperature is None else rollout.final_temperature
    return anneal(step, first=rollout.temperature, last=last, steps=pipeline.train.steps)


def make_group_spec(pipeline: Pipeline, spec: RolloutSpec, callbacks: Callbacks) -> GroupSpec:
    """The groups of a rollout of `pipeline`."""
    return GroupSpec(
        name=spec.name,
        num_samples=spec.num_samples,
        max_attempts=pipeline.rollout.max_attempts,
        finished_samples=spec.finished_samples,
        callbacks=callbacks,
    )


def get_max_turns(item: Item, pipeline: Pipeline, spec: RolloutSpec) -> int:
    """Turns that `spec` allows an episode of `item`."""
    part = pipeline.data.part_of(item)
    assert part is not None  # files of items are checked when they are read
    return spec.max_turns[part]


class RolloutRunner(ABC):
    """Runs episodes of a pipeline's items, in one event loop."""

    @abstractmethod
    def check(self, items: Sequence[Item]) -> None:
        """Raise `ConfigError` or `MissingDependency` for rewards that cannot be computed for `items`, and for
        tools that cannot work on their environments."""

    @abstractmethod
    async def run(
        self, items: Sequence[Item], spec: RolloutSpec, callbacks: Callbacks = Callbacks()
    ) -> list[list[Trajectory]]:
        """One group per item, in order."""

    async def warm_up(self) -> None:  # noqa: B027  # most need none
        """Start the environments of a training step that are slow to start."""

    @property
    def environments(self) -> Mapping[str, PoolMetrics]:
        """The metrics of the environments' pools so far, by name."""
        return {}

    async def close(self) -> None:  # noqa: B027  # most hold nothing
        """Free all resources."""
