"""Prefect's own server and a process worker, for a project (`tests/support/project.py`), on loopback."""

import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

from flows.orchestrator.runs import SERVE
from tests.support.waiting import wait_until

START_TIMEOUT_S = 300.0


@contextmanager
def program(
    *arguments: str, log: Path, environment: Mapping[str, str], cwd: Path, descriptors: Sequence[int] = ()
) -> Iterator[subprocess.Popen[bytes]]:
    """A program that runs until SIGTERM, or SIGKILL 10 s later; what it prints goes to `log`.

    `descriptors`: of open files, which it inherits.
    """
    with log.open("ab") as output:
        process = subprocess.Popen(
            arguments,
            cwd=cwd,
            env=environment,
            stdout=output,
            stderr=output,
            start_new_session=True,
            pass_fds=descriptors,
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def prefect_server(folder: Path, *, environment: Mapping[str, str]) -> Iterator[str]:
    """Its API's address; `environment` has `PREFECT_HOME` and, if it asks for one, the auth string."""
    with ExitStack() as stack:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}/api"
            server = program(
                *(sys.executable, "-c", SERVE, str(listener.fileno())),
                log=folder / "prefect-server.log",
                environment={**environment, "PREFECT_SERVER_UI_ENABLED": "0", "DO_NOT_TRACK": "1"},
                cwd=folder,
                descriptors=[listener.fileno()],
            )
            stack.enter_context(server)

        def answers() -> bool:
            try:
                return httpx.get(f"{url}/health", timeout=5).status_code in (200, 401)
            except httpx.HTTPError:
                return False

        wait_until(answers, timeout_s=START_TIMEOUT_S, poll_s=0.2)
        yield url


@contextmanager
def process_worker(
    folder: Path, *, pool: str, environment: Mapping[str, str], client: SyncPrefectClient
) -> Iterator[subprocess.Popen[bytes]]:
    """A worker of the work pool `pool`, which it makes; it looks for runs every three seconds."""
    with program(
        *(sys.executable, "-m", "prefect", "worker", "start", "--pool", pool, "--type", "process"),
        log=folder / "prefect-worker.log",
        environment={**environment, "PREFECT_WORKER_QUERY_SECONDS": "3"},
        cwd=folder,
    ) as worker:
        wait_until(lambda: bool(client.read_work_pools()), timeout_s=START_TIMEOUT_S, poll_s=0.2)
        yield worker


@contextmanager
def prefect_client(url: str, *, auth: str | None = None) -> Iterator[SyncPrefectClient]:
    """A client of the server at `url`, which is this process's server meanwhile."""
    settings = {PREFECT_API_URL: url}
    if auth is not None:
        settings[PREFECT_API_AUTH_STRING] = auth
    with ExitStack() as stack:
        stack.enter_context(temporary_settings(settings))
        yield stack.enter_context(get_client(sync_client=True))
