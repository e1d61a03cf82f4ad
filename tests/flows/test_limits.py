"""Which limits of a Prefect server a run needs; `test_prefect_server.py` has runs that wait for them."""

from flows.orchestrator.limits import needed_slots
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
