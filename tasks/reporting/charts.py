"""Chart functions: each takes plain numbers and returns a function that draws on Matplotlib axes.

`chart_style.py` owns style and files; `figures.py` and `comparison/curves.py` choose the charts.
"""

import re
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from tasks.evaluation.intervals import wilson
from tasks.reporting.chart_style import (
    AFTER,
    BANDS,
    BEFORE,
    GRAY,
    INK,
    MARKERS,
    PAPER,
    PARTS,
    SERIES,
    THIRD,
    make_drawable,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

DrawFunction = Callable[["Axes"], None]
Stages = Sequence[tuple[int, int, int]]
"""(first step, last step, max_turns) of each curriculum stage."""


MAX_NAME = 58
"""Characters of a setting's name in a legend: as many as fit beside its line."""
BARS_WIDTH = 52
"""Characters that all the labels below a plot of `paired_bars` have side by side, 5 inches wide."""
COLUMN_SPACE = 6
"""The room of a line and of the space between two columns of a legend, in characters."""


def smoothing_window(steps: int) -> int:
    """Width in steps (odd) of the moving average for a curve of `steps` steps; 1 for short curves."""
    return 1 if steps < 10 else 2 * max(1, steps // 16) + 1


def smooth(values: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Moving average over `smoothing_window` steps; the window is clipped at both ends."""
    half = smoothing_window(len(values)) // 2
    return [
        (step, fmean(value for _, value in values[max(0, index - half) : index + half + 1]))
        for index, (step, _) in enumerate(values)
    ]


def tick_label(value: float, *, largest: float) -> str:
    """A tick: `−0.15`, or `1.5e−4` at every tick if the `largest` absolute value of the axis is small."""
    text = f"{value:zg}" if value == 0 or largest >= 0.001 else f"{value:.1e}"
    return re.sub(r"(\.0)?e-0?", "e-", text).replace("-", "\N{MINUS SIGN}")


def short_label(value: float, *, largest: float) -> str:
    """A tick of an axis that ends at `largest`: `0.8 M`, `40 k` or `15`."""
    if value == 0:
        return "0"
    if largest >= 1e6:
        return f"{value / 1e6:g} M"
    return f"{value / 1e3:g} k" if largest >= 1e4 else f"{value:g}"


def success_over_steps(
    *,
    training: Sequence[tuple[float, float]],
    quick: Sequence[tuple[float, float, int]],
    before: float | None,
    after: float | None,
    final_step: int,
    stages: Stages,
    narrow: bool = False,
) -> DrawFunction:
    """Success against training steps.

    `training`: (step, rate) of the training episodes; `quick`: (step, rate, items) of the evaluation
    after each round; `before`, `after`: the final evaluation; `final_step`: the training steps of the
    policy that it evaluates after training; `stages`: of the horizon;
    `narrow`: the legend takes two rows.
    """

    def draw(axes: "Axes") -> None:
        last = stages[-1][1]
        _stages(axes, stages=stages)
        if training:
            _line(axes, training, color=GRAY, label="training episodes")
        if quick:
            points = [(step, rate) for step, rate, _ in quick]
            spans = [wilson(rate, n=items) for _, rate, items in quick]
            axes.vlines(
                [step for step, _ in points], *zip(*spans, strict=True), color=THIRD, linewidth=1, alpha=0.6
            )
            axes.plot(
                *zip(*points, strict=True),
                "o",
                color=THIRD,
                markersize=5.5,
                label="quick evaluation",
                zorder=3,
            )
        for rate, step, color, label in (
            (before, 0, BEFORE, "test split, before"),
            (after, final_step if final_step < last else last + 0.5, AFTER, "test split, after"),
        ):
            if rate is None:
                continue
            face = PAPER if step == 0 else color
            axes.plot(
                [step],
                [rate],
                "D",
                color=color,
                mfc=face,
                mew=1.6,
                ms=7,
                label=label,
                zorder=4,
                clip_on=False,
            )
            axes.annotate(
                f"{rate:.1%}",
                (step, rate),
                # Within the axes: left of the first point are the numbers of the vertical one.
                xytext=(7, 6) if step == 0 else (9, 0),
                textcoords="offset points",
                ha="left",
                va="bottom" if step == 0 else "center",
                color=color,
                fontweight="bold",
                bbox={"facecolor": PAPER, "edgecolor": "none", "alpha": 0.8, "pad": 0.8},
                zorder=5,
                annotation_clip=False,
            )
        axes.set_xlim(0, last + 0.5)
        _percent_axis(axes, label="success")
        axes.set_xlabel("training step")
        _whole_steps(axes)
        axes.legend(loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=2 if narrow else 4)

    return draw


def paired_bars(
    *,
    key: str,
    labels: Sequence[str],
    before: Sequence[float | None],
    after: Sequence[float | None],
    intervals: tuple[Sequence[tuple[float, float]], Sequence[tuple[float, float]]],
) -> DrawFunction:
    """Success before and after, side by side for each group by `key`, with their 95% `intervals`. The lines
    of `labels` are broken where the next label begins."""
    wrapped_labels = ["\n".join(_wrap(label, width=max(1, BARS_WIDTH // len(labels)))) for label in labels]

    def draw(axes: "Axes") -> None:
        bars = ((before, BEFORE, "before", -0.2), (after, AFTER, "after", 0.2))
        for (rates, color, label, shift), spans in zip(bars, intervals, strict=True):
            known_rates = [(index, rate) for index, rate in enumerate(rates) if rate is not None]
            for index, rate in known_rates:
                x = index + shift
                hatch = "////" if label == "before" else None
                axes.bar(
                    x,
                    rate,
                    width=0.36,
                    color=PAPER if hatch else color,
                    edgecolor=color,
                    linewidth=1,
                    hatch=hatch,
                    label=label if index == known_rates[0][0] else None,
                )
                axes.vlines(x, *spans[index], color=INK, linewidth=1)
        axes.set_xticks(range(len(labels)), wrapped_labels)
        axes.tick_params(axis="x", length=0, colors=INK)
        axes.set_xlabel(key)
        _percent_axis(axes, label="success")
        if any(rate is not None for rate in (*before, *after)):
            axes.legend(loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=2)

    return draw


def _wrap(label: str, *, width: int) -> list[str]:
    """The lines of `label`, each of at most `width` characters."""
    return [part for line in label.split("\n") for part in textwrap.wrap(line, width)]


def line_over_steps(
    values: Sequence[tuple[float, float]],
    *,
    label: str,
    stages: Stages,
    percent: bool = False,
    ceiling: bool = False,
) -> DrawFunction:
    """One series of (step, value); `ceiling` draws the horizon above it."""

    def draw(axes: "Axes") -> None:
        from matplotlib.ticker import MaxNLocator

        _stages(axes, stages=stages, label_turns=not ceiling)
        _line(axes, values, color=INK)
        if ceiling:
            for first, last, turns in stages:
                axes.hlines(turns, first - 0.5, last + 0.5, color=GRAY, linewidth=1, linestyle="--")
            first, _, turns = stages[0]
            axes.annotate(
                "horizon", (first, turns), xytext=(0, 3), textcoords="offset points", fontsize=8.5, color=GRAY
            )
        axes.set_xlim(0.5, stages[-1][1] + 0.5)
        if percent:
            _percent_axis(axes, label=label)
        else:
            axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=ceiling))
            heights = [value for _, value in values] + [float(turns) for *_, turns in stages if ceiling]
            low, high = min(0.0, *heights), max(0.0, *heights)
            room = 0.12 * (high - low) or 1.0  # all may be 0
            bottom, top = low - room if low < 0 else 0.0, high + room
            axes.set_ylim(bottom, top)
            axes.yaxis.set_major_formatter(lambda y, _: tick_label(y, largest=max(top, -bottom)))
            axes.set_ylabel(label)
        axes.set_xlabel("training step")
        _whole_steps(axes)

    return draw


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingCurves:
    """The curves of one setting's seeds, (x, share) each, and their mean with its interval."""

    label: str
    seeds: Sequence[Sequence[tuple[float, float]]]
    points: Sequence[Sequence[tuple[float, float]]] = ()
    """Other (x, share) of each seed, which no line joins."""
    mean: Sequence[tuple[float, float]]
    """Empty for a single seed."""
    interval: Sequence[tuple[float, float, float]]
    """(x, low, high) of the mean; empty for too few seeds."""


def settings_over(
    settings: Sequence[SettingCurves], *, xlabel: str, ylabel: str, is_whole: bool, has_markers: bool
) -> DrawFunction:
    """Shares of several settings against what they have spent, in whole numbers if `is_whole`; the curves of
    a setting share a look."""

    def draw(axes: "Axes") -> None:
        from matplotlib.ticker import MaxNLocator

        handles: dict[str, Line2D] = {}
        for index, setting in enumerate(settings):
            color = SERIES[index % len(SERIES)]
            marker = MARKERS[(index + index // len(SERIES)) % len(MARKERS)] if has_markers else None
            style = ("-", "--", ":")[index // len(SERIES) % 3]
            is_faint = bool(setting.mean)
            for points in setting.seeds:
                (line,) = axes.plot(
                    *zip(*points, strict=True),
                    color=color,
                    linestyle=style,
                    linewidth=0.8 if is_faint else 1.6,
                    alpha=0.45 if is_faint else 1.0,
                    marker=marker,
                    ms=3 if is_faint else 5,
                    clip_on=False,
                    zorder=3,
                )
                handles.setdefault(setting.label, line)
            for points in setting.points:
                (line,) = axes.plot(
                    *zip(*points, strict=True),
                    "D",
                    color=color,
                    mfc=PAPER,
                    mew=1.4,
                    ms=6 if len(setting.points) == 1 else 4,
                    clip_on=False,
                    zorder=5,
                )
                handles.setdefault(setting.label, line)
            if setting.interval:
                shade = 0.15 if len(settings) <= 3 else 0.05
                x, low, high = zip(*setting.interval, strict=True)
                axes.fill_between(x, low, high, color=color, alpha=shade, linewidth=0)
            if setting.mean:
                (handles[setting.label],) = axes.plot(
                    *zip(*setting.mean, strict=True), color=color, linestyle=style, linewidth=2, zorder=4
                )
        largest = max(x for s in settings for points in (*s.seeds, *s.points) for x, _ in points)
        axes.set_xlim(0, largest)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=is_whole))
        axes.xaxis.set_major_formatter(lambda x, _: short_label(x, largest=largest))
        _percent_axis(axes, label=ylabel)
        axes.set_xlabel(xlabel)
        axes.legend(
            handles.values(),
            map(shorten_name, handles),
            loc="lower left",
            bbox_to_anchor=(-0.01, 1.0),
            ncols=_legend_columns(handles),
            handlelength=1.8,
        )

    return draw


def shorten_name(name: str) -> str:
    """The name of a setting as a legend has it: cut in its middle, for names often differ at their ends."""
    name, half = make_drawable(name), MAX_NAME // 2
    return name if len(name) <= MAX_NAME else f"{name[:half]}…{name[half + 1 - MAX_NAME :]}"


def plot_height(names: Sequence[str]) -> float:
    """The height in inches of a plot of `settings_over` of settings with these `names`."""
    rows = -(-len(names) // _legend_columns(names))
    return 3.2 + 0.18 * max(0, rows - 2)


def _legend_columns(names: Collection[str]) -> int:
    """The columns, 3 at most, into which `names` fit."""
    longest = max(len(shorten_name(name)) for name in names)
    return max(1, min(3, (MAX_NAME + COLUMN_SPACE) // (longest + COLUMN_SPACE)))


def stacked_over_steps(
    series: Mapping[str, Sequence[float]], *, steps: Sequence[int], label: str, percent: bool = False
) -> DrawFunction:
    """Stacked bars of the parts of a whole at each of `steps`; a part too small to see is omitted."""
    smallest = 0.01 * max(map(sum, zip(*series.values(), strict=True)), default=0.0)

    def draw(axes: "Axes") -> None:
        floor = [0.0] * len(steps)
        for index, (name, values) in enumerate(series.items()):
            if max(values, default=0.0) <= smallest:
                continue  # a part keeps its color whichever parts are present
            axes.bar(
                steps,
                values,
                bottom=floor,
                width=1.0 if len(steps) > 60 else 0.9,
                color=PARTS[index % len(PARTS)],
                linewidth=0,
                label=name,
            )
            floor = [low + value for low, value in zip(floor, values, strict=True)]
        axes.set_xlim(min(steps) - 0.5, max(steps) + 0.5)
        if percent:
            _percent_axis(axes, label=label, top=1.0)
        else:
            axes.set_ylabel(label)
        axes.set_xlabel("training step")
        _whole_steps(axes)
        axes.legend(
            loc="lower left",
            bbox_to_anchor=(-0.02, 1.0),
            ncols=len(PARTS),
            columnspacing=0.9,
            handlelength=0.8,
        )

    return draw


def _line(
    axes: "Axes", values: Sequence[tuple[float, float]], *, color: str, label: str | None = None
) -> None:
    """Draw a smoothed curve over steps, with the raw values faint behind it."""
    if smoothing_window(len(values)) > 1:
        axes.plot(*zip(*values, strict=True), color=color, linewidth=0.9, alpha=0.35)
    marker = "o" if len(values) == 1 else None
    axes.plot(*zip(*smooth(values), strict=True), color=color, linewidth=1.6, marker=marker, label=label)


def _stages(axes: "Axes", *, stages: Stages, label_turns: bool = True) -> None:
    """Draw the curriculum stages as bands, labeled with their turns where the label fits."""
    from matplotlib.transforms import blended_transform_factory

    across = blended_transform_factory(axes.transData, axes.transAxes)
    last = stages[-1][1]
    for index, (first, end, turns) in enumerate(stages):
        left = 0.0 if first == 1 else first - 0.5
        axes.axvspan(left, end + 0.5, color=BANDS[index % 2], linewidth=0, zorder=0)
        if label_turns and (end - first + 1) / last > 0.08:
            middle = (left + end + 0.5) / 2
            axes.text(
                middle,
                0.985,
                f"{turns} turns",
                transform=across,
                ha="center",
                va="top",
                color=GRAY,
                fontsize=8.5,
            )


def _percent_axis(axes: "Axes", *, label: str, top: float = 1.05) -> None:
    """A vertical axis of shares, in percent."""
    from matplotlib.ticker import PercentFormatter

    axes.set_ylim(0, top)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.set_ylabel(label)


def _whole_steps(axes: "Axes") -> None:
    """Ticks at whole steps only."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
