"""Which limits of a Prefect server a run needs; `test_prefect_server.py` has runs that wait for them."""

import httpx
import pytest
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
from pydantic import ValidationError

from flows.orchestrator.limits import instances_limit, needed_slots
from tasks.config.pipelines import load_pipeline


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
    opened = load_pipeline(
        "textcraft-cpu", overrides={"data.parts": {"open": {"env": "openenv:http://127.0.0.1:8000"}}}
    )
    assert set(needed_slots(opened)) == {"wingspan-envs-openenv:http:-127.0.0.1:8000"}


@pytest.mark.parametrize(
    ("env", "limit"),
    [
        ("openenv:http://127.0.0.1:8000/a%20b", "wingspan-envs-openenv:http:-127.0.0.1:8000-a-20b"),
        ("webshop-mini:text?actions=false", "wingspan-envs-webshop-mini:text-actions=false"),
        ("my_package.env:MyEnv", "wingspan-envs-my_package.env:MyEnv"),
    ],
)
def test_prefect_takes_the_name_of_an_environments_limit(env: str, limit: str) -> None:
    """As the name of a limit to create, and in the path of a request for one."""
    assert instances_limit(env) == limit
    assert GlobalConcurrencyLimitCreate(name=limit, limit=1).name == limit
    assert httpx.URL(f"http://host/limits/{limit}").path == f"/limits/{limit}"


def test_prefect_refuses_an_address_in_the_name_of_a_limit() -> None:
    with pytest.raises(ValidationError, match="pattern"):
        GlobalConcurrencyLimitCreate(name="wingspan-envs-openenv:http://127.0.0.1:8000", limit=1)
