"""The schedules of training: the horizon and the temperature.

They are pure functions: of the global step, and for an adaptive horizon also of what the episodes of earlier
steps have shown (`HorizonEvidence`). So a resumed run continues at its curriculum stage.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field, model_validator

from agents.settings import Positive, Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class HorizonEvidence:
    """What the episodes of one training step show about the horizon that they had."""

    max_turns: int
    """The horizon."""
    episodes: int
    """The number of episodes, without those that failed."""
    capped: int
    """Episodes that the horizon ended."""
    successes: int
    """Solved episodes among those that it did not end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HorizonRaise:
    """A decision of an adaptive horizon."""

    step: int
    """The first step with the new horizon."""
    max_turns: int
    reason: str
    """One line, with the numbers that decided."""


class RaiseRule(Settings):
    """When an adaptive horizon is raised; decided after each training step.

    Two windows are compared, the last `window` steps of the curriculum stage and the `window` steps before
    them. The horizon is raised if the success rate of the episodes that it did not end has risen by less than
    `min_gain`, and if it ended at least the share `min_capped` of the last window's episodes. The difference
    of two success rates around p, of n episodes each, has a standard error of √(2p(1−p)/n): about 0.03 for
    windows of 5 steps with 128 episodes.
    """

    window: Positive = 5
    """Training steps."""
    min_gain: Annotated[float, Field(ge=0, le=1)] = 0.02
    min_capped: Annotated[float, Field(gt=0, le=1)] = 0.1
    min_steps: Positive = 10
    """The fewest steps of a curriculum stage; at least two windows."""
    max_steps: Positive | None = 100
    """The horizon is raised after so many steps of a curriculum stage in any case; null: never."""

    @model_validator(mode="after")
    def _steps_fit_window(self) -> "RaiseRule":
        if self.min_steps < 2 * self.window:
            raise ValueError(
                f"min_steps {self.min_steps} is less than two windows of {self.window}; raise min_steps or "
                "lower window"
            )
        if self.max_steps is not None and self.max_steps < self.min_steps:
            raise ValueError(f"max_steps {self.max_steps} is less than min_steps {self.min_steps}; raise it")
        return self

    def find_reason(self, stage: Sequence[HorizonEvidence]) -> str | None:
        """The reason to raise the horizon after the steps of a curriculum `stage`; None if there is none."""
        if len(stage) < self.min_steps:
            return None
        if self.max_steps is not None and len(stage) >= self.max_steps:
            return f"the stage has had {len(stage)} steps (max_steps)"
        before, last = stage[-2 * self.window : -self.window], stage[-self.window :]
        first_rate, last_rate = _success_within(before), _success_within(last)
        episodes = sum(step.episodes for step in last)
        capped = sum(step.capped for step in last) / max(1, episodes)
        if capped < self.min_capped or last_rate - first_rate >= self.min_gain:
            return None
        has_fallen = last_rate < first_rate and first_rate - last_rate >= self.min_gain
        return (
            f"success within {stage[-1].max_turns} turns has {'fallen' if has_fallen else 'levelled off'} "
            f"({first_rate:.1%} → {last_rate:.1%} over {self.window} steps), and the horizon ended "
            f"{capped:.1%} of the episodes"
        )


def _success_within(steps: Sequence[HorizonEvidence]) -> float:
    """Success rate of the episodes that the horizon did not end; 0.0 if it ended all."""
    return sum(step.successes for step in steps) / max(1, sum(step.episodes - step.capped for step in steps))


class Horizon(Settings):
    """How many turns an episode may have at each training step.

    The first two types are AgentGym-RL's (ScalingInter-RL, arXiv 2509.08755). Its `rounds` are called
    `max_turns` here, and its `steps_scaling_inter` is `steps_per_stage`.
    """

    type: Literal["fixed", "scaling_inter_stepwise", "linear", "adaptive"]
    """`fixed` has one value. With `scaling_inter_stepwise`, curriculum stage `i` lasts `steps_per_stage`
    training steps and allows `max_turns[i]` turns; the last stage has no end. `linear` rises from the first
    to the last of two values, `first + ⌊(last − first)(step − 1)/(steps − 1)⌋`, and reaches the last at step
    `steps`. `adaptive` goes on to the next of `max_turns` when `raise_when` says so."""
    max_turns: Annotated[list[Positive], Field(min_length=1)]
    """The limit in each curriculum stage; for `linear`, the first and the last limit."""
    steps_per_stage: Positive | None = None
    """The training steps of each stage of `scaling_inter_stepwise`."""
    steps: Annotated[int, Field(ge=2)] | None = None
    """For `linear`, the first step that has the last value."""
    raise_when: RaiseRule | None = None
    """When `adaptive` raises the limit; only it has defaults."""

    @model_validator(mode="before")
    @classmethod
    def _adaptive_has_a_rule(cls, values: object) -> object:
        if isinstance(values, dict) and values.get("type") == "adaptive":
            return {**values, "raise_when": values.get("raise_when") or {}}
        return values

    @model_validator(mode="after")
    def _keys_fit_type(self) -> "Horizon":
        if any(after < before for before, after in pairwise(self.max_turns)):
            raise ValueError(f"max_turns {self.max_turns} must not fall: a stage never shortens the horizon")
        if self.type == "fixed" and (len(self.max_turns) != 1 or self.steps_per_stage is not None):
            raise ValueError(
                "a fixed horizon takes one value in max_turns and no steps_per_stage; "
                "use type: scaling_inter_stepwise for stages"
            )
        if self.type == "scaling_inter_stepwise" and self.steps_per_stage is None:
            raise ValueError("scaling_inter_stepwise needs steps_per_stage: training steps per stage")
        if self.type == "linear" and self.steps is None:
            raise ValueError("linear needs steps: the first training step that has the last value")
        if self.type == "linear" and len(self.max_turns) != 2:
            raise ValueError(f"linear takes the first and the last value in max_turns, not {self.max_turns}")
        if self.type == "adaptive" and len(set(self.max_turns)) < max(2, len(self.max_turns)):
            raise ValueError(f"adaptive needs two or more values in max_turns, each once: {self.max_turns}")
        owners = {"steps_per_stage": "scaling_inter_stepwise", "steps": "linear", "raise_when": "adaptive"}
        for key, owner in owners.items():
            if getattr(self, key) is not None and self.type != owner:
                raise ValueError(f"{key} is for type: {owner}; leave it out with type: {self.type}")
        return self

    def max_turns_at(self, step: int, evidence: Sequence[HorizonEvidence] = ()) -> int:
        """The turns allowed at global `step`; raises `ValueError` for a step below 1, which is the first.

        `evidence`: of the steps before it, from the first, in order; only `adaptive` uses it. If evidence
        arrives late, as in asynchronous training, decisions are made late, and steps that were sampled under
        an earlier horizon count for no later stage.
        """
        _check_step(step)
        first, last = self.max_turns[0], self.max_turns[-1]
        if self.type == "linear":
            assert self.steps is not None
            return first + (last - first) * min(step - 1, self.steps - 1) // (self.steps - 1)
        if self.type == "adaptive":
            return self.max_turns[len(self.list_raises(evidence))]
        stage = 0 if self.steps_per_stage is None else (step - 1) // self.steps_per_stage
        return self.max_turns[min(stage, len(self.max_turns) - 1)]

    def highest_within(self, steps: int) -> int:
        """The most turns that one of the first `steps` may have; an adaptive horizon may rise more slowly."""
        if self.raise_when is None:
            return self.max_turns_at(steps)
        return self.max_turns[min((steps - 1) // self.raise_when.min_steps, len(self.max_turns) - 1)]

    def list_raises(self, evidence: Sequence[HorizonEvidence]) -> list[HorizonRaise]:
        """The decisions of an adaptive horizon that follow from the `evidence` of the first steps, in order;
        none for the other types."""
        raises: list[HorizonRaise] = []
        stage: list[HorizonEvidence] = []
        for number, step_evidence in enumerate(evidence, start=1):
            if self.raise_when is None or len(raises) == len(self.max_turns) - 1:
                break
            if step_evidence.max_turns == self.max_turns[len(raises)]:
                stage.append(step_evidence)
            if (reason := self.raise_when.find_reason(stage)) is not None:
                next_turns = self.max_turns[len(raises) + 1]
                raises.append(HorizonRaise(step=number + 1, max_turns=next_turns, reason=reason))
                stage = []
        return raises


def anneal(step: int, *, first: float, last: float, steps: int) -> float:
    """`first` at global `step` 1, `last` from step `steps` on, linear in between."""
    _check_step(step)
    return first + (last - first) * min(1.0, (step - 1) / max(1, steps - 1))


def _check_step(step: int) -> None:
    if step < 1:
        raise ValueError(f"step {step}: global steps are counted from 1")
