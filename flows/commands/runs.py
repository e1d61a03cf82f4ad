"""`wingspan runs`: the runs recorded in MLflow, with the progress that the files in their workspaces show."""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from envs.errors import ConfigError, DamagedFile
from tasks.config.pipelines import PIPELINES_FILE
from tasks.runs.folders import STEPS, relative_within
from tasks.runs.steps import read_steps
from tasks.tracking.connection import DEFAULT_URI, check_tracking, connect, experiment_of, tracking_uri
from tasks.tracking.record import read_record
from tasks.tracking.recorded_runs import RecordedRun, mark_gone, read_runs

COLUMNS = ("run", "state", "step", "success", "started", "workspace")


def run_rows() -> Iterator[tuple[str, ...]]:
    """Mark the runs whose process is gone as killed; yields a row for each run, the latest first."""
    if tracking_uri() == DEFAULT_URI and not Path(PIPELINES_FILE).exists():
        raise ConfigError(
            f"no {PIPELINES_FILE} here; run from the project's folder, or set MLFLOW_TRACKING_URI"
        )
    check_tracking()
    client = connect()
    experiment_id = experiment_of(client)
    mark_gone(client, experiment_id=experiment_id)
    for run in read_runs(client, experiment_id=experiment_id):
        start = datetime.fromtimestamp(run.start_time).strftime("%Y-%m-%d %H:%M")
        folder = "" if run.workspace is None else str(relative_within(run.workspace, Path.cwd()))
        try:
            step, success = _progress(run)
        except DamagedFile as error:  # the others can be listed
            step, success, folder = "", "", str(error)
        yield run.name, run.state, step, success, start, folder


def _progress(run: RecordedRun) -> tuple[str, str]:
    """The last step, and the success rate of the final evaluation or else of that step.

    Only a run that has not finished is looked up in its workspace; both are empty if that is gone or records
    another run since. Steps that an earlier run has left there do not count. Raises `DamagedFile`.
    """
    if run.state == "finished" and run.success is not None:
        return f"{run.steps}/{run.steps}", f"{run.success:.2f}"
    if run.workspace is None or read_record(run.workspace).get("run_id") != run.run_id:
        return "", ""
    file = run.workspace / STEPS
    is_of_run = file.exists() and file.stat().st_mtime >= run.start_time
    steps = read_steps(run.workspace, is_growing=True) if is_of_run else []
    last = steps[-1] if steps else {}
    success = last.get("success")
    return f"{last.get('step', 0)}/{run.steps}", "" if success is None else f"{success:.2f}"
