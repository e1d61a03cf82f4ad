"""The curves of settings: success against the cost of training, with intervals over seeds."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean

from tasks.evaluation.intervals import t_interval
from tasks.reporting.chart_style import Plot, render_plot
from tasks.reporting.charts import SettingCurves, settings_over, smooth
from tasks.reporting.comparison.runs import AXES, FinishedRun

POINTS = 60
"""The number of points of a mean curve."""
MIN_SEEDS = 3
"""Seeds whose mean has an interval in a plot. Of two, Student's t has one degree of freedom: the interval is
wider than most plots and hides the curves."""

Curve = Sequence[tuple[float, float]]
"""(x, value), x ascending."""


def evaluation_plots(settings: Mapping[str, Sequence[FinishedRun]]) -> list[Plot]:
    """Success on the test split against each axis of `AXES` that was spent."""
    return _plots(
        {
            axis: {
                name: [run.curve(run.test_points, axis) for run in runs] for name, runs in settings.items()
            }
            for axis in AXES
        },
        name="test",
        ylabel="success on the test split",
        has_markers=True,
    )


def training_plots(settings: Mapping[str, Sequence[FinishedRun]]) -> list[Plot]:
    """Success of the training episodes, smoothed; settings without any are left out."""
    sampling = {name: runs for name, runs in settings.items() if all(run.training_points for run in runs)}
    curves = {
        axis: {
            name: [
                run.curve([(int(step), value) for step, value in smooth(run.training_points)], axis)
                for run in runs
            ]
            for name, runs in sampling.items()
        }
        for axis in AXES
    }
    return _plots(curves, name="training", ylabel="success in training", has_markers=False)


def mean_curve(curves: Sequence[Curve]) -> list[tuple[float, float]]:
    """(x, mean) of `curves`, as far as all of them are known; empty for fewer than two."""
    return [(x, fmean(values)) for x, values in _common_points(curves)] if len(curves) > 1 else []


def interval_curve(curves: Sequence[Curve]) -> list[tuple[float, float, float]]:
    """(x, low, high) of the interval of the mean over `curves`, Student's t, within 0 and 1; empty for fewer
    than `MIN_SEEDS`."""
    if len(curves) < MIN_SEEDS:
        return []
    intervals = [(x, t_interval(values)) for x, values in _common_points(curves)]
    return [(x, max(0.0, low), min(1.0, high)) for x, (low, high) in intervals]


def interpolate(curve: Curve, x: float) -> float:
    """The value at `x`, on the straight line between the points beside it.

    Raises `ValueError` for an `x` outside of the curve.
    """
    for (left, first), (right, last) in pairwise(curve):
        if left <= x <= right and right > left:
            return first + (last - first) * (x - left) / (right - left)
    if len(curve) == 1 and x == curve[0][0]:
        return curve[0][1]
    raise ValueError(f"{x:g} is outside of the curve, from {curve[0][0]:g} to {curve[-1][0]:g}")


def _common_points(curves: Sequence[Curve]) -> list[tuple[float, list[float]]]:
    """(x, value of each curve), interpolated between the points of the curves, where all of them are known;
    empty if that is a single x or none."""
    start, end = max(curve[0][0] for curve in curves), min(curve[-1][0] for curve in curves)
    if end <= start:
        return []
    xs = [*(start + (end - start) * index / POINTS for index in range(POINTS)), end]
    return [(x, [interpolate(curve, x) for curve in curves]) for x in xs]


def _plots(
    curves: Mapping[str, Mapping[str, Sequence[Curve]]], *, name: str, ylabel: str, has_markers: bool
) -> list[Plot]:
    plots = []
    for axis, by_setting in curves.items():
        if not any(curve[-1][0] > 0 for seeds in by_setting.values() for curve in seeds):
            continue  # an offline algorithm spends no environment steps
        settings = [
            SettingCurves(label=setting, seeds=seeds, mean=mean_curve(seeds), interval=interval_curve(seeds))
            for setting, seeds in by_setting.items()
        ]
        ends = "; ".join(
            f"{setting.label} {fmean(seed[-1][1] for seed in setting.seeds):.0%}" for setting in settings
        )
        plots.append(
            render_plot(
                f"{name}_over_{axis}",
                settings_over(settings, xlabel=AXES[axis], ylabel=ylabel, has_markers=has_markers),
                alt=f"{ylabel.capitalize()} against {AXES[axis]}; at the end: {ends}.",
                width=5.3,
                height=3.2,
            )
        )
    return plots
