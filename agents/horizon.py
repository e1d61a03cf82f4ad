"""What changes from one training step to the next: the horizon, by AgentGym-RL's keys, and the temperature.

Pure in the global step, so that a resumed run is at the stage where it was.
"""

from collections.abc import Sequence


def horizon(step: int, *, rounds: Sequence[int], steps_scaling_inter: int | None = None) -> int:
    """Turns allowed at global `step` (the first is 1).

    `fixed`: `rounds` has one value and `steps_scaling_inter` is None. `scaling_inter_stepwise`:
    stage `i` lasts `steps_scaling_inter` steps and allows `rounds[i]` turns; the last stage has no
    end. Raises `ValueError` for a step below 1 or a schedule that is neither.
    """
    if step < 1:
        raise ValueError(f"step {step}: global steps are counted from 1")
    if not rounds:
        raise ValueError("rounds is empty: a schedule has at least one stage")
    if steps_scaling_inter is None:
        if len(rounds) != 1:
            raise ValueError(f"rounds {list(rounds)} has stages, but steps_scaling_inter is None")
        return rounds[0]
    if steps_scaling_inter < 1:
        raise ValueError(f"steps_scaling_inter {steps_scaling_inter}: a stage lasts at least one step")
    return rounds[min((step - 1) // steps_scaling_inter, len(rounds) - 1)]


def annealed(step: int, *, first: float, last: float, steps: int) -> float:
    """`first` at global `step` 1, `last` from step `steps` on, and the straight line between them."""
    if step < 1:
        raise ValueError(f"step {step}: global steps are counted from 1")
    return first + (last - first) * min(1.0, (step - 1) / max(1, steps - 1))
