"""`wingspan runs`: the runs that MLflow has, and how far each came, by the files in its workspace."""

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from tasks.tracking.recorded_runs import RecordedRun, mark_gone, read_runs
from tasks.tracking.tracker import check_tracking, connect, experiment_of

COLUMNS = ("run", "state", "step", "success", "started", "workspace")


def run_rows() -> Iterator[tuple[str, ...]]:
    """A row for each run, the latest first; a run whose process is gone is marked as killed before."""
    check_tracking()
    client = connect()
    experiment_id = experiment_of(client)
    mark_gone(client, experiment_id=experiment_id)
    for run in read_runs(client, experiment_id=experiment_id):
        step, success = _progress(run)
        started = datetime.fromtimestamp(run.start_time).strftime("%Y-%m-%d %H:%M")
        yield run.name, run.state.lower(), step, success, started, _shown(run.workspace)


def _progress(run: RecordedRun) -> tuple[str, str]:
    """The last step and the success rate: of the final evaluation, else of that step's episodes."""
    if run.workspace is None or not run.workspace.is_dir():
        return "", ""
    step, success = 0, None
    metrics = run.workspace / "train" / "metrics.jsonl"
    if metrics.exists():
        for line in metrics.read_text().splitlines():
            try:
                values = json.loads(line)
            except json.JSONDecodeError:
                continue  # the run was killed as it wrote
            step, success = values["step"], values.get("success")
    evaluation = run.workspace / "evaluation.json"
    if run.state == "FINISHED" and evaluation.exists():
        success = json.loads(evaluation.read_text())["after"]["sampled"].get("success")
    return f"{step}/{run.steps}", "" if success is None else f"{success:.2f}"


def _shown(workspace: Path | None) -> str:
    here = Path.cwd()
    if workspace is None:
        return ""
    return str(workspace.relative_to(here) if workspace.is_relative_to(here) else workspace)
