"""The curves of settings: success against the cost of training, with intervals over seeds."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean

from tasks.evaluation.intervals import t_interval
from tasks.reporting.chart_style import Plot, render_plot
from tasks.reporting.charts import SettingCurves, plot_height, settings_over, smooth
from tasks.reporting.comparison.runs import AXES, FinishedRun

POINTS = 60
"""The number of points of a mean curve."""
MIN_SEEDS = 3
"""Seeds whose mean has an interval in a plot. Of two, Student's t has one degree of freedom: the interval is
wider than most plots and hides the curves."""

_TEST, _TRAINING = "test", "training"
PLOTS = tuple(f"{kind}_over_{axis}" for kind in (_TEST, _TRAINING) for axis in AXES)
"""The names of all plots that a comparison may have."""

Curve = Sequence[tuple[float, float]]
"""(x, value), x ascending."""


def evaluation_plots(settings: Mapping[str, Sequence[FinishedRun]]) -> list[Plot]:
    """Success on the test split against each axis of `AXES` that was spent; the curves are of the quick
    evaluations, and those of all items are points of their own."""

    def curves_of(name: str, axis: str) -> SettingCurves:
        runs = settings[name]
        has_quick = all(run.quick_points for run in runs)
        return _setting(
            name,
            [run.curve(run.quick_points, axis) for run in runs if has_quick],
            points=[run.curve(run.test_points, axis) for run in runs],
        )

    return _plots(
        {axis: [curves_of(name, axis) for name in settings] for axis in AXES},
        name=_TEST,
        ylabel="success on the test split",
        has_markers=True,
    )


def training_plots(settings: Mapping[str, Sequence[FinishedRun]]) -> list[Plot]:
    """Success of the training episodes, smoothed; settings without any are left out."""
    sampling = {name: runs for name, runs in settings.items() if all(run.training_points for run in runs)}
    smooth_curves = {
        axis: [
            _setting(
                name,
                [
                    run.curve([(int(step), value) for step, value in smooth(run.training_points)], axis)
                    for run in runs
                ],
            )
            for name, runs in sampling.items()
        ]
        for axis in AXES
    }
    return _plots(smooth_curves, name=_TRAINING, ylabel="success in training", has_markers=False)


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


def _setting(label: str, seeds: Sequence[Curve], *, points: Sequence[Curve] = ()) -> SettingCurves:
    return SettingCurves(
        label=label, seeds=seeds, points=points, mean=mean_curve(seeds), interval=interval_curve(seeds)
    )


def _plots(
    by_axis: Mapping[str, Sequence[SettingCurves]], *, name: str, ylabel: str, has_markers: bool
) -> list[Plot]:
    plots = []
    for axis, settings in by_axis.items():
        runs = {setting.label: setting.points or setting.seeds for setting in settings}
        if not any(run[-1][0] > 0 for members in runs.values() for run in members):
            continue  # an offline algorithm spends no environment steps
        ends = "; ".join(f"{label} {fmean(run[-1][1] for run in runs[label]):.0%}" for label in runs)
        draw = settings_over(
            settings, xlabel=AXES[axis], ylabel=ylabel, is_whole=axis != "minutes", has_markers=has_markers
        )
        plots.append(
            render_plot(
                f"{name}_over_{axis}",
                draw,
                alt=f"{ylabel.capitalize()} against {AXES[axis]}; at the end: {ends}.",
                width=5.3,
                height=plot_height(list(runs)),
            )
        )
    return plots
