"""Prefect's side of a run: settings that a command-line run needs, and runs that were killed."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError, URLError
from urllib.request import urlopen
from uuid import UUID

from envs.errors import ConfigError
from envs.files import write_atomically

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import State

RECORD = "prefect.json"
"""In the workspace: which Prefect flow run worked in it last."""

_DEFAULTS = {
    # The temporary server starts in 10 to 40 s, and in minutes on a machine that is busy with more.
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "300",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",  # else Prefect's first start on a terminal prints its notice on telemetry
    "PREFECT_LOGGING_LEVEL": "CRITICAL",  # the display and the one-line errors are ours
    "PREFECT_CLI_PROMPT": "false",
}


def configure_prefect() -> None:
    """Set what a command-line run needs and the user has not set. Call before Prefect's import."""
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)


def check_server() -> None:
    """Raise `ConfigError` if a Prefect server is configured that does not answer."""
    url = os.environ.get("PREFECT_API_URL")
    if not url:
        return
    try:
        urlopen(f"{url.rstrip('/')}/health", timeout=5).close()
    except HTTPError:
        return  # it answers; whether it lets us in, Prefect's own client finds out
    except (URLError, OSError, ValueError) as error:
        raise ConfigError(
            f"PREFECT_API_URL={url} does not answer ({getattr(error, 'reason', error)}); start that server, "
            "or unset the variable to use a temporary one"
        ) from None


def take_over(workspace: Path, *, flow_run_id: UUID | None) -> None:
    """Note that `flow_run_id` works in `workspace` from now on.

    The run that did before and was killed cannot have said so: it is marked as crashed. The caller
    holds the workspace's lock, so that run is certainly dead.
    """
    from prefect.client.orchestration import get_client

    file = workspace / RECORD
    if file.exists():
        with get_client(sync_client=True) as client:
            _mark_crashed(client, UUID(json.loads(file.read_text())["flow_run_id"]))
    if flow_run_id is not None:
        write_atomically(file, json.dumps({"flow_run_id": str(flow_run_id)}) + "\n")


def _mark_crashed(client: "SyncPrefectClient", flow_run_id: UUID) -> None:
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
    from prefect.exceptions import ObjectNotFound
    from prefect.states import Crashed

    try:
        run = client.read_flow_run(flow_run_id)
    except ObjectNotFound:
        return  # it ran on another server
    if run.state is None or run.state.is_final():
        return
    killed: State[Any] = Crashed(message="The process was killed; another run has taken over its workspace.")
    client.set_flow_run_state(flow_run_id, killed, force=True)
    for task_run in client.read_task_runs(
        flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[flow_run_id]))
    ):
        if task_run.state is not None and not task_run.state.is_final():
            client.set_task_run_state(task_run.id, killed, force=True)
