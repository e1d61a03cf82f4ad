"""A real cluster of two nodes: who may join it, what is placed there, and a training on it."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import openai
import pytest

from agents.clients.endpoint import Endpoint
from agents.rollout.packing import pack
from agents.rollout.rollout import rollout
from agents.types import EpisodeLimits, Trajectory
from envs.errors import ConfigError, WingspanError
from tasks.cluster import placement as ray_placement
from tasks.cluster.address import asks_for_token, check_ray_address
from tasks.cluster.placement import Placement, check_nodes, cluster_nodes, node_memories, place_workers
from tasks.cluster.python_path import ROOT
from tasks.config.training import BackendSettings
from tasks.data.trajectories import read_trajectories
from tasks.rollout.served_policy import ServedAt
from tasks.runs.progress import Progress
from tasks.stages.evaluate import evaluate
from tasks.stages.prepare import prepare
from tasks.stages.train import TrainSession
from tasks.verl.process import RayTrainingProcess, await_actor, environment_of
from tests.support.sockets import SocketWatch, free_port
from tests.support.tiny_model import save_tiny_model
from tests.support.verl_toy import toy_pipeline

pytestmark = pytest.mark.slow
STEPS = 2


def backend(workers: int, *, tensor_parallel: int = 1) -> BackendSettings:
    return BackendSettings(device="cpu", rollout="cpu", workers=workers, tensor_parallel=tensor_parallel)


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


def test_what_fits_on_no_nodes_is_refused_at_once(cluster: str) -> None:
    with pytest.raises(ConfigError) as error:
        place_workers(backend(3))
    assert str(error.value).startswith("backend.workers 3 cannot be placed: free are 1 GPU on ")
    assert str(error.value).endswith("set it to 2")
    with pytest.raises(ConfigError, match=r"a multiple of backend\.tensor_parallel 2; add nodes"):
        place_workers(backend(2, tensor_parallel=2))


def test_the_nodes_are_asked_for_their_memory(cluster: str, tmp_path: Path) -> None:
    two_workers = {"device": "cpu", "rollout": "cpu", "workers": 2}
    pipeline = toy_pipeline(save_tiny_model(tmp_path), backend=two_workers)
    two_nodes = Placement(nodes=2, workers_per_node=1)
    check_nodes(pipeline, two_nodes, environment=environment_of(pipeline))
    train = pipeline.train.model_copy(update={"micro_batch_tokens": 10**9})
    too_much = pipeline.model_copy(update={"train": train})
    with pytest.raises(ConfigError, match=r"to train, and node [\d.]+ has .*; set train.micro_batch_tokens"):
        check_nodes(too_much, two_nodes, environment=environment_of(pipeline))


def test_a_node_that_does_not_answer_is_named(cluster: str, tmp_path: Path) -> None:
    # Of every Python process of the node: as if this project were not there.
    (tmp_path / "sitecustomize.py").write_text('import sys; sys.modules["tasks.cluster.memory"] = None')
    line = rf"^node [\d.]+ of the Ray cluster does not say .* \({{}}.*\); it needs this checkout at {ROOT}, "
    with pytest.raises(ConfigError, match=line.format(r"RayTaskError.*ModuleNotFoundError: import of tasks")):
        node_memories("cpu", environment={"PYTHONPATH": str(tmp_path)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ray_placement, "MEMORY_TIMEOUT_S", 0.0)
        with pytest.raises(ConfigError, match=line.format("GetTimeoutError")):
            node_memories("cpu", environment={})


def test_a_process_that_cannot_be_started_is_an_error_of_one_line(cluster: str) -> None:
    import ray

    actor = ray.remote(Bare).options(num_cpus=0, runtime_env={"conda": "absent"}).remote()
    with pytest.raises(WingspanError, match=r"^training failed: RuntimeEnvSetupError: .*conda") as error:
        await_actor(actor.answer.remote(), failure="training failed")
    assert "\n" not in str(error.value)


class Bare:
    """An actor that has little to do."""

    def answer(self) -> int:
        return 1


def test_a_cluster_is_joined_with_its_token_alone(cluster: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_ray_address()
    assert asks_for_token()
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 64)
    with pytest.raises(ConfigError, match=r"refuses this process's token; set RAY_AUTH_MODE=token"):
        check_ray_address()


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


class Questioner(threading.Thread):
    """Asks the served policy again and again, from before it is there until it is gone."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._client = openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=60)
        self.fingerprints: list[str | None] = []
        self.is_over = threading.Event()

    def run(self) -> None:
        message: Any = {"role": "user", "content": "Are you there?"}
        while not self.is_over.wait(0.1):
            with suppress(openai.APIConnectionError):
                answer = self._client.chat.completions.create(
                    model="policy", messages=[message], max_tokens=4
                )
                self.fingerprints.append(answer.system_fingerprint)


@pytest.mark.nightly
def test_a_program_is_trained_token_exactly_on_two_nodes_and_its_policy_answers_meanwhile(
    cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program uses OpenAI's client. A rank and a sampler are on each node; what two ranks compute is
    compared with one in `test_verl_ranks.py`.
    """
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    log = tmp_path / "log"
    for side, count in (("train", 4), ("test", 2)):
        rows = [{"question": f"{side} {n}?", "log": str(log)} for n in range(count)]
        Path(f"data/{side}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    model = save_tiny_model(tmp_path / "model")
    pipeline = toy_pipeline(
        model,
        data={
            "parts": {"asked": {"env": "question", "train": "data/train.jsonl", "test": "data/test.jsonl"}}
        },
        agent={"program": "tests.support.program_toy:play"},
        train__steps=STEPS,
        train__steps_per_round=STEPS,
        rollout__items_per_step=2,
        evaluate__quick_items=2,
        backend={"device": "cpu", "rollout": "cpu", "workers": 2},
    )
    workspace = tmp_path / "run"
    prepare(pipeline, workspace)
    address = ServedAt(host="127.0.0.1", port=free_port(), token=None)
    questioner = Questioner(address.url)
    questioner.start()
    versions_after: list[int] = []
    free_gpus: list[list[int]] = []

    def on_step(values: Mapping[str, float]) -> None:
        episodes = rollout(
            ["And now?"],
            agent="raw",
            model=Endpoint(address.url, "policy"),
            limits=EpisodeLimits(max_turns=1, max_tokens_per_turn=4),
        )
        versions_after.extend(turn.completion.policy_version for t in episodes for turn in t.turns)
        free_gpus.append([node.gpus for node in cluster_nodes(free=True)])

    process = RayTrainingProcess(serve=address)
    with (
        SocketWatch() as watch,
        TrainSession(pipeline, workspace, Progress(on_step=on_step), process=process) as session,
    ):
        result = session.evaluate_round(session.train_round(0))
        watch.note()
        questioner.is_over.set()
        policy = session.export()
    questioner.join()
    assert free_gpus == [[0, 0]] * STEPS
    assert watch.has_seen("WorkerDict")
    assert watch.open_to_others == {}  # gloo's, between the ranks, among them
    actor = workspace / "train" / "checkpoints" / f"global_step_{STEPS}" / "actor"
    assert sorted(file.name for file in actor.glob("model_*.pt")) == [
        "model_world_size_2_rank_0.pt",
        "model_world_size_2_rank_1.pt",
    ]
    assert (policy / "model.safetensors").exists()
    assert result.evaluation["episodes"] == 2
    assert versions_after == [1, 2]  # after each step, the weights of that step
    versions = [int((request or "").removeprefix("policy_version=")) for request in questioner.fingerprints]
    assert set(versions) <= set(range(STEPS + 1))
    assert len(set(versions)) > 1
    assert versions == sorted(versions)

    evaluate(pipeline, workspace)
    evaluation = json.loads((workspace / "evaluation.json").read_text())
    assert evaluation["after"]["sampled"]["turns"] == 2

    clients = [json.loads(line) for line in log.read_text().splitlines()]
    talk_by_texts = {json.dumps([request["says"] for request in talk]): talk for talk in clients}
    for step in range(1, STEPS + 1):
        trajectories = read_trajectories(workspace / "train" / "trajectories" / f"step_{step:04d}.jsonl")
        assert len(trajectories) == 2 * 4
        for trajectory in trajectories:
            talk = talk_by_texts[json.dumps([turn.text for turn in trajectory.turns])]
            assert {request["fingerprint"] for request in talk} == {f"policy_version={step - 1}"}
            assert {turn.completion.policy_version for turn in trajectory.turns} == {step - 1}
            assert trajectory.reward == float(len(talk[-1]["says"]) % 2 == 0)
            # What the client was told of its requests is where the mask is 1, and nothing else is.
            (segment,) = pack(trajectory)
            mask = [0] * len(segment.prompt_ids) + list(segment.response_mask)
            request_mask = [0] * len(mask)
            for request in talk:
                begins = request["prompt_tokens"]
                request_mask[begins : begins + request["completion_tokens"]] = [1] * request[
                    "completion_tokens"
                ]
            assert mask == request_mask
    first = read_trajectories(workspace / "train" / "trajectories" / "step_0001.jsonl")
    assert_sampled_by(model, first, temperature=1.3)


def assert_sampled_by(model: Path, trajectories: list[Trajectory], *, temperature: float) -> None:
    """Transformers' own forward pass gives every trained token the log-prob that was recorded."""
    import torch
    from transformers import AutoModelForCausalLM

    policy = AutoModelForCausalLM.from_pretrained(model)
    for trajectory in trajectories:
        for segment in pack(trajectory):
            ids = torch.tensor(segment.prompt_ids + segment.response_ids)
            with torch.no_grad():
                logits = policy(ids[None]).logits[0, :-1] / temperature
            logprobs = torch.log_softmax(logits, -1).gather(-1, ids[1:, None])[:, 0]
            is_sampled = torch.tensor(segment.response_mask, dtype=torch.bool)
            ours = torch.tensor(segment.logprobs)[is_sampled]
            torch.testing.assert_close(
                logprobs[len(segment.prompt_ids) - 1 :][is_sampled], ours, atol=1e-4, rtol=0
            )


def _wait_for(seconds: float, work: Any) -> Any:
    from concurrent.futures import ThreadPoolExecutor

    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(work).result(timeout=seconds)
    finally:
        pool.shutdown(wait=False)
