"""The ends of flow runs that cannot set their own state: they were killed or stopped, or never began.

A run notes the folder in which it works, in a file there and as a label in Prefect. The folder's lock, which
the operating system releases, says whether the process still works there.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict
from uuid import UUID

import psutil

from envs.errors import ConfigError
from envs.files import is_locked, read_as, read_json, write_json
from flows.orchestrator.runs import check_server, has_lasting_server, pull_step
from tasks.runs.folders import FLOW_RUN, LOCK

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun, State

FOLDER = "wingspan.folder"
"""The label of a flow run with the folder in which it works, an absolute path."""

BEGIN_S = 300.0
"""The time in which a deployed run begins after its worker has taken it. Prefect's server keeps its place in
the deployment's concurrency limit for as long."""
CANCEL_TIMEOUT_S = 3.0
"""The time for each request that marks a run as cancelled: the server may be gone or hang."""


class _LastFlowRun(TypedDict):
    flow_run_id: UUID


def take_over(folder: Path, *, flow_run_id: UUID | None) -> None:
    """Note that `flow_run_id` works in `folder` from now on: a workspace, or that of a sweep or evaluation.

    Another run that was killed there could not set its state: it is marked as crashed. The caller holds the
    lock of the folder, so that run is certainly dead. A retry of Prefect's has the same id. Runs that were
    killed in other folders are marked as well.
    """
    if has_lasting_server():
        check_server()  # it may be restarting, and a new client of Prefect's does not wait for it
    from prefect.client.orchestration import get_client
    from prefect.states import Crashed

    file = folder / FLOW_RUN
    record = read_as(_LastFlowRun, file, remedy="delete it")
    with get_client(sync_client=True) as client:
        if record is not None and record["flow_run_id"] != flow_run_id:
            state: State[object] = Crashed(
                message="The process was killed; another run has taken over its folder."
            )
            _end_run(client, record["flow_run_id"], state, unless_final=True)
        if flow_run_id is not None:
            write_json(file, {"flow_run_id": str(flow_run_id)}, indent=None)
            client.update_flow_run_labels(flow_run_id, {FOLDER: str(folder.resolve())})
    mark_killed_runs()


def mark_killed_runs() -> None:
    """Mark as crashed the flow runs of the server, in folders of this machine, whose process was killed, and
    those of this folder's deployments whose worker was killed before it had started a process.

    For Prefect, a run that was killed together with its worker, as when the machine was switched off, is
    running or pending until somebody says otherwise.
    """
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import (
        FlowRunFilter,
        FlowRunFilterState,
        FlowRunFilterStateType,
        WorkPoolFilter,
        WorkPoolFilterType,
    )
    from prefect.client.schemas.objects import StateType
    from prefect.states import Crashed

    def has(state: StateType) -> FlowRunFilter:
        return FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[state])))

    # In pools of other types, a run may wait for a machine or an image.
    of_processes = WorkPoolFilter(type=WorkPoolFilterType(any_=["process"]))
    with get_client(sync_client=True) as client:
        for run in client.read_flow_runs(flow_run_filter=has(StateType.RUNNING)):
            if _is_killed(run.id, run.labels):
                _end_run(client, run.id, Crashed(message="The process was killed."), unless_final=True)
        for run in client.read_flow_runs(
            flow_run_filter=has(StateType.PENDING), work_pool_filter=of_processes
        ):
            if _is_lost(client, run):
                # If its process begins after all, Prefect lets it run.
                message = f"It did not begin within {BEGIN_S:.0f} s: its worker was killed."
                _end_run(client, run.id, Crashed(message=message), unless_final=True)


def _is_lost(client: "SyncPrefectClient", run: "FlowRun") -> bool:
    """Whether a worker took the pending flow run more than `BEGIN_S` ago, to work in a folder of the
    same path as this one."""
    from prefect.exceptions import ObjectNotFound

    if run.deployment_id is None or run.state is None:
        return False
    if (datetime.now(UTC) - run.state.timestamp).total_seconds() <= BEGIN_S:
        return False
    try:
        deployment = client.read_deployment(run.deployment_id)
    except ObjectNotFound:  # it was deleted
        return False
    return deployment.pull_steps == [pull_step()]


def _is_killed(flow_run_id: UUID, labels: Mapping[str, object]) -> bool:
    """Whether the flow run with `labels` was the last to work in its folder, and is gone. False for a run
    without such a folder here."""
    if FOLDER not in labels:
        return False
    folder = Path(str(labels[FOLDER]))
    lock = folder / LOCK
    try:
        if read_json(folder / FLOW_RUN).get("flow_run_id") != str(flow_run_id) or is_locked(lock):
            return False
        pid = lock.read_text().strip()
    except (OSError, ConfigError):  # not a folder that this user can read
        return False
    # The process may have left the folder just now, and be about to set the run's state.
    return not (pid.isdecimal() and psutil.pid_exists(int(pid)))


def cancel(flow_run_id: UUID) -> None:
    """Mark the flow run as cancelled, whatever Prefect's engine made of the signal; does not retry."""
    from prefect.client.orchestration import get_client
    from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings
    from prefect.states import Cancelled

    with (
        temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}),
        get_client(sync_client=True, httpx_settings={"timeout": CANCEL_TIMEOUT_S}) as client,
    ):
        _end_run(client, flow_run_id, Cancelled(message="It was stopped."), unless_final=False)


def _end_run(
    client: "SyncPrefectClient", flow_run_id: UUID, state: "State[Any]", *, unless_final: bool
) -> None:
    """Set the state of the flow run and of its unfinished task runs."""
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
    from prefect.exceptions import ObjectNotFound

    try:
        run = client.read_flow_run(flow_run_id)
    except ObjectNotFound:
        return  # the run is on another server
    if unless_final and (run.state is None or run.state.is_final()):
        return
    client.set_flow_run_state(flow_run_id, state, force=True)
    for task_run in client.read_task_runs(
        flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[flow_run_id]))
    ):
        if task_run.state is not None and not task_run.state.is_final():
            client.set_task_run_state(task_run.id, state, force=True)
