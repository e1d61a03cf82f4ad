"""How long the rest of a stage takes, from its steps so far."""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from flows.display.state import StageView

RECENT_STEPS = 10
"""Steps that the time of the next ones is taken from: a policy that learns plays other episodes."""

HorizonAt = Callable[[int], float]
"""The turns that an episode may have at a step from 1, where that is known in advance."""


def seconds_left(view: StageView, *, now: float, horizon_at: HorizonAt | None = None) -> float | None:
    """Seconds until the last step or episode of `view` ends; None until there is something to go by."""
    if view.first_event is None or view.last_event is None or not view.steps:
        return None
    count = view.total - view.done
    if count <= 0:
        return None
    if "seconds" in view.steps[-1]:
        remaining_s = forecast_steps(view.steps, total=view.total, horizon_at=horizon_at)
        remaining_s += count * fmean(view.pauses_s or [0.0])
    else:
        (first, start), (last, end) = view.first_event, view.last_event
        if last == first:
            return None
        remaining_s = (end - start) / (last - first) * count
    return max(0.0, remaining_s - (now - view.last_event[1]))


def forecast_steps(
    steps: Sequence[Mapping[str, float]], *, total: int, horizon_at: HorizonAt | None = None
) -> float:
    """Seconds of the steps after the last of `steps`, of which each says its `seconds`, up to step `total`.

    A step takes as long as the last `RECENT_STEPS` with the same horizon. Under a longer one, the episodes
    that the horizon ended are taken to end halfway to the new one on average, and time grows as the turns do.
    """
    last = steps[-1]
    horizon = last.get("horizon")
    recent = [step for step in steps if step.get("horizon") == horizon][-RECENT_STEPS:]
    step_s = fmean(step["seconds"] for step in recent)
    rest = range(int(last["step"]) + 1, total + 1)
    if horizon is None or horizon_at is None:
        return step_s * len(rest)
    turns = fmean(step.get("turns", 0.0) for step in recent)
    capped = fmean(step.get("stop_max_turns", 0.0) / max(1.0, step.get("episodes", 1.0)) for step in recent)
    seconds = 0.0
    for step in rest:
        added = capped * max(0.0, horizon_at(step) - horizon) / 2
        seconds += step_s * (1 + added / turns if turns else 1.0)
    return seconds
