"""Runs that are recorded at the same time: `python -m tests.support.tracked_runs SECONDS WORKSPACE...`.

Each is open for `SECONDS`, in its own process. All are forks of one process: MLflow's import takes seconds.
Their exit codes are printed, a line each, in the order of the workspaces.
"""

import os
import subprocess
import sys
import time
from multiprocessing import get_context
from pathlib import Path

from tasks.config.pipelines import load_pipeline
from tasks.tracking.tracker import Tracker

ROOT = Path(__file__).parents[2]
ONE_THREAD = {"JE_ARROW_MALLOC_CONF": "background_thread:false", "MLFLOW_DISABLE_TELEMETRY": "true"}
"""With these, MLflow's import starts no threads: forks would not have them."""


def start_tracked_runs(*workspaces: Path, seconds: float = 0) -> "subprocess.Popen[str]":
    """Start them in a process group, with pipes for the exit codes and for what they print."""
    return subprocess.Popen(
        [sys.executable, "-m", __name__, str(seconds), *map(str, workspaces)],
        env=os.environ | ONE_THREAD | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def track_run(workspace: Path, *, seconds: float) -> None:
    pipeline = load_pipeline("textcraft-cpu", file=ROOT / "pipelines.yaml")
    with Tracker("x", pipeline=pipeline, workspace=workspace):
        time.sleep(seconds)


if __name__ == "__main__":
    import mlflow.store.tracking.sqlalchemy_store  # noqa: F401

    settings = {"seconds": float(sys.argv[1])}
    context = get_context("fork")
    processes = [
        context.Process(target=track_run, args=(Path(workspace),), kwargs=settings)
        for workspace in sys.argv[2:]
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        print(process.exitcode, flush=True)
