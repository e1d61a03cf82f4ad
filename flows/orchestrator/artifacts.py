"""The text of a run's artifacts in Prefect: progress, rounds, curves and links.

`flows/orchestrator/page.py` decides when they are sent. Each is a function of the workspace's files and of
the last training step, so a resumed run shows its earlier rounds too. Leaves out Prefect itself.
"""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from envs.types import replace_surrogates
from tasks.config.pipelines import Pipeline
from tasks.data.hashes import text_md5
from tasks.evaluation.outcomes import Evaluation
from tasks.reporting.pages import format_count
from tasks.runs.folders import RUNS, relative_within
from tasks.tracking import facts
from tasks.tracking.connection import ui_command
from tasks.tracking.record import recorded_page

if TYPE_CHECKING:
    from tasks.runs.rounds import RoundResult

Step = Mapping[str, float]
"""One training step: a line of `train/metrics.jsonl`."""

BARS = "▁▂▃▄▅▆▇█"
MAX_BARS = 60
"""The most bars of a curve; more steps than this share bars."""
CURVES = ("success", "reward", "informative_groups", "turns", "entropy", "kl", "imitation_loss")
"""Metrics of training steps that have a curve, in this order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunArtifact:
    """An artifact of Prefect, whose key is that of the workspace and `name`."""

    name: str
    type: str
    """`progress`, `table` or `markdown`: how Prefect shows `data`."""
    description: str
    data: float | str
    """Percent of a progress, JSON of a table, Markdown."""


def artifact_key(workspace: Path, name: str) -> str:
    """The key of an artifact of the run in `workspace`: the same for every run there.

    Prefect allows lower-case letters, digits and dashes. If the path has other characters than those of a
    plain name, as `lr=1e-3` of a sweep has, the key contains the beginning of its hash, since
    `lr=1e+3` has the same letters and digits.
    """
    place = str(relative_within(workspace, RUNS))
    parts = re.findall(r"[a-z0-9]+", place.lower())
    if not re.fullmatch(r"[A-Za-z0-9._/ -]*", place):
        parts.append(text_md5(replace_surrogates(place))[:8])
    return "-".join([*parts, name])


def progress_artifact(step: Step, *, pipeline: Pipeline, phase: str) -> RunArtifact:
    """Steps done of all, with horizon and success; `step`: the last one, empty before the first.

    `phase`: what training does until the next step, or empty.
    """
    done, settings = int(step.get("step", 0)), pipeline.train
    parts = [
        f"step {done} of {settings.steps}",
        f"round {max(done - 1, 0) // settings.steps_per_round + 1} of {settings.num_rounds}",
        *(f"{key} {step[key]:.3g}" for key in ("horizon", "success", "reward") if key in step),
        phase,
    ]
    return RunArtifact(
        name="progress",
        type="progress",
        description=", ".join(filter(None, parts)),
        data=round(100 * done / settings.steps, 1),
    )


def rounds_artifact(rounds: Sequence["RoundResult"], steps: Sequence[Step]) -> RunArtifact:
    """A table: a row per finished round."""
    rows = []
    for done in rounds:
        own_steps = [step for step in steps if done.first_step <= step["step"] <= done.last_step]
        params = facts.round_params(own_steps, first=done.first_step, last=done.last_step)
        rows.append(
            {
                "round": done.index + 1,
                "steps": f"{done.first_step} to {done.last_step}",
                "horizon": params.get("horizon"),
                "success in training": _mean(own_steps, "success"),
                "success of the quick evaluation": _rounded(done.evaluation.get("success")),
                "reward in training": _mean(own_steps, "reward"),
                "minutes": round(done.seconds / 60, 1),
            }
        )
    return RunArtifact(
        name="rounds",
        type="table",
        description="Rounds of training. Success in training is the mean over the round's steps; the quick "
        "evaluation runs the same test items after every round.",
        data=json.dumps(rows),
    )


def curves_artifact(rounds: Sequence["RoundResult"], steps: Sequence[Step]) -> RunArtifact:
    """Curves over the training steps, and of the quick evaluation over the rounds."""
    series = {f"{key}, training steps": [s[key] for s in steps if key in s] for key in CURVES}
    quick = [done.evaluation["success"] for done in rounds if "success" in done.evaluation]
    lines = [
        f"| {name.replace('_', ' ')} | `{sparkline(values)}` | {values[0]:.3g} | {values[-1]:.3g} "
        f"| {min(values):.3g} | {max(values):.3g} |"
        for name, values in {"success, quick evaluations": quick, **series}.items()
        if values
    ]
    head = ["| metric | curve | first | last | least | most |", "|---|---|---|---|---|---|"]
    return RunArtifact(
        name="curves",
        type="markdown",
        description=f"Curves of {format_count(len(steps), 'step')}. The bars of a metric between 0 and 1 are "
        "from 0 to 1, of any other from its least to its most.",
        data="\n".join([*head, *lines]),
    )


def sparkline(values: Sequence[float], *, bars: int = MAX_BARS) -> str:
    """A bar for each value, at most `bars`: means over equal shares. Rates (all within 0 and 1) begin at 0
    and end at 1; other values at their least and their most. A share with a NaN or an infinite value has a
    blank."""
    width = min(bars, len(values))
    edges = [index * len(values) // width for index in range(width + 1)]
    shares = [values[start:end] for start, end in pairwise(edges)]
    means = [fmean(share) if all(map(isfinite, share)) else None for share in shares]
    finite_means = [mean for mean in means if mean is not None]
    low, high = min(finite_means, default=0.0), max(finite_means, default=0.0)
    if all(0 <= value <= 1 for value in values if isfinite(value)):
        low, high = 0.0, 1.0
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((mean - low) * scale)] if mean is not None else " " for mean in means)


def links_artifact(workspace: Path, *, evaluation: Evaluation | None, is_recorded: bool) -> RunArtifact:
    """Where the run can be seen: its MLflow page, its report, its trajectories.

    `evaluation`: the content of `evaluation.json`, None before the end. `is_recorded`: MLflow has the report.
    """
    lines = [f"- [MLflow run]({recorded_page(workspace)})"]
    if (command := ui_command()) is not None:
        lines[0] += f"; where the run is, `{command}` shows it"
    if evaluation is not None:
        report = f"`{workspace / 'report' / 'index.html'}`"
        in_mlflow = recorded_page(workspace, tab="/artifacts/report/index.html")
        lines.append(f"- [Report]({in_mlflow}), {report}" if is_recorded else f"- Report: {report}")
    lines.append(f"- Trajectories: `{shlex.join(['wingspan', 'view', str(workspace)])}`")
    head = "Not evaluated yet." if evaluation is None else facts.result(evaluation)
    return RunArtifact(
        name="links",
        type="markdown",
        description=f"The run in {workspace.resolve()}",
        data="\n".join([head, "", *lines]),
    )


def _mean(steps: Sequence[Step], key: str) -> float | None:
    values = [step[key] for step in steps if key in step]
    return _rounded(fmean(values)) if values else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
