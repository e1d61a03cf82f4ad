"""The heartbeat of recorded runs, and the end of runs whose process died.

The process of an open run renews tags on it every `INTERVAL_S`. If that process is gone, the next run that
starts, or `wingspan runs`, marks the run as killed: on the same machine as soon as the process is not in the
process table, elsewhere after `SILENCE_S` without a heartbeat. MLflow has the same status for a run that a
signal stopped; a tag tells them apart. All functions take an MLflow client (`tracker.py` creates it).
"""

import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.tracking.search import all_pages

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

INTERVAL_S = 60.0
"""Seconds between two heartbeats."""
SILENCE_S = 300.0
"""Seconds without a heartbeat after which a process on another machine counts as gone."""
TIME, HOST, PROCESSES, PID, START = (
    f"wingspan.{name}" for name in ("heartbeat", "host", "processes", "pid", "started")
)
"""Tags: seconds since the epoch; host name; process table of `pid`; process id; start of the process in clock
ticks since the boot, which does not change when the clock is set."""
KILLED = "wingspan.killed"
"""Tag: "true" for a run whose process was found to be gone, "false" as long as it lives."""
WORKSPACE = "wingspan.workspace"
"""Tag: the folder of the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """A run of the experiment."""

    run_id: str
    name: str
    state: str
    """The state as `state_of` gives it."""
    start_time: float
    """Seconds since the epoch."""
    steps: int
    """Training steps that it was configured for."""
    workspace: Path | None
    """None if the run has no such tag."""
    success: float | None
    """The success of the evaluation at its end."""


def read_runs(client: "MlflowClient", *, experiment_id: str) -> list[RecordedRun]:
    """All runs except those of rounds, the latest first."""
    runs = all_pages(client.search_runs, [experiment_id], order_by=["attributes.start_time DESC"])
    return [
        RecordedRun(
            run_id=run.info.run_id,
            name=run.info.run_name,
            state=state_of(run),
            start_time=run.info.start_time / 1000,
            steps=int(run.data.params.get("train.steps", 0)),
            workspace=Path(run.data.tags[WORKSPACE]) if WORKSPACE in run.data.tags else None,
            success=run.data.metrics.get("eval/sampled/success"),
        )
        for run in runs
        if "mlflow.parentRunId" not in run.data.tags
    ]


def mark_gone(client: "MlflowClient", *, experiment_id: str) -> None:
    """Mark as killed every run that is recorded as running and whose process is gone."""
    running = f"attributes.status = 'RUNNING' and tags.`{PID}` != ''"
    for run in all_pages(client.search_runs, [experiment_id], filter_string=running):
        if is_gone(run.data.tags, now=time.time()):
            client.set_tag(run.info.run_id, KILLED, "true")
            end(client, run.info.run_id, status="KILLED")


def state_of(run: "Run") -> str:
    """Running, finished, failed, stopped (by Ctrl-C or SIGTERM), or killed: its process could not record its
    end."""
    status: str = run.info.status.lower()
    is_stopped = status == "killed" and run.data.tags.get(KILLED) != "true"
    return "stopped" if is_stopped else status


def end(client: "MlflowClient", run_id: str, *, status: str) -> None:
    """Set the final status of a run and of its rounds, where they are still open."""
    run = client.get_run(run_id)
    children = f"tags.`mlflow.parentRunId` = '{run_id}'"
    rounds = all_pages(client.search_runs, [run.info.experiment_id], filter_string=children)
    for target in (*rounds, run):
        if target.info.status == "RUNNING":
            client.set_terminated(target.info.run_id, status=status)


def beat(client: "MlflowClient", run_id: str) -> None:
    """Renew the heartbeat of the run."""
    for key, value in heartbeat().items():
        client.set_tag(run_id, key, value)


def heartbeat() -> dict[str, str]:
    """The heartbeat tags of this process."""
    return {
        TIME: f"{time.time():.0f}",
        HOST: socket.gethostname(),
        PROCESSES: _processes(),
        PID: str(os.getpid()),
        START: _process_facts(os.getpid())[1],
        KILLED: "false",  # a run that was killed may go on
    }


def is_gone(tags: Mapping[str, str], *, now: float) -> bool:
    """Whether the process of the run with `tags` is gone; False for a run without a heartbeat."""
    if not tags.keys() >= {TIME, PROCESSES, PID, START}:
        return False
    if tags[PROCESSES] != _processes():
        return now - float(tags[TIME]) > SILENCE_S
    try:
        state, start = _process_facts(int(tags[PID]))
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state == "Z" or start != tags[START]  # a zombie, or another process with this id


def _process_facts(pid: int) -> tuple[str, str]:
    """State and start of a process, by `proc_pid_stat(5)`. Raises `OSError` if it is gone."""
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].decode().split()
    return fields[0], fields[19]


@cache
def _processes() -> str:
    """Identify the process table of this process: each boot and each container of a host has its own."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot = file.read().strip()
    return f"{boot} {os.readlink('/proc/self/ns/pid')}"
