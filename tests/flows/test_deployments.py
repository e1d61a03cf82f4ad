"""Deployed runs that a process worker has started: one is cancelled in training, and the command that its log
names goes on; one loses its worker before it begins."""

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from uuid import UUID

import pytest
from prefect.blocks.system import Secret
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId
from prefect.states import Cancelling
from pydantic import SecretStr

from envs.errors import ConfigError
from flows.commands.deploy import deploy
from flows.endings.guardian import MARK
from tasks.config.pipelines import load_pipeline
from tests.support.prefect_server import prefect_client, prefect_server, process_worker
from tests.support.processes import processes_with
from tests.support.project import NAME, RUN_TIMEOUT_S, Project
from tests.support.waiting import wait_until
from tests.support.yaml_files import edit_yaml

pytestmark = pytest.mark.slow
POOL = "local"
STEPS = 200
"""A tenth of a second each: none of the two runs gets so far."""
CANARY = "canary-0123456789-secret"
"""The value of a Secret block of Prefect."""
SECRET_VARIABLE, SECRET_BLOCK = "JUDGE_API_KEY", "judge-api-key"
END_S = 10.0
"""Within which nothing is left of a cancelled run."""


class Served:
    """A project whose deployments a worker runs."""

    def __init__(self, project: Project, client: SyncPrefectClient, environment: dict[str, str]) -> None:
        self.project, self.client, self.environment = project, client, environment
        self._idle = set(project.processes())

    def run(self, *arguments: str) -> str:
        """What a command prints."""
        return subprocess.run(
            arguments,
            cwd=self.project.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    def run_processes(self) -> dict[int, str]:
        """Those that the worker and what it runs have started."""
        return {pid: line for pid, line in self.project.processes().items() if pid not in self._idle}

    def state(self, flow_run_id: UUID) -> str:
        state = self.client.read_flow_run(flow_run_id).state
        return "" if state is None else state.type.value

    def state_names(self, flow_run_id: UUID) -> list[str]:
        """All that it has had."""
        return [state.name or "" for state in self.client.read_flow_run_states(flow_run_id)]

    def logs(self, flow_run_id: UUID) -> list[str]:
        found = self.client.read_logs(LogFilter(flow_run_id=LogFilterFlowRunId(any_=[flow_run_id])))
        return [log.message for log in found]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    project = Project.make(tmp_path_factory.mktemp("project"))
    with edit_yaml(project.folder / "pipelines.yaml") as document:
        document["pipelines"][NAME]["train"] |= {"steps": STEPS, "steps_per_round": STEPS}
    with ExitStack() as stack:
        url = stack.enter_context(prefect_server(project.folder, environment=project.environment))
        client = stack.enter_context(prefect_client(url))
        environment = {**project.environment, "PREFECT_API_URL": url}
        stack.enter_context(process_worker(project.folder, pool=POOL, environment=environment, client=client))
        served = Served(project, client, environment)
        secret = ("--secret", f"{SECRET_VARIABLE}={SECRET_BLOCK}")
        with pytest.raises(ConfigError, match=f"there is no Secret block '{SECRET_BLOCK}'"):
            list(deploy({}, are_all=False, pool=POOL, secrets={SECRET_VARIABLE: SECRET_BLOCK}))
        Secret(value=SecretStr(CANARY)).save(SECRET_BLOCK)
        assert f"train-agent/{NAME}" in served.run("wingspan", "deploy", NAME, "--pool", POOL, *secret)
        yield served


def test_a_run_that_is_cancelled_in_training_leaves_nothing_and_goes_on(served: Served) -> None:
    deployment = served.client.read_deployment_by_name(f"train-agent/{NAME}")
    run = served.client.create_flow_run_from_deployment(deployment.id)
    command = cancel_in_training(served, run.id)
    assert served.project.finished_steps()[-1] < STEPS
    assert files_with_canary(served.project.folder) == []
    (second_run_id,) = re.findall(r"UUID: (\S+)", served.run(sys.executable, "-m", *command))
    cancel_at_start(served, UUID(second_run_id))


def files_with_canary(folder: Path) -> list[Path]:
    """Prefect's database, which holds the block encrypted, is among those that are read."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    assert any(path.name == "prefect.db" for path in files)
    return [path for path in files if CANARY.encode() in path.read_bytes()]


def has_secret(pid: int) -> bool:
    with suppress(OSError):  # it may have ended
        return f"{SECRET_VARIABLE}={CANARY}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(
            b"\0"
        )
    return False


def folders_of(pid: int) -> list[Path]:
    """The temporary folder of the run that a process belongs to, if it has one; Ray's session is in it."""
    with suppress(OSError):  # it may have ended
        variables = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
        marks = [value.partition("=")[2] for value in variables if value.startswith(f"{MARK}=")]
        return [Path(mark) for mark in marks if mark != os.environ[MARK]]
    return []


def cancel_in_training(served: Served, flow_run_id: UUID) -> list[str]:
    """Returns the command that goes on, as the run's log has it."""
    project = served.project

    def has_trained() -> bool:
        assert served.state(flow_run_id) in ("SCHEDULED", "PENDING", "RUNNING"), served.logs(flow_run_id)
        return bool(project.finished_steps())

    wait_until(has_trained, timeout_s=RUN_TIMEOUT_S, poll_s=1.0)  # each question takes CPU time of the server
    assert any("gcs_server" in line for line in served.run_processes().values())
    assert any(has_secret(pid) for pid, line in served.run_processes().items() if "prefect" in line)
    folders = {folder for pid in served.run_processes() for folder in folders_of(pid)}
    assert any((folder / "ray").is_dir() for folder in folders)
    cancel(served, flow_run_id)
    assert not any(folder.exists() for folder in folders)
    parent, _ = project.mlflow_runs()
    assert parent.info.status == "KILLED"
    (line,) = [line for line in served.logs(flow_run_id) if line.startswith("stopped; ")]
    return shlex.split(line[line.index("prefect deployment run") :])


def cancel_at_start(served: Served, flow_run_id: UUID) -> None:
    """Cancel a run as its own process begins it."""
    wait_until(lambda: served.state(flow_run_id) == "RUNNING", timeout_s=RUN_TIMEOUT_S, poll_s=0.5)
    cancel(served, flow_run_id)


def cancel(served: Served, flow_run_id: UUID) -> None:
    """Cancel a run as Prefect's page does; nothing of it is left within `END_S`."""
    start = time.monotonic()
    served.client.set_flow_run_state(flow_run_id, Cancelling())
    wait_until(lambda: not served.run_processes(), timeout_s=END_S, poll_s=0.3)
    print(f"ended within {time.monotonic() - start:.1f} s")
    wait_until(lambda: served.state(flow_run_id) == "CANCELLED")
    # Not for a moment crashed, which hooks and automations would notice.
    assert "Crashed" not in served.state_names(flow_run_id)


def test_a_run_whose_worker_is_killed_before_it_begins_goes_on(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(served.project.folder)
    served.client.create_work_pool(WorkPoolCreate(name="killed", type="process"))
    list(deploy({NAME: load_pipeline(NAME)}, are_all=True, pool="killed", secrets={}))
    deployment = served.client.read_deployment_by_name("prepare-data/any-pipeline")
    parameters = {"pipeline": NAME, "workspace": str(tmp_path / "run")}
    run = served.client.create_flow_run_from_deployment(deployment.id, parameters=parameters)
    # A worker that is killed leaves the folders that it has made.
    environment = {**served.environment, "TMPDIR": str(tmp_path)}
    with process_worker(tmp_path, pool="killed", environment=environment, client=served.client) as worker:
        wait_until(
            lambda: bool(processes_with(f"PREFECT__FLOW_RUN_ID={run.id}")),
            timeout_s=RUN_TIMEOUT_S,
            poll_s=0.1,
        )
        worker.kill()
        worker.wait()
    wait_until(lambda: served.state(run.id) == "COMPLETED", timeout_s=RUN_TIMEOUT_S, poll_s=1.0)
