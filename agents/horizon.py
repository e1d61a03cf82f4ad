"""What changes from one training step to the next: the horizon and the temperature.

The horizon is AgentGym-RL's (ScalingInter-RL). `fixed` and `scaling_inter_stepwise` are its names; its
`rounds` are called `max_turns` here, and its `steps_scaling_inter` is `steps_per_stage`. All of it depends on
the global step alone, so a resumed run is at the stage where it was.
"""

from collections.abc import Sequence


def horizon(step: int, *, max_turns: Sequence[int], steps_per_stage: int | None = None) -> int:
    """Turns allowed at global `step` (the first is 1).

    `fixed`: `max_turns` has one value and `steps_per_stage` is None. `scaling_inter_stepwise`:
    stage `i` lasts `steps_per_stage` steps and allows `max_turns[i]` turns; the last stage has no
    end. Raises `ValueError` for a step below 1 or a schedule that is neither.
    """
    if step < 1:
        raise ValueError(f"step {step}: global steps are counted from 1")
    if not max_turns:
        raise ValueError("max_turns is empty: a schedule has at least one stage")
    if steps_per_stage is None:
        if len(max_turns) != 1:
            raise ValueError(f"max_turns {list(max_turns)} has stages, but steps_per_stage is None")
        return max_turns[0]
    if steps_per_stage < 1:
        raise ValueError(f"steps_per_stage {steps_per_stage}: a stage lasts at least one step")
    return max_turns[min((step - 1) // steps_per_stage, len(max_turns) - 1)]


def annealed(step: int, *, first: float, last: float, steps: int) -> float:
    """`first` at global `step` 1, `last` from step `steps` on, and the straight line between them."""
    if step < 1:
        raise ValueError(f"step {step}: global steps are counted from 1")
    return first + (last - first) * min(1.0, (step - 1) / max(1, steps - 1))
