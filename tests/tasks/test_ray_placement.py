"""Where training processes go on a cluster: by number, and on a real one of two nodes."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from envs.errors import ConfigError
from tasks.cluster import address as ray_address
from tasks.cluster import placement as ray_placement
from tasks.cluster.address import asks_for_token, check_ray_address
from tasks.cluster.memory import check_nodes
from tasks.cluster.placement import Placement, cluster_nodes, place_workers, placement
from tasks.config.training import BackendSettings
from tasks.data.items import split, write_items
from tasks.progress import Progress
from tasks.stages.train import TrainSession
from tasks.verl.actor import environment_of
from tests.support.tiny_model import save_tiny_model
from tests.support.verl_toy import toy_pipeline


def backend(workers: int, *, tensor_parallel: int = 1) -> BackendSettings:
    return BackendSettings(device="cpu", rollout="cpu", workers=workers, tensor_parallel=tensor_parallel)


@pytest.mark.parametrize(
    ("workers", "tensor_parallel", "rooms", "nodes"),
    [
        (2, 1, [2, 2], 1),
        (2, 1, [1, 1], 2),
        (3, 1, [2, 2], None),
        (3, 1, [2, 2, 1], 3),
        (4, 1, [2, 3, 1], 2),
        (4, 2, [3, 3], 2),
        (4, 4, [2, 2], None),
        (2, 2, [1, 1], None),
        (6, 2, [2, 2, 2], 3),
        (1, 1, [], None),
        (1, 1, [0], None),
    ],
)
def test_workers_go_to_the_fewest_nodes_in_equal_numbers(
    workers: int, tensor_parallel: int, rooms: list[int], nodes: int | None
) -> None:
    expected_placement = nodes and Placement(nodes=nodes, workers_per_node=workers // nodes)
    for order in itertools.permutations(rooms):
        assert placement(workers, tensor_parallel=tensor_parallel, rooms=order) == expected_placement


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("127.0.0.1:1", "no Ray cluster answers"),
        ("no-such-host.invalid:6379", "no Ray cluster answers"),
        ("127.0.0.1", "is not HOST:PORT"),
        ("ray://127.0.0.1:10001", "is not HOST:PORT"),
        ("127.0.0.1:123456", "no Ray cluster answers"),
    ],
)
def test_an_address_without_a_cluster_is_refused_with_its_remedy(
    address: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(ConfigError, match=rf"^RAY_ADDRESS={address}:? {problem}.*; .*or unset it") as error:
        check_ray_address()
    assert "\n" not in str(error.value)


@pytest.mark.heavy
def test_what_answers_but_is_no_cluster_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    monkeypatch.setattr(ray_address, "PROBE_TIMEOUT_S", 5.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(ConfigError, match="no Ray cluster answers"):
            check_ray_address()


def test_no_address_is_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("", "local"):
        monkeypatch.setenv("RAY_ADDRESS", value)
        check_ray_address()


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a cluster of two nodes, a logical GPU on each; this process is connected to it."""
    import ray
    from ray.cluster_utils import Cluster

    from tasks.cluster.network import loopback_and_token

    with pytest.MonkeyPatch.context() as patch, loopback_and_token():
        patch.setenv("RAY_prestart_worker_first_driver", "0")
        nodes = Cluster()
        for _ in range(2):
            nodes.add_node(num_gpus=1, num_cpus=6, include_dashboard=False)
        try:
            ray.init(address=nodes.address, log_to_driver=False)
            patch.setenv("RAY_ADDRESS", nodes.address)
            yield nodes.address
        finally:
            ray.shutdown()
            nodes.shutdown()


@pytest.mark.slow
def test_verl_gets_its_placement_groups_on_two_nodes(verl: Any, cluster: str) -> None:
    import ray
    from verl.single_controller.ray.base import RayResourcePool, ResourcePoolManager

    new_placement = place_workers(backend(2))
    assert new_placement == Placement(nodes=2, workers_per_node=1)
    reserved_cpus = ResourcePoolManager(resource_pool_spec={}, mapping={}).max_colocate_count
    assert reserved_cpus == ray_placement.WORKER_CPUS
    pool = RayResourcePool(
        [new_placement.workers_per_node] * new_placement.nodes, max_colocate_count=reserved_cpus
    )
    [first, second] = _wait_for(60, lambda: pool.get_placement_groups(device_name="cpu"))
    table = [ray.util.placement_group_table(group)["bundles_to_node_id"][0] for group in (first, second)]
    assert len(set(table)) == 2

    # Nothing is free now, which may change: it is waited for, then refused.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ray_placement, "FREE_TIMEOUT_S", 2.0)
        with pytest.raises(ConfigError, match=r"free are 0 GPUs on .*, 0 GPUs on .*; add nodes"):
            place_workers(backend(2))
    for group in (first, second):
        ray.util.remove_placement_group(group)
    assert place_workers(backend(1)) == Placement(nodes=1, workers_per_node=1)


@pytest.mark.slow
def test_what_fits_on_no_nodes_is_refused_at_once(cluster: str) -> None:
    with pytest.raises(ConfigError) as error:
        place_workers(backend(3))
    assert str(error.value).startswith("backend.workers 3 cannot be placed: free are 1 GPU on ")
    assert str(error.value).endswith("set it to 2")
    with pytest.raises(ConfigError, match=r"a multiple of backend\.tensor_parallel 2; add nodes"):
        place_workers(backend(2, tensor_parallel=2))


@pytest.mark.slow
def test_the_nodes_are_asked_for_their_memory(cluster: str, tmp_path: Path) -> None:
    two_workers = {"device": "cpu", "rollout": "cpu", "workers": 2}
    pipeline = toy_pipeline(save_tiny_model(tmp_path), backend=two_workers)
    two_nodes = Placement(nodes=2, workers_per_node=1)
    check_nodes(pipeline, two_nodes, environment=environment_of(pipeline))
    train = pipeline.train.model_copy(update={"micro_batch_tokens": 10**9})
    too_much = pipeline.model_copy(update={"train": train})
    with pytest.raises(ConfigError, match=r"to train, and node [\d.]+ has .*; set train.micro_batch_tokens"):
        check_nodes(too_much, two_nodes, environment=environment_of(pipeline))


@pytest.mark.slow
def test_a_policy_is_trained_on_two_nodes(cluster: str, tmp_path: Path) -> None:
    """A rank and a sampler on each; what two ranks compute is compared with one in `test_verl_ranks.py`."""
    model = save_tiny_model(tmp_path / "model")
    pipeline = toy_pipeline(
        model,
        data={"parts": {"textcraft": {}}},
        rollout__context_length=512,
        rollout__max_tokens_per_turn=4,
        horizon={"type": "fixed", "max_turns": [2]},
        backend={"device": "cpu", "rollout": "cpu", "workers": 2},
        train__steps=2,
    )
    items = split(pipeline.data)
    write_items(tmp_path / "data" / "train.jsonl", items.train)
    write_items(tmp_path / "data" / "test.jsonl", items.test)
    free_gpus: list[list[int]] = []

    def on_step(_: Any) -> None:
        free_gpus.append([node.gpus for node in cluster_nodes(free=True)])

    with TrainSession(pipeline, tmp_path, Progress(on_step=on_step)) as session:
        result = session.evaluate_round(session.train_round(0))
        policy = session.export()
    assert free_gpus == [[0, 0], [0, 0]]
    assert result.evaluation["episodes"] == 4
    actor = tmp_path / "train" / "checkpoints" / "global_step_2" / "actor"
    assert sorted(file.name for file in actor.glob("model_*.pt")) == [
        "model_world_size_2_rank_0.pt",
        "model_world_size_2_rank_1.pt",
    ]
    assert (policy / "model.safetensors").exists()


@pytest.mark.slow
def test_a_cluster_is_joined_with_its_token_alone(cluster: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_ray_address()
    assert asks_for_token()
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 64)
    with pytest.raises(ConfigError, match=r"refuses this process's token; set RAY_AUTH_MODE=token"):
        check_ray_address()


@pytest.mark.slow
def test_a_secret_that_the_nodes_lack_is_named_before_anything_starts(
    cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = "agent.judges.clear.key_from"
    monkeypatch.setenv("A_JUDGES_KEY", "set here alone")
    check_ray_address({"PATH": setting})
    with pytest.raises(
        ConfigError, match=rf"^{setting}: .* A_JUDGES_KEY is not set on node [\d.]+ of RAY_ADD"
    ):
        check_ray_address({"PATH": setting, "A_JUDGES_KEY": setting})


def _wait_for(seconds: float, work: Any) -> Any:
    from concurrent.futures import ThreadPoolExecutor

    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(work).result(timeout=seconds)
    finally:
        pool.shutdown(wait=False)
