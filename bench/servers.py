"""The servers of a run, for a bench that kills and restarts them: Prefect, MLflow, Redis, an environment.

Prefect's worker is one of them: it takes the runs of a deployment, which `bench/deployed.py` starts.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from envs.retrieval.redis_server import find_program
from tasks.config.pipelines import load_pipeline
from tests.support.sockets import free_port

START_TIMEOUT_S = 120.0
POLL_S = 0.1
WINGSPAN = Path(sys.executable).with_name("wingspan")


class Server(ABC):
    """A server on a port of this machine, the same one each time; what it starts is in its process group."""

    name: str

    def __init__(self, folder: Path, *, pipeline: str) -> None:
        """`folder`: what it stores, and its log; `pipeline`: the name of what runs."""
        self.folder = folder
        self.pipeline = pipeline
        self.port = self._choose_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    @abstractmethod
    def command(self) -> Sequence[str]:
        """Starts it."""

    @property
    def own_variables(self) -> Mapping[str, str]:
        """Environment variables of the server itself."""
        return {}

    @property
    def variables(self) -> Mapping[str, str]:
        """Environment variables by which a run finds it."""
        return {}

    @property
    def settings(self) -> Sequence[str]:
        """Settings by which a run finds it, as `--set` takes them."""
        return ()

    @property
    def pid(self) -> int:
        """Of its first process."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it, and wait until it can be connected to. Raises `SystemExit` if it ends instead."""
        log = self.folder / f"{self.name}.log"
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **self.own_variables},
                cwd=self.folder,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._is_listening():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the {self.name} did not start; see {log}")
            time.sleep(POLL_S)

    def kill(self) -> None:
        """`kill -9` of all its processes."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def _choose_port(self) -> int:
        """As before in this folder, because runs that are compared have it in their settings."""
        file = self.folder / f"{self.name}.port"
        if not file.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            file.write_text(str(free_port()))
        return int(file.read_text())

    def _is_listening(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


class MlflowServer(Server):
    """MLflow's tracking server, which keeps the artifacts, too."""

    name = "mlflow-server"

    @property
    def command(self) -> Sequence[str]:
        stores = ("--backend-store-uri", f"sqlite:///{self.folder}/mlflow.db")
        artifacts = ("--artifacts-destination", str(self.folder / "artifacts"))
        address = ("--host", "127.0.0.1", "--port", str(self.port), "--workers", "1")
        return (sys.executable, "-m", "mlflow", "server", *address, *stores, *artifacts)

    @property
    def own_variables(self) -> Mapping[str, str]:
        # MLflow's own jobs would keep their queue in shared memory, where it stays after a kill.
        return {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}

    @property
    def variables(self) -> Mapping[str, str]:
        return {"MLFLOW_TRACKING_URI": f"http://127.0.0.1:{self.port}"}


class RedisServer(Server):
    """The cache of searches."""

    name = "redis"

    @property
    def command(self) -> Sequence[str]:
        program = find_program()
        if program is None:
            raise SystemExit("redis-server is not installed; see docs/search.md")
        return (str(program), "--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self.folder))

    @property
    def variables(self) -> Mapping[str, str]:
        return {"WINGSPAN_REDIS": f"redis://127.0.0.1:{self.port}"}


class EnvironmentServer(Server):
    """`wingspan serve-env` of the environment of the pipeline's first part."""

    name = "environment-server"

    @property
    def env(self) -> str:
        return next(iter(load_pipeline(self.pipeline).data.parts.values())).env

    @property
    def command(self) -> Sequence[str]:
        return (str(WINGSPAN), "serve-env", self.env, "--port", str(self.port))

    @property
    def settings(self) -> Sequence[str]:
        return (f"servers.{self.env}.urls=[http://127.0.0.1:{self.port}]",)


class PrefectServer(Server):
    """Prefect's server, whose database outlives a kill."""

    name = "prefect-server"

    @property
    def command(self) -> Sequence[str]:
        address = ("--host", "127.0.0.1", "--port", str(self.port))
        return (sys.executable, "-m", "prefect", "server", "start", "--no-ui", *address)

    @property
    def own_variables(self) -> Mapping[str, str]:
        return {"PREFECT_HOME": str(self.folder / "prefect"), "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}

    @property
    def variables(self) -> Mapping[str, str]:
        return {"PREFECT_API_URL": f"http://127.0.0.1:{self.port}/api"}


class PrefectWorker(Server):
    """A process worker of Prefect's server, and the deployment of the pipeline, whose runs it starts.

    Each run has its own session, so killing the worker leaves it running.
    """

    name = "prefect-worker"
    pool = "kills"
    _is_deployed = False

    @property
    def command(self) -> Sequence[str]:
        options = ("--pool", self.pool, "--type", "process", "--with-healthcheck")
        return (sys.executable, "-m", "prefect", "worker", "start", *options)

    @property
    def own_variables(self) -> Mapping[str, str]:
        server = PrefectServer(self.folder, pipeline=self.pipeline)
        return {
            **server.variables,
            "PREFECT_HOME": str(self.folder / "prefect-worker"),
            "TMPDIR": str(self.folder),  # where a worker that is killed leaves folders
            "PREFECT_WORKER_QUERY_SECONDS": "3",
            "PREFECT_WORKER_WEBSERVER_PORT": str(self.port),  # answers while the worker lives
        }

    def start(self) -> None:
        """Start it as any server; the first time, also deploy the pipeline to its pool."""
        if not self._is_deployed:
            options = ("--type", "process", "--overwrite")  # of an earlier bench in this folder
            self._call(sys.executable, "-m", "prefect", "work-pool", "create", self.pool, *options)
            self._call(str(WINGSPAN), "deploy", self.pipeline, "--pool", self.pool)
            self._is_deployed = True
        super().start()

    def _call(self, *command: str) -> None:
        environment = {**os.environ, **self.own_variables}
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)


SERVERS: Mapping[str, type[Server]] = {
    server.name: server
    for server in (PrefectServer, PrefectWorker, MlflowServer, RedisServer, EnvironmentServer)
}
"""By name, in the order in which they start."""
