"""The runs that MLflow has: which of them a process still works on, and how they end where it cannot say so.

An open run has tags that say who works on it, renewed every `INTERVAL_S` (the heartbeat). A run whose process
is gone is marked as killed by the next run that starts, or by `wingspan runs`. On the machine of that process
its list of processes tells; elsewhere, silence does. All functions take MLflow's client:
`tasks/tracking/tracker.py`
makes it.
"""

import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import psutil

INTERVAL_S = 60.0
"""Between two heartbeats."""
SILENCE_S = 300.0
"""After which the process of another machine counts as gone."""
TIME, HOST, PROCESSES, PID, STARTED = (
    f"wingspan.{name}" for name in ("heartbeat", "host", "processes", "pid", "started")
)
"""Tags: seconds since the epoch; the machine; which list of processes `pid` is in; the process; its start."""
WORKSPACE = "wingspan.workspace"
"""The tag with the run's folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """A run of the experiment."""

    name: str
    state: str
    """RUNNING, FINISHED, FAILED or KILLED."""
    started: float
    """Seconds since the epoch."""
    steps: int
    """That it was to train."""
    workspace: Path | None
    """None for a run from before there was this tag."""


def read_runs(client: Any, *, experiment_id: str) -> list[RecordedRun]:
    """The runs, the latest first."""
    runs = client.search_runs([experiment_id], max_results=1000, order_by=["attributes.start_time DESC"])
    return [
        RecordedRun(
            name=run.info.run_name,
            state=run.info.status,
            started=run.info.start_time / 1000,
            steps=int(run.data.params.get("train.steps", 0)),
            workspace=Path(run.data.tags[WORKSPACE]) if WORKSPACE in run.data.tags else None,
        )
        for run in runs
        if "mlflow.parentRunId" not in run.data.tags
    ]


def mark_gone(client: Any, *, experiment_id: str) -> None:
    """Mark as killed what is recorded as running and has no process any more."""
    running = f"attributes.status = 'RUNNING' and tags.`{PID}` != ''"
    for run in client.search_runs([experiment_id], filter_string=running, max_results=1000):
        if is_gone(run.data.tags, now=time.time()):
            end(client, run.info.run_id, status="KILLED")


def end(client: Any, run_id: str, *, status: str) -> None:
    """Give a run that is open, and those of its rounds that are, their last status."""
    run = client.get_run(run_id)
    rounds = client.search_runs(
        [run.info.experiment_id], filter_string=f"tags.`mlflow.parentRunId` = '{run_id}'", max_results=1000
    )
    for each in (*rounds, run):
        if each.info.status == "RUNNING":
            client.set_terminated(each.info.run_id, status=status)


def beat(client: Any, run_id: str) -> None:
    """Say that this process works on the run."""
    for key, value in heartbeat().items():
        client.set_tag(run_id, key, value)


def heartbeat() -> dict[str, str]:
    """The tags of a run that this process works on now."""
    return {
        TIME: f"{time.time():.0f}",
        HOST: socket.gethostname(),
        PROCESSES: _processes(),
        PID: str(os.getpid()),
        STARTED: f"{psutil.Process().create_time():.2f}",
    }


def is_gone(tags: Mapping[str, str], *, now: float) -> bool:
    """Whether no process works on the run with `tags` any more; False for a run without a heartbeat."""
    if not tags.keys() >= {TIME, PROCESSES, PID, STARTED}:
        return False
    if tags[PROCESSES] != _processes():
        return now - float(tags[TIME]) > SILENCE_S
    try:
        process = psutil.Process(int(tags[PID]))
        if process.status() == psutil.STATUS_ZOMBIE:
            return True
        return abs(process.create_time() - float(tags[STARTED])) > 1.0  # else its number was given again
    except psutil.NoSuchProcess:
        return True


@cache
def _processes() -> str:
    """Names the list of processes that this one is in: containers and boots of a host have their own."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot = file.read().strip()
    return f"{boot} {os.readlink('/proc/self/ns/pid')}"
