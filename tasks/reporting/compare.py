"""Comparison of runs: their results, the parameters that differ, and success against environment steps.

Runs whose workspaces are named `<name>-seed<number>` are seeds of one setting: each has a row, and the
setting has one more with the medians. Runs are compared at equal environment steps because a training step
costs more with a longer horizon.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from envs.errors import ConfigError
from envs.files import check_writable
from tasks.config.parameters import flat
from tasks.reporting.chart_style import Plot, render_plot
from tasks.reporting.charts import runs_over_environment_steps
from tasks.reporting.pages import duration, percent, points, render_page, write_page
from tasks.reporting.results import PARAMETERS, Results, environment_steps, read_results, stages_of

_TIMES = "\N{MULTIPLICATION SIGN}"
_SEED = re.compile(r"-seed\d+$")
_ENV = re.compile(r"data\.parts\..+\.env")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """One finished run, or the medians of a setting's seeds."""

    name: str
    setting: str
    """The name without its seed."""
    seeds: int
    """Number of runs that the medians are taken over."""
    horizon: str
    """Turns of each curriculum stage times its training steps."""
    environment_steps: float
    seconds: float
    """Of all stages."""
    before: float
    after: float
    gain: float
    """Sampled success after minus before."""
    greedy: float
    by_depth: Mapping[str, float]
    """Sampled, after training."""
    curve: Sequence[tuple[float, float]]
    """(environment steps, success): the evaluation before, after each round, and after training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A comparison of runs, as text."""

    names: Sequence[str]
    """Names of the runs, in the given order."""
    header: Sequence[str]
    cells: Sequence[Sequence[str]]
    """A row for each run and each setting's medians."""
    differing: Sequence[Sequence[str]]
    """A row for each parameter that is not the same in all runs: its key, and its value in each."""
    notes: Sequence[str]
    """What a reader must know before the numbers are compared, in sentences."""
    page: Path
    """`index.html`."""


def compare(workspaces: Sequence[Path], out: Path) -> Comparison:
    """Write `index.html`, `compare.md`, `compare.svg` and `compare.png` to `out`.

    Raises `ConfigError` for no workspace, two of one name, one that was not evaluated, or an `out` that
    cannot be written to.
    """
    if not workspaces:
        raise ConfigError("no workspaces to compare; name at least one, e.g. runs/textcraft-cpu")
    runs = [read_run(workspace) for workspace in workspaces]
    names = [run.name for run in runs]
    if len(set(names)) < len(names):
        raise ConfigError(f"two workspaces have one name in {', '.join(names)}; rename one")
    check_writable(out, remedy="choose another --out")
    rows = with_medians(runs)
    plot = _plot(runs)
    header, cells = table(rows)
    parameters = {run.name: read_parameters(path) for run, path in zip(runs, workspaces, strict=True)}
    differing, notes = differences(parameters), notes_on(parameters)
    page = render_page(
        "compare.html",
        header=header,
        rows=list(zip(rows, cells, strict=True)),
        plot=plot,
        has_medians=len(rows) > len(runs),
        names=names,
        differing=differing,
        notes=notes,
    )
    path = write_page(out, page=page, plots=[plot])
    parts = [markdown(header, cells), *(f"{note}\n" for note in notes)]
    if differing:
        parts.append(markdown(["parameter", *names], differing))
    (out / "compare.md").write_text("\n".join(parts))
    return Comparison(names=names, header=header, cells=cells, differing=differing, notes=notes, page=path)


def read_parameters(workspace: Path) -> Mapping[str, Any]:
    """The parameters of the run of `workspace` by dotted key; empty where its report did not record them."""
    file = workspace / "report" / PARAMETERS
    return dict(flat(json.loads(file.read_text()), sep=".")) if file.exists() else {}


def differences(parameters: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """A row for each key whose value is not the same in all runs (name → parameters): the key and each value.

    Runs whose parameters are unknown have `?` and make no difference.
    """
    recorded_parameters = [values for values in parameters.values() if values]
    keys = dict.fromkeys(key for values in recorded_parameters for key in values if key != "description")
    return [
        [key, *(_format_value(values, key) for values in parameters.values())]
        for key in keys
        if len({_format_value(values, key) for values in recorded_parameters}) > 1
    ]


def notes_on(parameters: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Why numbers of the runs (name → parameters) may not be comparable, in sentences."""
    notes = []
    unknown = [name for name, values in parameters.items() if not values]
    if unknown:
        notes.append(
            f"The parameters of {', '.join(unknown)} were not recorded; run the stage report again to have "
            "them."
        )
    envs = {
        name: sorted({str(value) for key, value in values.items() if _ENV.fullmatch(key)})
        for name, values in parameters.items()
        if values
    }
    if len({tuple(names) for names in envs.values()}) > 1:
        listing = "; ".join(f"{name}: {', '.join(names)}" for name, names in envs.items())
        notes.append(f"The environments differ, so that success does not mean the same: {listing}.")
    return notes


def _format_value(values: Mapping[str, Any], key: str) -> str:
    if not values:
        return "?"
    return json.dumps(values[key], ensure_ascii=False).strip('"') if key in values else "-"


def read_run(workspace: Path) -> RunSummary:
    """The run of `workspace`. Raises `ConfigError` for an unfinished run."""
    results = read_results(workspace)
    before, after, greedy = (
        results.rate(policy, mode)
        for policy, mode in (("before", "sampled"), ("after", "sampled"), ("after", "greedy"))
    )
    if before is None or after is None or greedy is None or not results.steps:
        raise ConfigError(f"{workspace} holds no finished run; run its pipeline to the end first")
    env_steps = environment_steps(results)
    name = workspace.resolve().name
    depths = results.evaluation["after"]["sampled"]
    return RunSummary(
        name=name,
        setting=_SEED.sub("", name),
        seeds=1,
        horizon=_horizon(results),
        environment_steps=env_steps[-1],
        seconds=sum(results.seconds.values()),
        before=before,
        after=after,
        gain=after - before,
        greedy=greedy,
        by_depth={
            key.removeprefix("success_depth_"): rate
            for key, rate in depths.items()
            if key.startswith("success_depth_")
        },
        curve=[
            (0.0, before),
            *(
                (env_steps[done.last_step - 1], done.evaluation["success"])
                for done in results.rounds
                if "success" in done.evaluation and done.last_step < len(env_steps)
            ),
            (env_steps[-1], after),
        ],
    )


def with_medians(runs: Sequence[RunSummary]) -> list[RunSummary]:
    """Runs by setting in the order given, each setting of several seeds followed by its medians."""
    rows = []
    for setting in dict.fromkeys(run.setting for run in runs):
        seeds = [run for run in runs if run.setting == setting]
        rows += seeds
        if len(seeds) > 1:
            rows.append(median_of(seeds))
    return rows


def median_of(seeds: Sequence[RunSummary]) -> RunSummary:
    """The median of each number by itself; a depth that a seed lacks is left out."""
    first = seeds[0]
    return RunSummary(
        name=f"{first.setting}, median of {len(seeds)}",
        setting=first.setting,
        seeds=len(seeds),
        horizon="; ".join(dict.fromkeys(run.horizon for run in seeds)),
        environment_steps=median(run.environment_steps for run in seeds),
        seconds=median(run.seconds for run in seeds),
        before=median(run.before for run in seeds),
        after=median(run.after for run in seeds),
        gain=median(run.gain for run in seeds),
        greedy=median(run.greedy for run in seeds),
        by_depth={
            depth: median(run.by_depth[depth] for run in seeds)
            for depth in first.by_depth
            if all(depth in run.by_depth for run in seeds)
        },
        curve=(),
    )


def table(rows: Sequence[RunSummary]) -> tuple[list[str], list[list[str]]]:
    """Header and cells, as text."""
    depths = sorted({depth for run in rows for depth in run.by_depth}, key=lambda depth: (len(depth), depth))
    header = ["run", f"turns {_TIMES} steps", "env steps", "time", "before", "after", "points", "greedy"]
    header += [f"depth {depth}" for depth in depths]
    cells = [
        [
            run.name,
            run.horizon,
            f"{run.environment_steps:,.0f}",
            duration(run.seconds),
            percent(run.before),
            percent(run.after),
            points(run.gain),
            percent(run.greedy),
            *(percent(run.by_depth.get(depth)) for depth in depths),
        ]
        for run in rows
    ]
    return header, cells


def markdown(header: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    """A Markdown table; its first two columns to the left, numbers to the right."""
    rule = ["---", "---", *("---:" for _ in header[2:])]
    rows = ([cell.replace("|", "\\|") for cell in row] for row in [header, rule, *cells])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _plot(runs: Sequence[RunSummary]) -> Plot:
    settings = list(dict.fromkeys(run.setting for run in runs))
    summary = "; ".join(f"{run.name} {run.before:.0%} to {run.after:.0%}" for run in runs)
    return render_plot(
        "compare",
        runs_over_environment_steps([(run.setting, settings.index(run.setting), run.curve) for run in runs]),
        alt=f"Success on the test split against environment steps: {summary}.",
        width=8.6,
        height=4.2,
    )


def _horizon(results: Results) -> str:
    stages = stages_of([int(step["horizon"]) for step in results.steps])
    return ", ".join(f"{turns} {_TIMES} {last - first + 1}" for first, last, turns in stages)
