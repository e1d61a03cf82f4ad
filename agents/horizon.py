"""The schedules of training: the horizon and the temperature.

They depend on the global step alone, so a resumed run continues at its curriculum stage.
"""

from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field, model_validator

from agents.settings import Positive, Settings


class Horizon(Settings):
    """How many turns an episode may have at each training step: AgentGym-RL's schedules (ScalingInter-RL).

    `type` has AgentGym-RL's names. Its `rounds` are called `max_turns` here, and its `steps_scaling_inter`
    is `steps_per_stage`.
    """

    type: Literal["fixed", "scaling_inter_stepwise"]
    """`fixed` has one value. With `scaling_inter_stepwise`, curriculum stage `i` lasts `steps_per_stage`
    training steps and allows `max_turns[i]` turns; the last stage has no end."""
    max_turns: Annotated[list[Positive], Field(min_length=1)]
    """Of each curriculum stage."""
    steps_per_stage: Positive | None = None

    @model_validator(mode="after")
    def _stages_fit_type(self) -> "Horizon":
        if any(after < before for before, after in pairwise(self.max_turns)):
            raise ValueError(f"max_turns {self.max_turns} must not fall: a stage never shortens the horizon")
        if self.type == "fixed" and (len(self.max_turns) != 1 or self.steps_per_stage is not None):
            raise ValueError(
                "a fixed horizon takes one value in max_turns and no steps_per_stage; "
                "use type: scaling_inter_stepwise for stages"
            )
        if self.type == "scaling_inter_stepwise" and self.steps_per_stage is None:
            raise ValueError("scaling_inter_stepwise needs steps_per_stage: training steps per stage")
        return self

    def max_turns_at(self, step: int) -> int:
        """The turns allowed at global `step`; raises `ValueError` for a step below 1, which is the first."""
        _check_step(step)
        stage = 0 if self.steps_per_stage is None else (step - 1) // self.steps_per_stage
        return self.max_turns[min(stage, len(self.max_turns) - 1)]


def anneal(step: int, *, first: float, last: float, steps: int) -> float:
    """`first` at global `step` 1, `last` from step `steps` on, linear in between."""
    _check_step(step)
    return first + (last - first) * min(1.0, (step - 1) / max(1, steps - 1))


def _check_step(step: int) -> None:
    if step < 1:
        raise ValueError(f"step {step}: global steps are counted from 1")
