"""Runs that share GPUs or environments wait for each other, by the limits of a Prefect server."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from httpx import HTTPStatusError
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
from prefect.settings import PREFECT_LOGGING_TO_API_ENABLED, get_current_settings, temporary_settings
from prefect.testing.utilities import prefect_test_harness

from envs.errors import ConfigError
from flows.orchestrator.limits import hold_slots, missing_limits, needed_slots
from tasks.config.pipelines import load_pipeline
from tests.support.waiting import wait_until

WAIT_S = 60.0


def test_a_run_needs_its_gpus_and_the_instances_of_environments_elsewhere() -> None:
    assert needed_slots(load_pipeline("textcraft-cpu")) == {}
    on_gpus = load_pipeline("textcraft-qwen2.5-3b")
    assert needed_slots(on_gpus) == {"wingspan-gpus": on_gpus.backend.workers}
    assert needed_slots(on_gpus, has_trainer=False) == {}
    servers = {"textcraft": {"urls": ["http://127.0.0.1:1"]}}
    served = load_pipeline("textcraft-cpu", overrides={"servers": servers, "rollout.max_live_envs": 3})
    assert needed_slots(served) == {"wingspan-envs-textcraft": 3}
    shared = load_pipeline("textcraft-cpu", overrides={"data.parts": {"web": {"env": "webarena"}}})
    assert set(needed_slots(shared)) == {"wingspan-envs-webarena"}


@pytest.fixture(scope="module")
def client() -> Iterator[SyncPrefectClient]:
    with (
        temporary_settings({PREFECT_LOGGING_TO_API_ENABLED: False}),
        prefect_test_harness(server_startup_timeout=300),
        get_client(sync_client=True) as connected,
    ):
        yield connected


def create(client: SyncPrefectClient, name: str, limit: int) -> str:
    client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=name, limit=limit))
    return name


def active_slots(client: SyncPrefectClient, name: str) -> int:
    return client.read_global_concurrency_limit_by_name(name).active_slots


def in_flow(work: Callable[[], None]) -> None:
    flow(name="train-agent")(work)()


@pytest.mark.slow
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
        runs: list[Future[None]] = [threads.submit(in_flow, first)]
        wait_until(lambda: (active_slots(client, gpus), active_slots(client, sites)) == (2, 1))
        runs.append(threads.submit(in_flow, second))
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


@pytest.mark.slow
def test_a_run_that_fails_gives_its_slots_back(client: SyncPrefectClient) -> None:
    name = create(client, "fails", 1)

    def fail() -> None:
        with hold_slots({name: 1}):
            assert active_slots(client, name) == 1
            raise ValueError("no such model")

    with pytest.raises(ValueError, match="no such model"):
        in_flow(fail)
    assert active_slots(client, name) == 0


@pytest.mark.slow
def test_more_slots_than_there_are_is_refused(client: SyncPrefectClient) -> None:
    name = create(client, "few", 2)

    def ask() -> None:
        with hold_slots({name: 3}):
            pass

    with pytest.raises(
        ConfigError,
        match=r"needs 3 slots of few, which has 2; .* prefect global-concurrency-limit update few",
    ):
        in_flow(ask)


@pytest.mark.slow
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

    in_flow(work)
    assert line in caplog.messages


@pytest.mark.slow
def test_a_run_on_a_temporary_server_waits_for_nothing(
    client: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = create(client, "unused", 1)
    monkeypatch.setenv("WINGSPAN_TEMPORARY_PREFECT", str(get_current_settings().api.url))

    def work() -> None:
        with hold_slots({name: 2}):
            assert active_slots(client, name) == 0

    in_flow(work)
