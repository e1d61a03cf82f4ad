"""Runs and a Prefect server: what its pages show of them, and its limits, for which they wait.

The pages' contents are read as the pages read them.
"""

import hashlib
import json
import logging
import os
import socket
import sqlite3
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from httpx import HTTPStatusError
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
from prefect.client.schemas.objects import Artifact
from prefect.context import refresh_global_settings_context
from prefect.runtime import flow_run
from prefect.settings import (
    PREFECT_API_SSL_CERT_FILE,
    PREFECT_API_TLS_INSECURE_SKIP_VERIFY,
    PREFECT_API_URL,
    PREFECT_CLIENT_CUSTOM_HEADERS,
    get_current_settings,
    temporary_settings,
)
from prefect.states import Running
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from envs.errors import ConfigError, WingspanError
from envs.files import read_json
from envs.network.client import Backoff
from flows.display.display import Display
from flows.evaluate_policy import evaluate_policy
from flows.lineage.stages import Receipt, Stage
from flows.lock import lock
from flows.orchestrator.events import COLLAPSE, emit
from flows.orchestrator.limits import hold_slots, missing_limits
from flows.orchestrator.page import PrefectPage
from flows.orchestrator.runs import TemporaryServer, check_server, orchestrate, server_url
from flows.orchestrator.unfinished_runs import take_over
from flows.plan import Plan
from flows.run import Run
from tasks.config.pipelines import load_pipeline
from tasks.data.collapse import Alert
from tasks.runs.folders import FLOW_RUN
from tasks.runs.progress import Progress
from tasks.runs.rounds import RoundResult
from tasks.tracking.model import Promotion
from tests.support.chat_server import chat_server, says
from tests.support.http_server import serving_in_thread
from tests.support.prefect_database import add_database
from tests.support.prefect_server import prefect_server
from tests.support.sockets import free_port
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
NAME = "textcraft-cpu"
PIPELINE = load_pipeline(
    NAME, overrides={"train.steps": 4, "train.steps_per_round": 2, "train.save_every": 2}
)
ALERT = Alert(monitor="kl", step=3, value=0.3, limit=0.1, text="the KL is 0.3")
PROMOTION = Promotion(model=NAME, version="2", test={"against": "version 1", "difference": "+0.2000"})
EVALUATION = {policy: {"sampled": {"success": rate}} for policy, rate in (("before", 0.25), ("after", 0.75))}
KEYS = {f"{NAME}-{name}" for name in ("progress", "rounds", "curves", "links")}
SAY = "tests.support.own_env:SPEC"
"""Its test items are numbers, 6 and 7, that are to be said."""
SLOW_S = 3600.0
WAIT_S = 60.0


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SyncPrefectClient]:
    """Of a server of its own; it stores events at once."""
    folder = tmp_path_factory.mktemp("prefect")
    add_database(folder)
    settings = {"PREFECT_HOME": str(folder), "PREFECT_SERVER_SERVICES_EVENT_PERSISTER_FLUSH_INTERVAL": "0.05"}
    with (
        pytest.MonkeyPatch.context() as patch,
        prefect_server(folder, environment=os.environ | settings) as url,
    ):
        patch.setenv("PREFECT_API_URL", url)
        patch.setenv("PREFECT_LOGGING_TO_API_ENABLED", "false")
        refresh_global_settings_context()  # of all threads
        with get_client(sync_client=True) as client:
            yield client
    refresh_global_settings_context()


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return Path("runs") / NAME


def in_flow(work: Callable[[str], object]) -> str:
    """Call `work` with the id of the flow run that it is in; returns that id."""
    ids = []

    def train_agent() -> None:
        ids.append(str(flow_run.id))
        work(ids[0])

    flow(name="train-agent")(train_agent)()
    return ids[0]


def page_in(workspace: Path, flow_run_id: str, *, interval_s: float = 0.0) -> PrefectPage:
    return PrefectPage(
        NAME, pipeline=PIPELINE, workspace=workspace, flow_run_id=flow_run_id, interval_s=interval_s
    )


def train(page: PrefectPage, workspace: Path, *, rounds: Sequence[int]) -> None:
    """What training reports and writes, without a trainer."""
    progress = page.observe(Progress())
    (workspace / "train" / "rounds").mkdir(parents=True, exist_ok=True)
    for index in rounds:
        progress.on_phase("starting Ray")
        for step in (2 * index + 1, 2 * index + 2):
            line = {"step": step, "success": step / 10, "reward": -step, "horizon": 4.0 * (index + 1)}
            with (workspace / "train" / "metrics.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")
            progress.on_step(line)
        progress.on_phase("quick evaluation")
        (workspace / "train" / "rounds" / f"{index:02d}.json").write_text(json.dumps(asdict(finished(index))))
        page.sync_rounds()


def finished(index: int) -> RoundResult:
    last = 2 * index + 2
    evaluation = {"success": 0.25 * (index + 1), "episodes": 4}
    return RoundResult(
        temperature=1.0, index=index, first_step=last - 1, last_step=last, seconds=90, evaluation=evaluation
    )


def artifacts_of(client: SyncPrefectClient, flow_run_id: str) -> dict[str, Artifact]:
    """By key; one of each."""
    artifacts = [a for a in client.read_artifacts() if str(a.flow_run_id) == flow_run_id]
    by_key = {str(artifact.key): artifact for artifact in artifacts}
    assert len(by_key) == len(artifacts)
    return by_key


def data_of(artifact: Artifact) -> Any:
    """As Prefect's pages get it."""
    return artifact.data


def events_of(client: SyncPrefectClient, flow_run_id: str, *, prefix: str) -> list[dict[str, Any]]:
    """Events of `prefix` about the flow run, in their order."""
    where = {
        "event": {"prefix": [prefix]},
        "related": {"id": [f"prefect.flow-run.{flow_run_id}"]},
        "order": "ASC",
    }
    answer = client.request("POST", "/events/filter", json={"filter": where, "limit": 50}).json()
    events: list[dict[str, Any]] = answer["events"]
    return events


def test_training_is_seen_while_it_goes_on(client: SyncPrefectClient, workspace: Path) -> None:
    versions: dict[str, Artifact] = {}

    def work(flow_run_id: str) -> None:
        with page_in(workspace, flow_run_id) as page:
            train(page, workspace, rounds=[0])
            wait_until(lambda: f"{NAME}-links" in artifacts_of(client, flow_run_id))
            versions.update(artifacts_of(client, flow_run_id))
            train(page, workspace, rounds=[1])
            page.show_links(EVALUATION)
            page.announce(PROMOTION)

    run_id = in_flow(work)
    assert data_of(versions[f"{NAME}-progress"]) <= 50
    after = artifacts_of(client, run_id)
    assert after.keys() == KEYS
    progress = after[f"{NAME}-progress"]
    assert (progress.type, progress.data) == ("progress", 100)
    assert progress.description == "step 4 of 4, round 2 of 2, horizon 8, success 0.4, reward -4"
    table = json.loads(data_of(after[f"{NAME}-rounds"]))
    common = {"minutes": 1.5}
    assert table == [
        common
        | {
            "round": 1,
            "steps": "1 to 2",
            "horizon": "4",
            "success in training": 0.15,
            "success of the quick evaluation": 0.25,
            "reward in training": -1.5,
        },
        common
        | {
            "round": 2,
            "steps": "3 to 4",
            "horizon": "8",
            "success in training": 0.35,
            "success of the quick evaluation": 0.5,
            "reward in training": -3.5,
        },
    ]
    curves = data_of(after[f"{NAME}-curves"])
    assert "| success, quick evaluations | `▃▅` | 0.25 | 0.5 | 0.25 | 0.5 |" in curves
    assert "| reward, training steps | `█▆▃▁` | -1 | -4 | -4 | -1 |" in curves
    links = data_of(after[f"{NAME}-links"])
    assert links.startswith("Success on the test split: 25.0% before, 75.0% after training.")
    assert "[MLflow run](http://127.0.0.1:5000" in links
    assert f"runs/{NAME}/report/index.html" in links

    wait_until(lambda: len(events_of(client, run_id, prefix="wingspan.")) == 3)
    *rounds, promotion = events_of(client, run_id, prefix="wingspan.")
    assert [event["event"] for event in rounds] == ["wingspan.round"] * 2
    about = {"pipeline": NAME, "workspace": f"runs/{NAME}"}
    assert rounds[1]["payload"] == about | {"round": 2, "rounds": 2} | asdict(finished(1))
    assert rounds[1]["resource"]["prefect.resource.id"] == f"wingspan.workspace.runs/{NAME}"
    assert promotion["payload"] == about | asdict(PROMOTION) | {
        "policy": str(workspace.resolve() / "policy"),
        "envs": ["textcraft"],
    }


def test_a_resumed_run_updates_the_same_keys(client: SyncPrefectClient, workspace: Path) -> None:
    def attempt(rounds: Sequence[int]) -> Callable[[str], None]:
        def work(flow_run_id: str) -> None:
            with page_in(workspace, flow_run_id) as page:
                train(page, workspace, rounds=rounds)

        return work

    in_flow(attempt([0]))
    second_id = in_flow(attempt([1]))
    found = artifacts_of(client, second_id)
    assert found.keys() == KEYS
    assert [row["round"] for row in json.loads(data_of(found[f"{NAME}-rounds"]))] == [1, 2]
    wait_until(lambda: bool(events_of(client, second_id, prefix="wingspan.round")))
    (done,) = events_of(client, second_id, prefix="wingspan.round")
    assert done["payload"]["round"] == 2
    # An attempt of the same flow run, as Prefect's own retries are: no artifact is added.
    with page_in(workspace, second_id) as page:
        page.observe(Progress()).on_phase("starting Ray")
        page.show_links(EVALUATION)
    found = artifacts_of(client, second_id)
    assert found.keys() == KEYS
    progress = str(found[f"{NAME}-progress"].description)
    assert progress.startswith("step 4 of 4")
    assert progress.endswith("starting Ray")
    latest = client.request("POST", "/artifacts/latest/filter", json={}).json()
    assert sorted(artifact["key"] for artifact in latest) == sorted(KEYS)
    assert {artifact["flow_run_id"] for artifact in latest} == {second_id}


def test_many_steps_are_few_updates(client: SyncPrefectClient, workspace: Path) -> None:
    def work(flow_run_id: str) -> None:
        with page_in(workspace, flow_run_id, interval_s=SLOW_S) as page:
            progress = page.observe(Progress())
            progress.on_step({"step": 1})
            wait_until(lambda: bool(artifacts_of(client, flow_run_id)))
            for step in (2, 3, 4):
                progress.on_step({"step": step})

    run_id = in_flow(work)
    artifact = artifacts_of(client, run_id)[f"{NAME}-progress"]
    assert artifact.data == 100

    def updates() -> list[Any]:
        events = events_of(client, run_id, prefix="prefect.artifact.")
        ours = f"prefect.artifact.{artifact.id}"
        return [e["payload"].get("data") for e in events if e["resource"]["prefect.resource.id"] == ours]

    wait_until(lambda: updates()[-1:] == [100])
    assert updates() == [None, 100]  # that it was created, and the last


def test_without_a_server_training_goes_on(client: SyncPrefectClient, workspace: Path) -> None:
    steps: list[Any] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with (
        temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{port}/api"}),
        page_in(workspace, "00000000-0000-0000-0000-000000000000") as page,
    ):
        progress = page.observe(Progress(on_step=steps.append))
        progress.on_step({"step": 1})
        progress.on_alert(ALERT)
        page.sync_rounds()
    assert steps == [{"step": 1}]


def test_secrets_reach_neither_artifacts_nor_events(
    client: SyncPrefectClient, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "s3cret-canary"
    monkeypatch.setenv("WINGSPAN_TOKEN", secret)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"https://user:{secret}@mlflow.example")

    def work(flow_run_id: str) -> None:
        with page_in(workspace, flow_run_id) as page:
            progress = page.observe(Progress())
            progress.on_phase(f"waiting for {secret}")
            page.show_links(EVALUATION)
            alert = Alert(**asdict(ALERT) | {"text": f"{secret} is 0.3"})
            progress.on_alert(alert)

    run_id = in_flow(work)
    wait_until(lambda: bool(events_of(client, run_id, prefix="wingspan.collapse")))
    (event,) = events_of(client, run_id, prefix="wingspan.collapse")
    assert event["payload"]["text"] == "[redacted] is 0.3"
    artifacts = artifacts_of(client, run_id)
    assert artifacts[f"{NAME}-progress"].description == "step 0 of 4, round 1 of 2, waiting for [redacted]"
    assert "(https://mlflow.example)" in data_of(artifacts[f"{NAME}-links"])
    assert secret not in str([artifacts, events_of(client, run_id, prefix="prefect.artifact.")])


def test_the_parameters_of_a_flow_run_have_no_password(client: SyncPrefectClient) -> None:
    overrides = {"servers.textcraft.urls": ["http://any:s3cret-canary@host:8000"], "train.lr": 0.25}

    def work(overrides: dict[str, object]) -> str:
        return str(flow_run.id)

    run_id, failure = orchestrate(work, name="toy", run_name="toy", parameters={"overrides": overrides})
    assert failure is None
    parameters = client.read_flow_run(UUID(run_id)).parameters
    urls = ["http://[redacted]@host:8000"]
    assert parameters == {"overrides": {"servers.textcraft.urls": urls, "train.lr": 0.25}}


def test_outputs_are_assets_with_their_hashes(client: SyncPrefectClient, workspace: Path) -> None:
    workspace.mkdir(parents=True)
    items, policy = workspace / "items [1].jsonl", workspace / "policy"
    first = Stage(name="prepare", workspace=workspace, command="", deps=(), params={}, outs=(items,))
    second = Stage(name="warmup", workspace=workspace, command="", deps=(items,), params={}, outs=(policy,))
    stages = {stage.name: stage for stage in (first, second)}
    plan = Plan(name=NAME, pipeline=PIPELINE, workspace=workspace, stages=stages, is_tracked=False)

    def work(_: str) -> None:
        display = Display("a run", stages=list(stages), steps={}, steps_per_round=1)
        run = Run(plan, display=display, closing=ExitStack(), page=None, flow_run_id=None)
        receipt: Receipt = run.finish(first, lambda: items.write_text("one"))
        run.finish(second, lambda: policy.write_text("two"), receipt)

    run_id = in_flow(work)
    name = "prefect.asset.materialization.succeeded"
    wait_until(lambda: len(events_of(client, run_id, prefix=name)) == 2)
    made_items, made_policy = events_of(client, run_id, prefix=name)
    address = f"file://{workspace.resolve()}"
    assert made_items["resource"]["prefect.resource.id"] == f"{address}/items__1_.jsonl"
    assert made_items["resource"]["prefect.resource.name"] == str(items)
    md5 = hashlib.md5(b"one").hexdigest()
    assert made_items["payload"] == {"md5": md5, "path": "items [1].jsonl", "stage": "prepare"}
    assert made_policy["payload"]["md5"] == hashlib.md5(b"two").hexdigest()
    related = made_policy["related"]
    sources = [r["prefect.resource.id"] for r in related if r["prefect.resource.role"] == "asset"]
    assert sources == [f"{address}/items__1_.jsonl"]

    def work_again(flow_run_id: str) -> None:
        work(flow_run_id)
        emit(
            COLLAPSE, asdict(ALERT), pipeline=NAME, workspace=workspace
        )  # after them: events keep their order

    again = in_flow(work_again)  # both stages from the cache
    wait_until(lambda: bool(events_of(client, again, prefix="wingspan.")))
    assert events_of(client, again, prefix=name) == []


def test_the_automations_do_what_their_page_says(
    client: SyncPrefectClient, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Applied by Prefect's own command; then each event has its effect."""
    from prefect.blocks.notifications import CustomWebhookNotificationBlock
    from prefect.deployments.runner import RunnerDeployment
    from prefect.testing.cli import invoke_and_assert

    messages: list[str] = []

    async def receive(request: Request) -> Response:
        messages.append((await request.json())["text"])
        return Response()

    monkeypatch.chdir(ROOT)
    deployment = RunnerDeployment.from_entrypoint(
        "flows/evaluate_policy.py:evaluate_policy", name="any-policy"
    ).apply()
    with serving_in_thread(Starlette(routes=[Route("/", receive, methods=["POST"])])) as url:
        block = CustomWebhookNotificationBlock(
            name="wingspan", url=url, json_data={"text": "{{subject}}: {{body}}"}, headers=None, cookies=None
        ).save("wingspan")
        for automation, word, value in (
            ("collapse", "BLOCK_ID", block),
            ("champion", "DEPLOYMENT_ID", deployment),
        ):
            text = (ROOT / "flows" / "automations" / f"{automation}.yaml").read_text()
            file = tmp_path / f"{automation}.yaml"
            file.write_text(text.replace(word, str(value)))
            invoke_and_assert(
                ["automation", "create", "--from-file", str(file)],
                expected_output_contains="Created automation",
                expected_code=0,
            )

        def work(flow_run_id: str) -> None:
            with page_in(workspace, flow_run_id) as page:
                emit(COLLAPSE, asdict(ALERT), pipeline=NAME, workspace=workspace)
                page.announce(PROMOTION)

        in_flow(work)
        wait_until(lambda: bool(messages))
    assert messages == [f"{NAME}: kl at step 3: the KL is 0.3 (runs/{NAME})"]

    def evaluations() -> list[dict[str, Any]]:
        where = {"flows": {"name": {"any_": ["evaluate-policy"]}}}
        runs: list[dict[str, Any]] = client.request("POST", "/flow_runs/filter", json=where).json()
        return [run["parameters"] for run in runs]

    wait_until(lambda: bool(evaluations()))
    (parameters,) = evaluations()
    assert parameters == {"policy": str(workspace.resolve() / "policy"), "envs": ["textcraft"], "samples": 8}


# --- limits: runs that share GPUs or environments wait for each other


def create(client: SyncPrefectClient, name: str, limit: int) -> str:
    client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=name, limit=limit))
    return name


def active_slots(client: SyncPrefectClient, name: str) -> int:
    return client.read_global_concurrency_limit_by_name(name).active_slots


def hold_in_flow(work: Callable[[], None]) -> None:
    in_flow(lambda _: work())


def test_of_two_runs_for_which_there_is_no_room_the_second_waits(
    client: SyncPrefectClient, caplog: pytest.LogCaptureFixture
) -> None:
    gpus, sites = create(client, "gpus", 3), create(client, "sites", 2)
    first_may_end, second_holds = threading.Event(), threading.Event()

    def first() -> None:
        with hold_slots({gpus: 2, sites: 1}):
            assert first_may_end.wait(WAIT_S)

    def second() -> None:
        with hold_slots({sites: 1, gpus: 2}):
            second_holds.set()

    with ThreadPoolExecutor(2) as threads:
        runs: list[Future[None]] = [threads.submit(hold_in_flow, first)]
        wait_until(lambda: (active_slots(client, gpus), active_slots(client, sites)) == (2, 1))
        runs.append(threads.submit(hold_in_flow, second))
        try:
            wait_until(lambda: caplog.messages.count(f"waiting for 2 of 3 slots of {gpus}") == 2)
            ask = {"names": [gpus], "slots": 2, "mode": "concurrency"}
            with pytest.raises(HTTPStatusError, match="423"):
                client.request("POST", "/v2/concurrency_limits/increment", json=ask)
            assert not second_holds.is_set()
            assert active_slots(client, gpus) == 2
        finally:
            first_may_end.set()
        assert second_holds.wait(WAIT_S)
        for run in runs:
            run.result(WAIT_S)
    assert (active_slots(client, gpus), active_slots(client, sites)) == (0, 0)


def test_a_run_that_fails_gives_its_slots_back(client: SyncPrefectClient) -> None:
    name = create(client, "fails", 1)

    def fail() -> None:
        with hold_slots({name: 1}):
            assert active_slots(client, name) == 1
            raise ValueError("no such model")

    with pytest.raises(ValueError, match="no such model"):
        hold_in_flow(fail)
    assert active_slots(client, name) == 0


def test_a_retry_takes_its_workspace_over_from_itself_and_another_run_from_a_killed_one(
    client: SyncPrefectClient, workspace: Path
) -> None:
    """Prefect retries a flow run under its id, which the workspace already names."""
    run_ids: list[UUID] = []

    @flow(retries=1, retry_delay_seconds=0)
    def fails_once() -> None:
        run_ids.append(UUID(str(flow_run.id)))
        take_over(workspace, flow_run_id=run_ids[-1])
        if len(run_ids) == 1:
            raise WingspanError("the first attempt failed")

    workspace.mkdir(parents=True)
    fails_once()
    assert run_ids == [run_ids[0]] * 2

    def states() -> list[str]:
        return [state.name or "" for state in client.read_flow_run_states(run_ids[0])]

    assert "Crashed" not in states()
    assert states()[-1] == "Completed"
    client.set_flow_run_state(run_ids[0], Running(), force=True)  # as if it had been killed
    in_flow(lambda other_id: take_over(workspace, flow_run_id=UUID(other_id)))
    assert states()[-1] == "Crashed"
    for content in ('{"flow_run": 1}', '{"flow_run_id": "1"}'):
        (workspace / FLOW_RUN).write_text(content)
        with pytest.raises(ConfigError, match=rf"{FLOW_RUN} is damaged \(.*\); delete it$"):
            take_over(workspace, flow_run_id=None)


def test_an_evaluation_marks_a_killed_one_in_its_folder(client: SyncPrefectClient, tmp_path: Path) -> None:
    killed = client.create_flow_run(evaluate_policy, state=Running())
    with chat_server(lambda body: says("Action: 6")) as endpoint:
        values = {"policy": endpoint.url, "envs": [SAY], "model": "toy", "max_turns": 1}
        evaluate: Callable[[], Any] = partial(evaluate_policy, **values, out=str(tmp_path))
        with lock(tmp_path):
            take_over(tmp_path, flow_run_id=killed.id)
            with pytest.raises(ConfigError, match=f"in use by process {os.getpid()}; .* another out$"):
                evaluate()
            assert client.read_flow_run(killed.id).state_name == "Running"
        result = evaluate()
    assert client.read_flow_run(killed.id).state_name == "Crashed"
    assert result["record"] == str(tmp_path)
    assert result["rates"]["avg_at_1"]["mean"] == 0.5  # of the items 6 and 7


@pytest.mark.usefixtures("client")
def test_an_evaluation_that_mlflow_cannot_record_is_refused_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{free_port()}")
    with chat_server(lambda body: says("Action: 6")) as endpoint:
        values = {"policy": endpoint.url, "envs": [SAY], "model": "toy", "max_turns": 1, "track": True}
        evaluate: Callable[[], Any] = partial(evaluate_policy, **values, out=str(tmp_path / "out"))
        with pytest.raises(ConfigError, match=r"MLFLOW_TRACKING_URI=.* does not answer"):
            evaluate()
    assert not (tmp_path / "out").exists()


class _OnWaiting(logging.Handler):
    """Calls `act` when a run says that it waits for the server."""

    def __init__(self, act: Callable[[], object]) -> None:
        super().__init__()
        self._act = act

    def emit(self, record: logging.LogRecord) -> None:
        if "waiting about a minute" in record.getMessage():
            self._act()


def test_a_run_waits_for_a_server_that_restarts(
    client: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    refusal = f"PREFECT_API_URL={url} does not answer .*; start that server"

    def check_during_restart(_: str) -> None:
        with ExitStack() as stack:
            server = Starlette(routes=[Route("/health", lambda _: JSONResponse(True))])
            begin = partial(stack.enter_context, serving_in_thread(server, port=port))
            handler = _OnWaiting(begin)
            logger = logging.getLogger("prefect.flow_runs")
            logger.addHandler(handler)
            stack.callback(logger.removeHandler, handler)
            check_server()
            assert f"{url} answers again" in caplog.messages

    def check_without_restart(_: str) -> None:
        with pytest.raises(ConfigError, match=refusal):
            check_server()

    monkeypatch.setattr("flows.orchestrator.runs.RESTART", Backoff(max_attempts=2, first_s=0.5))
    monkeypatch.setenv("PREFECT_API_URL", url)  # for the check alone; Prefect itself has read its settings
    with pytest.raises(ConfigError, match=refusal):
        check_server()
    in_flow(check_during_restart)
    in_flow(check_without_restart)


def test_an_address_that_is_not_that_of_prefects_api_is_refused(
    client: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = str(client.api_url).rstrip("/")
    check_server()
    for url, remedy in (
        (api.removesuffix("/api"), f"add /api: {api}"),
        (f"{api}/api", "give that of the API, which ends in /api"),
    ):
        monkeypatch.setenv("PREFECT_API_URL", url)
        with pytest.raises(ConfigError, match=f"PREFECT_API_URL={url} is not the .*status 404.*; {remedy}$"):
            check_server()


@pytest.mark.parametrize(
    ("key", "answer", "message"),
    [
        ("right", PlainTextResponse("<html>", status_code=500), None),
        ("wrong", RedirectResponse("/login"), None),  # which Prefect's client reports
        ("wrong", PlainTextResponse("<html>"), "is not the address of Prefect's API .* status 200"),
        (
            "wrong",
            PlainTextResponse("", status_code=503),
            r"does not answer \(503 Service Unavailable\); start",
        ),
    ],
)
def test_behind_a_proxy_prefects_headers_are_sent_and_no_login_is_followed(
    monkeypatch: pytest.MonkeyPatch, key: str, answer: Response, message: str | None
) -> None:
    """`answer`: of the proxy to a request without the right key."""

    async def health(request: Request) -> Response:
        return JSONResponse(True) if request.headers.get("X-Key") == "right" else answer

    routes = [Route("/health", health), Route("/login", lambda _: PlainTextResponse("<html>"))]
    with (
        serving_in_thread(Starlette(routes=routes)) as url,
        temporary_settings({PREFECT_CLIENT_CUSTOM_HEADERS: {"X-Key": key}}),
        nullcontext() if message is None else pytest.raises(ConfigError, match=message),
    ):
        monkeypatch.setenv("PREFECT_API_URL", url)
        check_server()


class _Healthy(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "4")
        self.end_headers()
        self.wfile.write(b"true")


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """One of 127.0.0.1 that nobody has signed, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    address = x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(address, critical=False)
        .sign(key, hashes.SHA256())
    )
    (folder / "certificate.pem").write_bytes(certificate.public_bytes(Encoding.PEM))
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "key.pem").write_bytes(secret)
    return folder / "certificate.pem", folder / "key.pem"


def test_a_server_is_trusted_by_prefects_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, key = make_certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with ThreadingHTTPServer(("127.0.0.1", 0), _Healthy) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("PREFECT_API_URL", f"https://127.0.0.1:{server.server_address[1]}/api")
        with pytest.raises(ConfigError, match="certificate verify failed"):
            check_server()
        with temporary_settings({PREFECT_API_SSL_CERT_FILE: str(certificate)}):
            check_server()
        with temporary_settings({PREFECT_API_TLS_INSECURE_SKIP_VERIFY: True}):
            check_server()
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("url", ["127.0.0.1:4200/api", "http://127.0.0.1:port/api"])
def test_a_run_does_not_wait_for_an_address_that_is_none(
    client: SyncPrefectClient, url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def check(_: str) -> None:
        with pytest.raises(ConfigError, match=f"PREFECT_API_URL={url} does not answer"):
            check_server()

    monkeypatch.setattr("flows.orchestrator.runs.RESTART", Backoff(max_attempts=2, first_s=0.5))
    monkeypatch.setenv("PREFECT_API_URL", url)
    in_flow(check)
    assert not [line for line in caplog.messages if "waiting" in line]


def test_a_run_on_the_temporary_server_takes_over_whether_or_not_that_answers_at_once(
    client: SyncPrefectClient, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace.mkdir(parents=True)
    url = f"http://127.0.0.1:{free_port()}"
    monkeypatch.setenv("PREFECT_API_URL", url)  # for the check alone, as above
    monkeypatch.setenv("WINGSPAN_TEMPORARY_PREFECT", url)
    run_id = in_flow(lambda own_id: take_over(workspace, flow_run_id=UUID(own_id)))
    assert read_json(workspace / FLOW_RUN)["flow_run_id"] == run_id


def test_more_slots_than_there_are_is_refused(client: SyncPrefectClient) -> None:
    name = create(client, "few", 2)

    def ask() -> None:
        with hold_slots({name: 3}):
            pass

    with pytest.raises(
        ConfigError,
        match=r"needs 3 slots of few, which has 2; .* prefect global-concurrency-limit update few",
    ):
        hold_in_flow(ask)


def test_a_limit_that_does_not_exist_is_named_with_its_command(
    client: SyncPrefectClient, caplog: pytest.LogCaptureFixture
) -> None:
    command = "prefect global-concurrency-limit create none --limit N"
    line = f"there is no limit none: runs do not wait for each other; {command}"
    name = create(client, "some", 1)
    assert missing_limits([name, "none"]) == [line]

    def work() -> None:
        with hold_slots({"none": 1}):
            pass

    hold_in_flow(work)
    assert line in caplog.messages


def test_a_run_on_a_temporary_server_waits_for_nothing(
    client: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = create(client, "unused", 1)
    monkeypatch.setenv("WINGSPAN_TEMPORARY_PREFECT", str(get_current_settings().api.url))

    def work() -> None:
        with hold_slots({name: 2}):
            assert active_slots(client, name) == 0

    hold_in_flow(work)


def test_the_home_of_prefect_is_made_with_its_parents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "not" / "there" / "yet"
    monkeypatch.setenv("PREFECT_HOME", str(home))
    server_url()
    assert home.is_dir()
    (tmp_path / "file").touch()
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "file" / "home"))
    with pytest.raises(ConfigError, match=r"PREFECT_HOME=\S*/home cannot be made \(Not a directory\); name"):
        server_url()


def test_a_database_of_another_version_of_prefect_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    with sqlite3.connect(tmp_path / "prefect.db") as database:
        database.execute("CREATE TABLE alembic_version (version_num TEXT)")
        database.execute("INSERT INTO alembic_version VALUES ('0123456789ab')")
    with pytest.raises(WingspanError, match=f"its database in {tmp_path} is of another version of Prefect"):
        TemporaryServer().use()
