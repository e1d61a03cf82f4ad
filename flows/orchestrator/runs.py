"""Prefect's side of a run: settings and a server for the command line, stored receipts, and unfinished runs.

The configured server is used (`PREFECT_API_URL`, or a profile). Without one, a temporary server is started on
loopback, which keeps its records in `PREFECT_HOME`. It runs in its own process session, so that Ctrl-C in a
terminal does not reach it before the run's state is set, and it ends with the command
(`flows/endings/guardian.py`).
"""

import logging
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

import httpx
import psutil

from envs.errors import ConfigError, WingspanError, describe, to_line
from envs.files import check_writable, is_locked, read_json, write_json
from envs.network.client import Backoff
from flows.lineage.stages import Receipt
from tasks.runs.folders import FLOW_RUN, LOCK

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun, State
    from prefect.results import ResultStore

T = TypeVar("T")

FOLDER = "wingspan.folder"
"""The label of a flow run with the folder in which it works, an absolute path."""

RESTART = Backoff(max_attempts=8, first_s=1.0, max_s=15.0)
"""A run's attempts to reach a server that restarts, in about a minute. It takes 10 to 40 s to start."""
BEGIN_S = 300.0
"""The time in which a deployed run begins after its worker has taken it. Prefect's server keeps its place in
the deployment's concurrency limit for as long."""
START_TIMEOUT_S = 300.0
"""The time for the temporary server, which takes 10 to 40 s to start, and minutes on a busy machine."""
CANCEL_TIMEOUT_S = 3.0
"""The time for each request that marks a run as cancelled: the server may be gone or hang."""

_DEFAULTS = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_LOGGING_LEVEL": "CRITICAL",  # the display and one-line errors replace its log
    "PREFECT_LOGGING_INTERNAL_LEVEL": "CRITICAL",  # it would print undelivered events in full
    "PREFECT_CLI_PROMPT": "false",
}
_TEMPORARY = {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1", "PREFECT__SERVER_FINAL": "1"}
"""The settings of Prefect's own temporary server."""
_TEMPORARY_URL = "WINGSPAN_TEMPORARY_PREFECT"
"""The environment variable that has the temporary server's URL, also in runs of a sweep."""
SERVE = """
import gc, socket, sys, uvicorn
gc.set_threshold(100_000, 50, 100)  # a quarter of its start-up is garbage collection that finds nothing
from prefect.server.api.server import create_app
config = uvicorn.Config(create_app, factory=True, log_level="error", lifespan="on")
uvicorn.Server(config).run(sockets=[socket.socket(fileno=int(sys.argv[1]))])
"""
"""The program of a server on the socket whose descriptor is its argument."""


def server_url() -> str | None:
    """The URL of the configured server, lasting or temporary; None if there is none.

    Applies our defaults to unset settings, and makes the folder `PREFECT_HOME`: call before Prefect's import.
    Raises `ConfigError` if that cannot be made.
    """
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    _make_home()
    from prefect.settings import get_current_settings

    return os.environ.get("PREFECT_API_URL") or get_current_settings().api.url


def _make_home() -> None:
    """Prefect makes its home without its parents, and then fails at the database in it."""
    home = os.environ.get("PREFECT_HOME")
    if not home:
        return
    remedy = "name another folder, or unset the variable for ~/.prefect"
    try:
        folder = Path(home).expanduser()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:  # of expanduser, for a user who does not exist
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"PREFECT_HOME={home} cannot be made ({reason}); {remedy}") from None
    check_writable(folder, remedy=f"as PREFECT_HOME, {remedy}")


def has_lasting_server() -> bool:
    """Whether flow runs are on a configured server, which other runs may use as well."""
    url = server_url()
    return url is not None and url != os.environ.get(_TEMPORARY_URL)


class TemporaryServer:
    """Prefect's own server in a process that ends with this command; it takes seconds to start."""

    def __init__(self) -> None:
        """Begin its start, without waiting for it."""
        self._log = Path(tempfile.gettempdir()) / "prefect-server.log"
        with socket.create_server(("127.0.0.1", 0)) as listener, self._log.open("wb") as sink:
            self._url = f"http://127.0.0.1:{listener.getsockname()[1]}/api"
            self._process = subprocess.Popen(
                [sys.executable, "-c", SERVE, str(listener.fileno())],
                pass_fds=[listener.fileno()],
                env={**os.environ, **_TEMPORARY},
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                start_new_session=True,
            )

    def use(self) -> None:
        """Wait until it answers, and make it this process's server; call before Prefect's import.

        Raises `WingspanError` if it does not start.
        """
        from prefect.context import refresh_global_settings_context

        self._wait()
        # A server on loopback that refuses a connection is dead: do not retry for long.
        os.environ.setdefault("PREFECT_CLIENT_MAX_RETRIES", "2")
        os.environ["PREFECT_API_URL"] = os.environ[_TEMPORARY_URL] = self._url
        refresh_global_settings_context()

    def _wait(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while self._process.poll() is None and time.monotonic() < deadline:
            try:
                httpx.get(f"{self._url}/health", timeout=5, trust_env=False).raise_for_status()
            except httpx.HTTPError:
                time.sleep(0.1)
            else:
                return
        raise WingspanError(f"Prefect's temporary server did not start: {self._explain()}")

    def _explain(self) -> str:
        """Why it did not start, by what it printed."""
        from prefect.settings import Settings

        text = self._log.read_text(errors="replace")
        if "Can't locate revision" in text:
            return (
                f"its database in {Settings().home} is of another version of Prefect; set "
                "PREFECT_HOME to another folder, or install that version"
            )
        return to_line(text.strip().rpartition("\n")[2] or "it printed nothing", limit=300)


def check_server() -> None:
    """Raise `ConfigError` if a Prefect server is configured that does not answer.

    Within a flow run, a lasting server has answered before, and may be restarting: the call waits for it
    (`RESTART`).
    """
    url = server_url()
    if url is None:
        return
    from prefect.context import FlowRunContext

    max_attempts = RESTART.max_attempts if FlowRunContext.get() and has_lasting_server() else 1
    failures = 0
    while True:
        begin = time.monotonic()
        try:
            # Any answer counts: Prefect's client checks the authorization.
            httpx.get(f"{url.rstrip('/')}/health", timeout=5)
            break
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            failures += 1
            is_invalid = isinstance(error, httpx.InvalidURL | httpx.UnsupportedProtocol)
            if failures == max_attempts or is_invalid:
                raise ConfigError(
                    f"PREFECT_API_URL={url} does not answer ({error}); start that server, or unset the "
                    "variable (in a profile: prefect config unset PREFECT_API_URL) to use a temporary one"
                ) from None
            if failures == 1:
                log_in_run(f"{url} does not answer ({error}); waiting about a minute for it", logging.WARNING)
        # Counted from the attempt's beginning, so that attempts that time out add little to the minute.
        time.sleep(max(0.0, begin + RESTART.wait_s(failures) - time.monotonic()))
    if failures:
        log_in_run(f"{url} answers again")  # the line before may not have reached Prefect's page


def log_in_run(text: str, level: int = logging.INFO) -> None:
    """Log in the log of this flow run, or on the console if that is switched off, as in `wingspan run`."""
    from prefect.logging import get_run_logger

    logger = get_run_logger()
    if logger.isEnabledFor(level):
        logger.log(level, text)
    else:
        print(text, file=sys.stderr)


def pull_step() -> dict[str, Any]:
    """The step by which the runs of a deployment work in the working directory of this process.

    Without it a worker copies the folder, and deletes the copy with what the run has written.
    """
    from prefect.runner.storage import LocalStorage

    return LocalStorage(str(Path.cwd())).to_pull_step()


def orchestrate(
    work: Callable[..., T], *, name: str, run_name: str, parameters: Mapping[str, object]
) -> tuple[T, Exception | None]:
    """Call `work` with `parameters`, which Prefect's page shows, in a run of the flow `name`.

    Prefect orchestrates the work but does not own it: if its server dies, the work finishes, and the
    exception that left Prefect's record incomplete is returned besides the result. Raises what `work` raises,
    and `WingspanError` if Prefect fails before `work` is called.
    """
    from prefect import flow

    results: list[T] = []
    failures: list[Exception] = []

    @wraps(work)
    def call(**parameters: object) -> None:
        try:
            results.append(work(**parameters))
        except Exception as error:
            failures.append(error)
            raise

    prefect_failure: Exception | None = None
    try:
        flow(name=name, flow_run_name=lambda: run_name)(call)(**parameters)
    except Exception as error:
        prefect_failure = error
    if failures:
        raise failures[0]
    if prefect_failure is not None and not results:
        raise WingspanError(
            f"Prefect could not begin the run: {describe(prefect_failure)[:300]}"
        ) from prefect_failure
    return results[0], prefect_failure


def open_local_results() -> "ResultStore":
    """The results in Prefect's local folder, where they are by default; no server is asked for it."""
    from prefect.filesystems import LocalFileSystem
    from prefect.results import ResultStore
    from prefect.settings import get_current_settings

    folder = LocalFileSystem(basepath=str(get_current_settings().results.local_storage_path))
    return ResultStore(result_storage=folder)


def read_receipt(store: "ResultStore", key: str) -> Receipt | None:
    """The receipt that Prefect stored under `key`; None if there is none or it cannot be read."""
    try:
        receipt = store.read(key).result
    except Exception:  # each storage raises its own; the stage runs again
        return None
    return receipt if isinstance(receipt, Receipt) else None


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
    record = read_json(file)
    with get_client(sync_client=True) as client:
        if record and record["flow_run_id"] != str(flow_run_id):
            state: State[object] = Crashed(
                message="The process was killed; another run has taken over its folder."
            )
            _end_run(client, UUID(record["flow_run_id"]), state, unless_final=True)
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
