"""`wingspan plan`: the checks that a run makes before it starts, and which of its stages would run, and why.

Reads what Prefect stored of finished stages from its folder; starts no server and changes nothing. Where
Prefect is set to store elsewhere, stages are shown as if they had not run.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.lineage import Receipt, Stage, cache_key, path_md5, stage_key
from flows.plan import Plan, make_plan
from flows.prefect_runs import check_server
from flows.stages import would_resume
from tasks.tracking.tracker import check_tracking
from tasks.verl import checkpoints

COLUMNS = ("stage", "would", "why")


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a run would do about one stage."""

    stage: str
    runs: bool
    reason: str

    @property
    def row(self) -> Sequence[str]:
        """Its cells, by `COLUMNS`."""
        return (self.stage, "run" if self.runs else "be skipped", self.reason)


def preview(
    name: str, *, overrides: Mapping[str, Any], workspace: Path | None
) -> tuple[Plan, list[Forecast]]:
    """The plan of a run, checked, and its stages. Raises as `make_plan` does."""
    check_server()
    check_tracking()
    plan = make_plan(name, overrides=overrides, workspace=workspace)
    forecasts: list[Forecast] = []
    for stage in plan.stages.values():
        forecasts.append(_forecast(stage, earlier=forecasts))
    return plan, forecasts


def _forecast(stage: Stage, *, earlier: Sequence[Forecast]) -> Forecast:
    first = next((forecast.stage for forecast in earlier if forecast.runs), None)
    if first is not None:
        return Forecast(stage.name, True, f"it comes after {first}, which would run")
    stored = _stored(cache_key(stage, stage_key(stage)))
    if stored is None:
        begun = any(out.exists() for out in stage.outs)
        reason = "its code, parameters or inputs changed" if begun else "it has not run in this workspace"
        return Forecast(stage.name, True, _resumption(stage) or reason)
    lost = [out for out in stored if not (stage.workspace / out).exists()]
    if lost:
        return Forecast(stage.name, True, f"{stage.workspace / lost[0]} was deleted")
    changed = [out for out, md5 in stored.items() if path_md5(stage.workspace / out) != md5]
    if changed:
        return Forecast(stage.name, True, f"{stage.workspace / changed[0]} was changed")
    return Forecast(stage.name, False, "finished on the same code, parameters and inputs")


def _resumption(stage: Stage) -> str | None:
    """From which step training would go on; None where it would begin anew, and for other stages."""
    if stage.name != "train" or not would_resume(stage):
        return None
    steps = checkpoints.complete_steps(stage.workspace / "train" / "checkpoints")
    return f"it goes on after step {steps[-1]}" if steps else None


def _stored(key: str) -> Receipt | None:
    """What Prefect stored of a finished stage, in the form of `prefect.results.ResultRecord`."""
    from prefect.settings import get_current_settings

    file = get_current_settings().results.local_storage_path / key
    try:
        receipt: Receipt = json.loads(json.loads(file.read_text())["result"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return receipt
