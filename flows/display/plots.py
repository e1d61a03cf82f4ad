"""Plots of characters: a curve over training steps as bars, and a sparkline."""

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby, pairwise
from math import isfinite
from operator import itemgetter
from statistics import fmean

from rich.text import Text

_EIGHTHS = " ▁▂▃▄▅▆▇█"
_TOPS = (0.1, 0.25, 0.5, 1.0)
"""Where the axis of a rate may end."""
_LABEL = 5
"""Columns of the axis's labels."""
_WIDEST = 6
"""Columns of a step."""
_STAGE_STYLES = ("green", "cyan", "blue", "magenta")
"""The styles of the bars, by curriculum stage; the axis marks the stages without colours too."""


def draw_sparkline(values: Sequence[float], *, width: int) -> str:
    """`values` on one line of at most `width` characters, from their least to their largest; a blank where
    one is NaN or infinite."""
    if not values:
        return ""
    columns = min(width, len(values))
    edges = [len(values) * column // columns for column in range(columns + 1)]
    means = [_finite_mean(values[first:end]) for first, end in pairwise(edges)]
    finite_means = [mean for mean in means if mean is not None]
    low = min(finite_means, default=0.0)
    spread = max(finite_means, default=0.0) - low

    def character(mean: float | None) -> str:
        if mean is None:
            return " "
        return _EIGHTHS[1 + round((mean - low) / spread * 7) if spread else 4]

    return "".join(map(character, means))


def _finite_mean(values: Sequence[float]) -> float | None:
    return fmean(values) if all(map(isfinite, values)) else None


def draw_rate(
    rates: Mapping[int, float],
    *,
    horizons: Callable[[int], float | None],
    steps: int,
    width: int,
    height: int,
) -> list[Text]:
    """A rate by training step as `height` lines of bars, and one on which the curriculum stages are marked.

    `rates`: by step; `horizons`: of each step, None where it is not known yet; `steps`: the last step of the
    axis. The axis begins at 0 and ends at the next of `_TOPS`.
    """
    room = max(1, width - _LABEL)
    # A column is the mean of several steps, or a step has several columns.
    columns = min(room, steps * _WIDEST)
    step_of = [1 + column * steps // columns for column in range(columns)] + [steps + 1]
    heights: list[float | None] = []
    top = next((top for top in _TOPS if top >= max(rates.values(), default=0.0)), 1.0)
    for first, end in pairwise(step_of):
        values = [rates[step] for step in range(first, max(end, first + 1)) if step in rates]
        heights.append(fmean(values) / top if values else None)
    stages = _number_stages([horizons(step) for step in step_of[:-1]])
    lines = []
    for row in reversed(range(height)):
        label = {height - 1: f"{top:.0%}", 0: "0%"}.get(row, "")
        line = Text.assemble((f"{label:>{_LABEL - 1}} ", "dim"))
        for stage, group in groupby(zip(heights, stages, strict=True), key=itemgetter(1)):
            bar = "".join(_character(value, row=row, height=height) for value, _ in group)
            line.append(bar, style=_STAGE_STYLES[stage % len(_STAGE_STYLES)])
        lines.append(line)
    return [*lines, _axis([horizons(step) for step in step_of[:-1]])]


def _character(value: float | None, *, row: int, height: int) -> str:
    """The part of a bar that is in `row`, from 0 at the bottom; `value`: its share of `height` rows."""
    if value is None:
        return " "
    least = 1 if row == 0 else 0  # a rate of 0 differs from a step that is still to come
    return _EIGHTHS[max(least, min(8, round((value * height - row) * 8)))]


def _number_stages(horizons: Sequence[float | None]) -> list[int]:
    stage, stages = 0, [0]
    for before, after in pairwise(horizons):
        stage += after is not None and before is not None and after != before
        stages.append(stage)
    return stages


def _axis(horizons: Sequence[float | None]) -> Text:
    """A line that says from which column on the horizon is which."""
    axis, before = "", None
    for column, horizon in enumerate(horizons):
        if horizon is not None and horizon != before:
            label = f"└{horizon:.0f}" + ("" if axis.strip("─") else " turns")
            # A stage that is narrower than the label of the one before it, as in a linear horizon, has none.
            if len(axis) <= column and column + len(label) <= len(horizons):
                axis = axis.ljust(column, "─") + label
        before = horizon
    return Text(" " * _LABEL + axis.ljust(len(horizons), "─"), style="dim")
