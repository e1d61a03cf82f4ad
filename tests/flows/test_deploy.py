"""`wingspan deploy` on a Prefect server: its deployments, and what a later call leaves unchanged."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil
import pytest
from prefect import Flow
from prefect.blocks.system import Secret
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import DeploymentScheduleCreate, DeploymentUpdate, WorkPoolCreate
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterId,
    FlowRunFilter,
    FlowRunFilterId,
)
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.schedules import CronSchedule
from prefect.client.schemas.sorting import FlowRunSort
from prefect.exceptions import PrefectHTTPStatusError
from prefect.states import Pending, Running
from pydantic import SecretStr

from envs.errors import ConfigError
from flows.cli.run import deploy as deploy_by_command
from flows.commands.deploy import ENTRYPOINT, deploy
from flows.evaluate_policy import evaluate_policy
from flows.orchestrator.runs import pull_step
from flows.orchestrator.unfinished_runs import mark_killed_runs, take_over
from flows.sweep.flow import sweep
from flows.train_agent import train_agent
from tasks.config.pipelines import load_pipeline, pipeline_names
from tasks.data.items import split
from tests.support.prefect_database import add_database
from tests.support.prefect_server import prefect_client, prefect_server
from tests.support.project import NAME, ROOT
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow
POOL = "here"
OTHER = "babyai-cpu"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SyncPrefectClient]:
    """Of a server of its own, with a work pool."""
    folder = tmp_path_factory.mktemp("prefect")
    add_database(folder)
    environment = os.environ | {"PREFECT_HOME": str(folder)}
    with prefect_server(folder, environment=environment) as url, prefect_client(url) as client:
        client.create_work_pool(WorkPoolCreate(name=POOL, type="process"))
        yield client


@pytest.fixture(autouse=True)
def in_project(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def environment_of(deployment: DeploymentResponse) -> dict[str, str]:
    environment: dict[str, str] = deployment.job_variables["env"]
    return environment


def test_every_pipeline_is_deployed_without_being_listed(client: SyncPrefectClient) -> None:
    names = pipeline_names(ROOT / "pipelines.yaml")
    pipelines = {name: load_pipeline(name) for name in names}
    with pytest.raises(ConfigError, match=r"--pool nowhere.*prefect work-pool create nowhere"):
        list(deploy(pipelines, are_all=True, secrets={}, pool="nowhere"))
    deployments = list(deploy(pipelines, are_all=True, secrets={}, pool=POOL))
    assert deployments == [
        *(f"train-agent/{name}" for name in names),
        "prepare-data/any-pipeline",
        "evaluate-policy/any-policy",
        "sweep/any-pipeline",
    ]
    evaluation = client.read_deployment_by_name(deployments[-2])
    assert evaluation.entrypoint == "flows/evaluate_policy.py:evaluate_policy"
    schema = evaluation.parameter_openapi_schema
    assert schema
    assert {"policy", "envs", "samples"} <= schema["properties"].keys()
    sweep = client.read_deployment_by_name(deployments[-1])
    assert sweep.entrypoint == "flows/sweep/flow.py:sweep"
    assert sweep.parameter_openapi_schema
    assert {"seeds", "vary", "at_once"} <= sweep.parameter_openapi_schema["properties"].keys()
    for name in names:
        deployment = client.read_deployment_by_name(f"train-agent/{name}")
        assert deployment.parameters == {"pipeline": name}
        assert deployment.work_pool_name == POOL
        step = {"prefect.deployments.steps.set_working_directory": {"directory": str(ROOT)}}
        assert deployment.pull_steps == [step]  # no copy of the folder
        assert deployment.entrypoint == ENTRYPOINT
        assert deployment.description


def test_what_was_set_on_the_page_is_kept(client: SyncPrefectClient) -> None:
    for block in ("judge", "search"):
        Secret(value=SecretStr("canary")).save(block)
    deploy_by_command([OTHER], pool=POOL, secret=["JUDGE_KEY=judge"])
    full_name = f"train-agent/{OTHER}"
    deployment = client.read_deployment_by_name(full_name)
    cron = CronSchedule(cron="0 3 * * *")
    client.create_deployment_schedules(deployment.id, [DeploymentScheduleCreate(schedule=cron)])
    environment = environment_of(deployment)
    update = DeploymentUpdate(
        tags=["nightly"],
        paused=True,
        concurrency_limit=1,
        description="changed by hand",
        enforce_parameter_schema=False,
        work_pool_name=POOL,
        work_queue_name="urgent",
        parameters={**deployment.parameters, "promote": False},
        job_variables={"env": {**environment, "HF_HUB_OFFLINE": "1"}, "stream_output": True},
    )
    client.update_deployment(deployment.id, update)
    before = client.read_deployment_by_name(full_name)

    deploy_by_command([OTHER], pool=POOL, secret=[])
    after = client.read_deployment_by_name(full_name)
    assert [schedule.schedule for schedule in after.schedules] == [cron]
    kept = {"schedules", "tags", "paused", "global_concurrency_limit", "enforce_parameter_schema"}
    kept |= {"work_queue_name", "parameters", "job_variables"}
    assert after.model_dump(include=kept) == before.model_dump(include=kept)
    assert (after.tags, after.paused, after.work_queue_name) == (["nightly"], True, "urgent")
    assert after.description == load_pipeline(OTHER).description

    deploy_by_command([OTHER], pool=POOL, secret=["SEARCH_KEY=search"])
    environment = environment_of(client.read_deployment_by_name(full_name))
    assert environment == environment_of(before) | {"SEARCH_KEY": "{{ prefect.blocks.secret.search }}"}


def test_the_server_schedules_runs(client: SyncPrefectClient) -> None:
    (name,) = deploy({NAME: load_pipeline(NAME)}, are_all=False, secrets={}, pool=POOL)
    deployment = client.read_deployment_by_name(name)
    schedule = DeploymentScheduleCreate(schedule=CronSchedule(cron="0 3 * * *"))
    (created,) = client.create_deployment_schedules(deployment.id, [schedule])
    chosen = DeploymentFilter(id=DeploymentFilterId(any_=[deployment.id]))

    def scheduled_hours() -> set[int]:
        runs = client.read_flow_runs(deployment_filter=chosen)
        return {run.expected_start_time.hour for run in runs if run.expected_start_time is not None}

    wait_until(lambda: bool(scheduled_hours()), poll_s=0.5)
    assert scheduled_hours() == {3}
    client.delete_deployment_schedule(deployment.id, created.id)


def test_one_pipeline_is_deployed_alone(client: SyncPrefectClient) -> None:
    list(deploy({}, are_all=True, pool=POOL, secrets={}))
    client.create_work_pool(WorkPoolCreate(name="gpus", type="process"))
    deploy_by_command([NAME], pool="gpus", secret=[])
    assert client.read_deployment_by_name(f"train-agent/{NAME}").work_pool_name == "gpus"
    assert client.read_deployment_by_name("sweep/any-pipeline").work_pool_name == POOL


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (f"train-agent/{NAME}", {"pipeline": "nosuch"}, "'nosuch' is not one of"),
    (f"train-agent/{NAME}", {"pipeline": OTHER}, f"'{OTHER}' is not one of"),
    (f"train-agent/{NAME}", {"overrides": {"train.lrr": 1}}, "'train.lrr' was unexpected"),
    (f"train-agent/{NAME}", {"overrides": {"train.lr": "abc"}}, "'abc' is not of type 'number'"),
    (f"train-agent/{NAME}", {"overrides": {"rollout.group_size": 0}}, "0 is less than the minimum of 1"),
    (f"train-agent/{NAME}", {"overrides": {"train.algorithm": "nosuch"}}, "'nosuch'"),
    (f"train-agent/{NAME}", {"overrides": 1}, "1 is not valid"),
    ("sweep/any-pipeline", {"pipeline": "nosuch"}, "'nosuch' is not one of"),
    ("sweep/any-pipeline", {"pipeline": NAME, "at_once": 0}, "0 is less than the minimum of 1"),
    ("sweep/any-pipeline", {"pipeline": NAME, "overrides": {"train.lrr": 1}}, "'train.lrr' was unexpected"),
    ("sweep/any-pipeline", {"pipeline": NAME, "vary": {"train.lr": 1e-3}}, "not of type 'array'"),
    (
        "sweep/any-pipeline",
        {"pipeline": NAME, "vary": {"train.lr": ["abc"]}},
        "'abc' is not of type 'number'",
    ),
    ("sweep/any-pipeline", {"pipeline": NAME, "vary": {"train.lrr": [1]}}, "'train.lrr' was unexpected"),
    ("prepare-data/any-pipeline", {"pipeline": "nosuch"}, "'nosuch' is not one of"),
    ("prepare-data/any-pipeline", {"pipeline": NAME, "overrides": {"dta": 1}}, "'dta' was unexpected"),
    ("evaluate-policy/any-policy", {"samples": 0}, "0 is less than the minimum of 1"),
    ("evaluate-policy/any-policy", {"pipeline": "nosuch"}, "'nosuch'"),
    ("evaluate-policy/any-policy", {"overrides": {"agent.tool": []}}, "'agent.tool' was unexpected"),
]
ACCEPTED: list[tuple[str, dict[str, Any]]] = [
    (f"train-agent/{NAME}", {}),
    (f"train-agent/{NAME}", {"overrides": None, "workspace": None}),
    (f"train-agent/{NAME}", {"overrides": {"train.lr": 1e-4, "warmup": None, "train.algorithm": "gspo"}}),
    (f"train-agent/{NAME}", {"overrides": {"train.algorithm": {"name": "dapo", "loss": {"clip_high": 0.3}}}}),
    ("sweep/any-pipeline", {"pipeline": NAME, "seeds": [0, 1], "vary": {"train.lr": [3e-4, 1e-4]}}),
    ("prepare-data/any-pipeline", {"pipeline": NAME, "overrides": {"data.split_seed": 1}, "workspace": "w"}),
    ("evaluate-policy/any-policy", {"pipeline": None, "samples": 8}),
    ("evaluate-policy/any-policy", {"pipeline": NAME, "overrides": {"agent.tools": ["calculator"]}}),
]


def test_a_run_with_parameters_that_cannot_be_is_refused(client: SyncPrefectClient) -> None:
    pipelines = {name: load_pipeline(name) for name in (NAME, OTHER)}
    list(deploy(pipelines, are_all=True, pool=POOL, secrets={}))

    def create(name: str, parameters: dict[str, Any]) -> None:
        if name.startswith("evaluate"):
            parameters = {"policy": "models/textcraft-base", "envs": ["textcraft"]} | parameters
        client.create_flow_run_from_deployment(client.read_deployment_by_name(name).id, parameters=parameters)

    for name, parameters in ACCEPTED:
        create(name, parameters)
    before = len(client.read_flow_runs())
    for name, parameters, reason in REFUSED:
        with pytest.raises(PrefectHTTPStatusError) as caught:
            create(name, parameters)
        detail = caught.value.response.json()["detail"]
        assert reason in detail, (name, parameters)
        assert len(detail) < 1200
    assert len(client.read_flow_runs()) == before


def test_a_default_that_the_pipeline_no_longer_has_is_named(client: SyncPrefectClient) -> None:
    deploy_by_command(["textcraft-gpu"], pool=POOL, secret=[])
    deployment = client.read_deployment_by_name("train-agent/textcraft-gpu")
    defaults = {**deployment.parameters, "overrides": {"train.lrr": 1}}
    of_before = DeploymentUpdate(parameters=defaults, parameter_openapi_schema={"properties": {}})
    client.update_deployment(deployment.id, of_before)
    with pytest.raises(
        ConfigError, match=r"train-agent/textcraft-gpu \(.*'train.lrr' was unexpected.*its page"
    ):
        deploy_by_command(["textcraft-gpu"], pool=POOL, secret=[])


def test_data_are_prepared_once_for_all_runs_in_the_workspace(
    client: SyncPrefectClient, tmp_path: Path
) -> None:
    url = str(client.api_url)
    environment = os.environ | {"PREFECT_HOME": str(tmp_path / "prefect"), "PREFECT_API_URL": url}
    workspace, seed = tmp_path / "run", 7
    parameters = {"overrides": {"data.split_seed": seed}, "workspace": str(workspace)}
    code = f"from flows.prepare_data import prepare_data; print(prepare_data({NAME!r}, **{parameters!r}))"

    def run(*arguments: str) -> str:
        done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    for states in (["Completed", "Completed"], ["Cached", "Cached"]):
        result = run("-c", code)
        flow_run = client.read_flow_runs(sort=FlowRunSort.START_TIME_DESC, limit=1)[0]
        assert flow_run.state_name == "Completed"
        this_run = FlowRunFilter(id=FlowRunFilterId(any_=[flow_run.id]))
        task_runs = client.read_task_runs(flow_run_filter=this_run)
        assert sorted(task_run.name.rpartition("-")[0] for task_run in task_runs) == ["prepare", "provision"]
        assert [task_run.state_name for task_run in task_runs] == states
    items = split(load_pipeline(NAME, overrides={"data.split_seed": seed}).data)
    lines = (workspace / "data" / "test.jsonl").read_text().splitlines()
    assert [json.loads(line)["item_id"] for line in lines] == [item.item_id for item in items.test]
    assert f"'train': {len(items.train)}, 'test': {len(items.test)}" in result
    arguments = ("--set", f"data.split_seed={seed}", "--workspace", str(workspace))
    plan = run("-c", "from flows.cli.app import main; main()", "plan", NAME, *arguments)
    assert re.findall(r"^ *(\w+) +skip", plan, flags=re.MULTILINE) == ["prepare", "provision"], plan


WORK = r"""
import os, sys, time
from pathlib import Path
from uuid import UUID
import prefect.client.orchestration
from flows.orchestrator.unfinished_runs import take_over
from flows.lock import lock
for folder, run_id in zip(map(Path, sys.argv[1::2]), sys.argv[2::2]):
    if os.fork() == 0:
        with lock(folder):
            take_over(folder, flow_run_id=UUID(run_id))
            os.write(1, f"{run_id} {os.getpid()}\n".encode())  # at once: the forks share the pipe
            time.sleep(600)
while True:
    os.wait()
"""
"""A process for each run, all forks of one: Prefect's import takes seconds."""


def test_killed_runs_are_crashed_at_the_next_deployment_or_run(
    client: SyncPrefectClient, tmp_path: Path
) -> None:
    environment = os.environ | {"PREFECT_API_URL": str(client.api_url)}
    command, ids = [sys.executable, "-c", WORK], []
    deployed_flows: tuple[Flow[..., Any], ...] = (evaluate_policy, sweep, train_agent)
    for flow in deployed_flows:
        run = client.create_flow_run(flow)
        client.set_flow_run_state(run.id, Running(), force=True)
        command += [str(tmp_path / flow.name), str(run.id)]
        ids.append(run.id)

    def state(flow_run_id: UUID) -> str | None:
        return client.read_flow_run(flow_run_id).state_name

    def kill(run_id: UUID) -> None:
        os.kill(pids[run_id], signal.SIGKILL)
        wait_until(lambda: not psutil.pid_exists(pids[run_id]))

    with ExitStack() as stack:
        process = stack.enter_context(
            subprocess.Popen(
                command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
            )
        )
        stack.callback(os.killpg, process.pid, signal.SIGKILL)
        assert process.stdout is not None
        lines = [process.stdout.readline().split() for _ in ids]
        pids = {UUID(run_id): int(pid) for run_id, pid in lines}
        deploy_by_command([NAME], pool=POOL, secret=[])
        assert [state(run_id) for run_id in ids] == ["Running"] * 3
        kill(ids[0])
        deploy_by_command([NAME], pool=POOL, secret=[])
        assert [state(run_id) for run_id in ids] == ["Crashed", "Running", "Running"]
        kill(ids[1])
        other = tmp_path / "other"
        other.mkdir()
        take_over(other, flow_run_id=client.create_flow_run(train_agent).id)
        assert [state(run_id) for run_id in ids] == ["Crashed", "Crashed", "Running"]


def test_a_run_that_was_pending_for_too_long_is_crashed(
    client: SyncPrefectClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a worker that is killed between `Pending` and the start of a process leaves it."""
    client.create_work_pool(WorkPoolCreate(name="containers", type="docker"))
    flow_id = client.create_flow(train_agent)

    def take(name: str, *, pool: str, pull_step: dict[str, Any]) -> UUID:
        deployment_id = client.create_deployment(
            flow_id, name, work_pool_name=pool, entrypoint=ENTRYPOINT, pull_steps=[pull_step]
        )
        return client.create_flow_run_from_deployment(deployment_id, state=Pending()).id

    ours = take("ours", pool=POOL, pull_step=pull_step())
    may_wait = take("in a container", pool="containers", pull_step=pull_step())
    with monkeypatch.context() as patch:
        patch.chdir(tmp_path)
        elsewhere = take("elsewhere", pool=POOL, pull_step=pull_step())

    def states() -> list[str | None]:
        return [client.read_flow_run(run_id).state_name for run_id in (ours, may_wait, elsewhere)]

    mark_killed_runs()
    assert states() == ["Pending"] * 3
    monkeypatch.setattr("flows.orchestrator.unfinished_runs.BEGIN_S", 0.0)
    mark_killed_runs()
    assert states() == ["Crashed", "Pending", "Pending"]
