"""Prefect's side of a run: settings and a server for the command line, its log, and stored receipts.

The configured server is used (`PREFECT_API_URL`, or a profile). Without one, a temporary server is started on
loopback, which keeps its records in `PREFECT_HOME`. It runs in its own process session, so that Ctrl-C in a
terminal does not reach it before the run's state is set, and it ends with the command
(`flows/endings/guardian.py`).
"""

import logging
import os
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import httpx

from envs.errors import ConfigError, WingspanError, describe, to_line
from envs.files import check_writable
from envs.network.client import Backoff, TryAgain
from envs.redaction import redact_values
from flows.lineage.stages import Receipt

if TYPE_CHECKING:
    from prefect.results import ResultStore

T = TypeVar("T")

RESTART = Backoff(max_attempts=8, first_s=1.0, max_s=15.0, total_s=60.0)
"""A run's attempts to reach a server that restarts, which takes 10 to 40 s."""
START_TIMEOUT_S = 300.0
"""The time for the temporary server, which takes 10 to 40 s to start, and minutes on a busy machine."""

_DEFAULTS = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_LOGGING_LEVEL": "CRITICAL",  # the display and one-line errors replace its log
    "PREFECT_LOGGING_INTERNAL_LEVEL": "CRITICAL",  # it would print undelivered events in full
    "PREFECT_CLI_PROMPT": "false",
}
_TEMPORARY = {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1", "PREFECT__SERVER_FINAL": "1"}
"""The settings of Prefect's own temporary server."""
USE_TEMPORARY = (
    "unset the variable (in a profile: prefect config unset PREFECT_API_URL) to use a temporary one"
)
_CLOUD = "api.prefect.cloud"
"""The host of Prefect Cloud, which does not document the route by which a server is recognized."""
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
        # One client: each would load the certificates, which takes 20 ms.
        with httpx.Client(timeout=5, trust_env=False) as client:
            while self._process.poll() is None and time.monotonic() < deadline:
                try:
                    client.get(f"{self._url}/health").raise_for_status()
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


def check_server(*, alternative: str = USE_TEMPORARY) -> None:
    """Raise `ConfigError` if the configured Prefect server does not answer, or its address is not that of
    Prefect's API.

    `alternative`: what the user can do instead of starting it, for the text of the error.

    Within a flow run, a lasting server has answered before, and may be restarting: the call waits for it
    (`RESTART`).
    """
    url = server_url()
    if url is None:
        return
    from prefect.context import FlowRunContext
    from prefect.settings import get_current_settings

    settings = get_current_settings()
    headers = settings.client.custom_headers  # by which a proxy may let Prefect's client in
    verify: ssl.SSLContext | bool = not settings.api.tls_insecure_skip_verify
    if verify and settings.api.ssl_cert_file:
        verify = ssl.create_default_context(cafile=settings.api.ssl_cert_file)
    is_waited_for = FlowRunContext.get() is not None and has_lasting_server()
    has_failed = False

    def ask() -> httpx.Response:
        nonlocal has_failed
        try:
            answer = httpx.get(f"{url.rstrip('/')}/health", timeout=5, headers=headers, verify=verify)
            if answer.is_server_error:  # of a proxy in front of a server that restarts
                answer.raise_for_status()
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            reason = f"does not answer ({_describe_failure(error)})"
            text = f"PREFECT_API_URL={url} {reason}; start that server, or {alternative}"
            is_invalid = isinstance(error, httpx.InvalidURL | httpx.UnsupportedProtocol)
            if is_invalid or not is_waited_for:
                raise ConfigError(text) from None
            if not has_failed:
                log_in_run(f"{url} {reason}; waiting about a minute for it", logging.WARNING)
            has_failed = True
            raise TryAgain(text) from None
        return answer

    try:
        answer = RESTART.retry_sync(ask)
    except TryAgain as error:
        raise ConfigError(str(error)) from None
    _check_is_prefect(url, answer)
    if has_failed:
        log_in_run(f"{url} answers again")  # the line before may not have reached Prefect's page


def _describe_failure(error: Exception) -> str:
    """The error on one line; of a status, number and reason without httpx's link to its explanation."""
    if isinstance(error, httpx.HTTPStatusError):
        return f"{error.response.status_code} {error.response.reason_phrase}"
    return to_line(error)


def _check_is_prefect(url: str, answer: httpx.Response) -> None:
    """Raise `ConfigError` if `answer`, of the route `health`, shows that `url` is not that of Prefect's API.

    Other statuses, such as a refused authorization or a proxy's redirect to its login, are left to Prefect's
    client to report.
    """
    is_other = answer.status_code == 404 or (answer.status_code == 200 and answer.text.strip() != "true")
    if not is_other or urlsplit(url).hostname == _CLOUD:
        return
    has_path = "api" in urlsplit(url).path.split("/")
    remedy = "give that of the API, which ends in /api" if has_path else f"add /api: {url.rstrip('/')}/api"
    raise ConfigError(
        f"PREFECT_API_URL={url} is not the address of Prefect's API (its /health answers with status "
        f"{answer.status_code}, and not with `true`); {remedy}"
    )


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
    """Call `work` with `parameters`, which Prefect's page shows, in a run of the flow `name`; they are JSON
    values, from which secrets are removed.

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
        flow(name=name, flow_run_name=lambda: run_name)(call)(**redact_values(dict(parameters)))
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
