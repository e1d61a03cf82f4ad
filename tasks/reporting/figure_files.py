"""The figures of a run as small files, which DVC's commands read (`metrics` and `plots` in `dvc.yaml`).

A subset of the report, of the same numbers: `metrics.json` is flat, `curves/` has a file for each curve, and
`groups.json` has success by groups of items.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from envs.files import write_atomically, write_json
from tasks.evaluation.outcomes import POLICIES
from tasks.reporting.results import Grouping, Results

METRICS = "metrics.json"
CURVES = "curves"
GROUPS = "groups.json"
CURVE_KEYS = ("success", "reward", "turns", "entropy", "kl", "imitation_loss", "preference_accuracy")
"""Keys of a training step that become curves, if the training records them."""
DIGITS = 6
"""Decimal places."""


def write_figures(
    workspace: Path, *, metrics: Mapping[str, float], results: Results, groupings: Sequence[Grouping]
) -> None:
    """Write `metrics.json`, `curves/` and `groups.json`, replacing earlier ones."""
    rounded = {key: round(value, DIGITS) for key, value in metrics.items()}
    write_json(workspace / METRICS, rounded)
    _write_rows(workspace / GROUPS, group_rows(results, groupings))
    shutil.rmtree(workspace / CURVES, ignore_errors=True)
    (workspace / CURVES).mkdir()
    for name, points in curves(results).items():
        _write_rows(
            workspace / CURVES / f"{name}.json",
            [{"step": step, "value": round(value, DIGITS)} for step, value in points],
        )


def curves(results: Results) -> dict[str, list[tuple[int, float]]]:
    """Curve → (step, value): `test_success` after each round, and what is recorded of `CURVE_KEYS`."""
    values = {
        key: [(int(step["step"]), step[key]) for step in results.steps if key in step] for key in CURVE_KEYS
    }
    values["test_success"] = [(done.last_step, done.evaluation["success"]) for done in results.counted_rounds]
    return {name: points for name, points in values.items() if points}


def group_rows(results: Results, groupings: Sequence[Grouping]) -> list[dict[str, str | float | None]]:
    """Sampled test success, before and after training, of all items and of each group; None where unknown."""
    return [
        {"group": "all", "policy": policy, "success": results.rate(policy, "sampled")} for policy in POLICIES
    ] + [
        {
            "group": f"{grouping.key} {group.value}",
            "policy": policy,
            "success": group.rates[policy, "sampled"],
        }
        for grouping in groupings
        for group in grouping.groups
        for policy in POLICIES
    ]


def _write_rows(file: Path, rows: Sequence[Mapping[str, object]]) -> None:
    lines = ",\n".join(map(json.dumps, rows))
    write_atomically(file, f"[\n{lines}\n]\n")
