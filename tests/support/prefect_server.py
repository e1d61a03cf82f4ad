"""Prefect's own server and a process worker, for a project (`tests/support/project.py`), on loopback."""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

from tests.support.sockets import free_port
from tests.support.waiting import wait_until

START_TIMEOUT_S = 300.0


@contextmanager
def program(*arguments: str, log: Path, environment: Mapping[str, str], cwd: Path) -> Iterator[None]:
    """A program that runs until SIGTERM, or SIGKILL 10 s later; what it prints goes to `log`."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            arguments, cwd=cwd, env=environment, stdout=output, stderr=output, start_new_session=True
        )
    try:
        yield
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
    port = free_port()
    with program(
        *(sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)),
        log=folder / "prefect-server.log",
        environment={**environment, "PREFECT_SERVER_UI_ENABLED": "0", "DO_NOT_TRACK": "1"},
        cwd=folder,
    ):
        url = f"http://127.0.0.1:{port}/api"

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
) -> Iterator[None]:
    """A worker of the work pool `pool`, which it makes; it looks for runs every three seconds."""
    with program(
        *(sys.executable, "-m", "prefect", "worker", "start", "--pool", pool, "--type", "process"),
        log=folder / "prefect-worker.log",
        environment={**environment, "PREFECT_WORKER_QUERY_SECONDS": "3"},
        cwd=folder,
    ):
        wait_until(lambda: bool(client.read_work_pools()), timeout_s=START_TIMEOUT_S, poll_s=0.2)
        yield


@contextmanager
def prefect_client(url: str, *, auth: str | None = None) -> Iterator[SyncPrefectClient]:
    """A client of the server at `url`, which is this process's server meanwhile."""
    settings = {PREFECT_API_URL: url}
    if auth is not None:
        settings[PREFECT_API_AUTH_STRING] = auth
    with ExitStack() as stack:
        stack.enter_context(temporary_settings(settings))
        yield stack.enter_context(get_client(sync_client=True))
