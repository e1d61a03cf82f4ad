"""verl's client and our sampler over a real Ray actor: what has died, and requests that nobody waits for."""

import asyncio
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from agents.samplers.sampler import ScriptedSampler
from agents.types import SamplingParams, Trajectory
from envs.errors import ConfigError, SamplerFailed, WingspanError
from tasks.cluster.placement import Placement
from tasks.cluster.session import start_local_ray
from tasks.config.pipelines import Pipeline, load_pipeline
from tasks.data.items import evaluation_turns, split
from tasks.errors import SamplerDied, names_dead_engine
from tasks.evaluation.policy import open_policy
from tasks.rollout.spec import RolloutSpec
from tasks.verl import servers
from tasks.verl.process import await_actor
from tasks.verl.queue import POLL_S, ActorWatch
from tasks.verl.rollout import VerlSampler
from tasks.verl.servers import load_weights, open_servers, servers_config
from tests.support.engine_server import EngineServer
from tests.support.waiting import wait_until_async

pytestmark = pytest.mark.slow

PARAMS = SamplingParams(max_tokens=4)


@dataclass(frozen=True, slots=True)
class Engine:
    """A server, and a sampler that asks it."""

    server: Any
    sampler: VerlSampler


@pytest.fixture(scope="module")
def engine(verl: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """In a Ray whose actors can import a module that this process cannot."""
    import ray
    from omegaconf import OmegaConf

    from tasks.verl.client import DirectClient

    folder = tmp_path_factory.mktemp("there")
    (folder / "engine_there.py").write_text("class EngineDeadError(Exception): ...\n")
    start_local_ray(num_cpus=16, num_gpus=3)  # of each test that starts servers, one
    paths = {"env_vars": {"PYTHONPATH": f"{Path(__file__).parents[2]}:{folder}"}}
    server = ray.remote(EngineServer).options(num_cpus=0, runtime_env=paths).remote()
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": {"name": "vllm"}}})
    yield Engine(server, VerlSampler(DirectClient(config, servers=[server])))
    ray.shutdown()


@pytest.fixture
def start(engine: Engine) -> Callable[[str], Engine]:
    """Start the engine anew: with a failure, or "" for none."""
    import ray

    def start_with(failure: str) -> Engine:
        ray.get(engine.server.start.remote(failure))
        return engine

    return start_with


@pytest.mark.parametrize("failure", ["dead", "dead elsewhere", "dead beneath"])
def test_a_dead_engine_in_a_living_actor_is_a_dead_sampler(
    start: Callable[[str], Engine], failure: str
) -> None:
    import ray

    engine = start(failure)
    with pytest.raises(SamplerDied, match="engine died"):
        asyncio.run(engine.sampler.sample((1, 2), params=PARAMS, episode_id="e"))
    assert ray.get(engine.server.state.remote()) == (0, 0)  # the actor lives


def test_the_trainers_own_calls_to_a_dead_engine_start_training_anew(start: Callable[[str], Engine]) -> None:
    """A session goes on from the last checkpoint where a call ends in `SamplerDied`."""
    server = start("dead elsewhere").server
    with pytest.raises(SamplerDied, match="after step 0: the sampler's engine died"):
        await_actor(server.generate.remote(request_id="sleep"), failure="training failed after step 0")


class Gate:
    """An actor that answers `wait` after `open`."""

    def __init__(self) -> None:
        self._is_open = asyncio.Event()

    async def wait(self) -> str:
        await self._is_open.wait()
        return "open"

    async def open(self) -> None:
        self._is_open.set()


@pytest.mark.usefixtures("engine")
def test_a_call_of_an_actor_is_polled_until_it_answers() -> None:
    import ray

    gate = ray.remote(Gate).options(num_cpus=0).remote()
    answer = await_actor(gate.wait.remote(), failure="waiting failed", while_waiting=gate.open.remote)
    assert answer == "open"


class Sampler:
    """One that cannot be made with what it is given."""

    def __init__(self, context_length: int) -> None:
        raise ConfigError(f"context_length {context_length} is too long; lower it")

    def sample(self) -> None: ...


class Trainer:
    """One that waits for such a sampler."""

    def start(self) -> None:
        import ray

        ray.get(ray.remote(Sampler).options(num_cpus=0).remote(4096).sample.remote())


def test_a_mistake_in_the_configuration_that_an_actor_finds_is_not_tried_again(engine: Engine) -> None:
    """A session tries again after `RayActorError`, which this would be."""
    import ray

    for answer in (
        ray.remote(Trainer).options(num_cpus=0).remote().start.remote(),
        ray.remote(Sampler).options(num_cpus=0).remote(4096).sample.remote(),
    ):
        with pytest.raises(ConfigError, match=r"^context_length 4096 is too long; lower it$"):
            await_actor(answer, failure="training failed")


def test_what_the_engine_survives_does_not_end_the_run(start: Callable[[str], Engine]) -> None:
    sampler = start("bad request").sampler
    with pytest.raises(Exception, match="bad request") as failure:
        asyncio.run(sampler.sample((1, 2), params=PARAMS, episode_id="e"))
    assert not isinstance(failure.value, SamplerDied)
    assert not names_dead_engine(failure.value)


async def test_a_cancelled_episode_is_aborted_on_its_server(start: Callable[[str], Engine]) -> None:
    engine = start("")

    async def wait_for(state: tuple[int, int]) -> None:
        async def is_reached() -> bool:
            return tuple(await engine.server.state.remote()) == state

        await wait_until_async(is_reached, poll_s=0.05)

    cancelled_request, other_request = (
        asyncio.create_task(engine.sampler.sample((1, 2), params=PARAMS, episode_id=name)) for name in "ab"
    )
    await wait_for((2, 0))
    cancelled_request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled_request
    await wait_for((1, 1))
    assert not other_request.done()
    other_request.cancel()


async def test_an_episode_stays_on_its_server_and_a_new_one_goes_to_the_least_loaded(
    start: Callable[[str], Engine],
) -> None:
    """By the servers' own counts of the requests that run."""
    import ray
    from omegaconf import OmegaConf

    from tasks.verl.client import DirectClient

    start("")
    servers = [ray.remote(EngineServer).options(num_cpus=0).remote() for _ in range(3)]
    ray.get([server.start.remote("") for server in servers])
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": {"name": "vllm"}}})
    sampler = VerlSampler(DirectClient(config, servers=servers))

    async def running() -> list[int]:
        return [(await server.state.remote())[0] for server in servers]

    async def ask(episode: str, expected: list[int]) -> asyncio.Task[Any]:
        request = asyncio.create_task(sampler.sample((1, 2), params=PARAMS, episode_id=episode))

        async def is_running() -> bool:
            return await running() == expected

        await wait_until_async(is_running, poll_s=0.05)
        return request

    a = await ask("a", [1, 0, 0])
    b = await ask("b", [1, 1, 0])
    await ask("c", [1, 1, 1])
    await ask("d", [2, 1, 1])
    b.cancel()
    await ask("a", [3, 0, 1])  # its server has its keys and values, and most requests
    await ask("e", [3, 1, 1])
    assert not a.done()


@pytest.mark.usefixtures("engine")
async def test_samplers_on_a_cpu_answer_as_they_do_in_this_process() -> None:
    """Episodes with one prompt share a sampler; its errors, and its death, keep their types."""
    import ray

    from tasks.verl.cpu.rollout import ActorSampler

    actors = [
        ray.remote(ScriptedSampler).options(num_cpus=0).remote([text], encode=str.encode)
        for text in ("first", "second")
    ]
    sampler = ActorSampler(actors)

    async def sample(prompt_ids: tuple[int, ...], episode_id: str) -> bytes:
        params = SamplingParams(max_tokens=9)
        return bytes((await sampler.sample(prompt_ids, params=params, episode_id=episode_id)).token_ids)

    async def ask_until_killed() -> None:
        while True:
            with suppress(SamplerFailed):
                await sample((1, 2, 3), "a")

    assert [await sample((1, 2), "a"), await sample((3,), "b"), await sample((1, 2), "c")] == [
        b"first",
        b"second",
        b"first",
    ]
    with pytest.raises(SamplerFailed, match=r"^a: the script has 1 texts"):
        await sample((1, 2, 3), "a")
    ray.kill(actors[0])
    with pytest.raises(SamplerDied, match=r"^the sampler died: Actor"):
        await ask_until_killed()


@pytest.mark.usefixtures("engine")
def test_a_sampler_that_is_dead_when_it_is_to_get_weights_is_a_dead_sampler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has died while the trainer computed, and Ray has forgotten its name."""
    from tasks.verl.cpu.rollout import CpuRollout

    monkeypatch.setenv("RANK", "0")
    settings = SimpleNamespace(
        tensor_model_parallel_size=1, data_parallel_size=1, engine_kwargs={"cpu": {"samplers": 1}}
    )
    rollout = object.__new__(CpuRollout)
    rollout.config = settings
    with pytest.raises(SamplerDied, match="wingspan_cpu_sampler_0_0"):
        asyncio.run(rollout.update_weights(iter([]), global_steps=3))


@pytest.mark.usefixtures("engine")
def test_the_death_of_a_watched_actor_is_noticed() -> None:
    import ray

    has_died = threading.Event()
    actor = ray.remote(EngineServer).options(num_cpus=0).remote()
    ray.get(actor.start.remote(""))
    watch = ActorWatch([actor], on_death=has_died.set)
    assert not has_died.wait(2 * POLL_S)
    ray.kill(actor)
    assert has_died.wait(60)
    watch.stop()


@pytest.mark.usefixtures("engine")
def test_other_weights_reach_every_server_before_it_forgets_the_keys_of_the_old_ones() -> None:
    import ray

    servers = [ray.remote(EngineServer).options(num_cpus=0).remote() for _ in range(2)]
    asyncio.run(load_weights(servers, "runs/a/policy"))
    expected = [("reload_weights", {"weights_path": "runs/a/policy"}), "clear_kv_cache"]
    assert ray.get([server.calls.remote() for server in servers]) == [expected, expected]


@pytest.mark.parametrize("algorithm", ["grpo", "dpo", "agentevol"])
def test_servers_load_weights_by_themselves_for_every_algorithm(verl: ModuleType, algorithm: str) -> None:
    values = load_pipeline({"grpo": "textcraft-gpu"}.get(algorithm, f"textcraft-{algorithm}-cpu"))
    backend = {"device": "cuda", "rollout": "vllm", "workers": 2}
    pipeline = Pipeline.model_validate(values.model_dump() | {"backend": backend})
    config = servers_config(pipeline, model=pipeline.model, placement=Placement(nodes=1, workers_per_node=2))
    rollout = config.actor_rollout_ref.rollout
    assert (rollout.load_format, rollout.nnodes, rollout.n_gpus_per_node) == ("auto", 1, 2)


@pytest.mark.usefixtures("engine")
def test_servers_without_a_trainer_run_the_episodes_that_the_policy_runs_in_this_process(
    tmp_path: Path,
) -> None:
    """With verl's own manager of servers, started with a policy's weights as on GPUs."""
    pipeline = load_pipeline("textcraft-cpu")
    items = split(pipeline.data).test[:3]
    spec = RolloutSpec(name="s", max_turns=evaluation_turns(pipeline), num_samples=2, temperature=1.0)
    reported: list[Trajectory] = []
    with open_policy(pipeline, model=pipeline.model, logs=tmp_path / "logs") as run:
        expected_groups = run(items, spec)
    with open_servers(pipeline, logs=tmp_path / "logs") as policy_servers:
        groups = policy_servers.run(
            pipeline.model, items, spec, on_trajectory=reported.append, episode_file=tmp_path / "episode.json"
        )
        many = replace(spec, num_samples=200)
        with pytest.raises(WingspanError) as failure:  # they die while they are polled
            policy_servers.run(pipeline.model, items, many, on_trajectory=lambda _: policy_servers.end())
    assert re.fullmatch(
        rf"episodes with {pipeline.model} failed: a process of the servers died \(\w+\); run the same "
        rf"command again; see Ray's logs in {tmp_path}/logs",
        str(failure.value),
    )

    def tokens(groups: list[list[Trajectory]]) -> list[Any]:
        return [[[turn.completion.token_ids for turn in t.turns] for t in group] for group in groups]

    def keys(trajectories: Iterable[Trajectory]) -> list[tuple[str, int]]:
        return [(trajectory.item.item_id, trajectory.sample_index) for trajectory in trajectories]

    assert tokens(groups) == tokens(expected_groups)
    assert sorted(keys(reported)) == sorted(keys(chain.from_iterable(groups)))
    assert {turn.completion.policy_version for turn in groups[0][0].turns} == {0}
    assert (tmp_path / "episode.json").exists()


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize(
    ("limit_s", "message"),
    [
        (servers.START_TIMEOUT_S, r"^episodes with \S+/nowhere failed: .*; see Ray's logs in "),
        (0.0, r"^the servers of \S+/nowhere have not started within 0 minutes; run .*; see Ray's logs in "),
    ],
)
def test_servers_that_fail_leave_the_logs_of_ray(
    limit_s: float, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are asked for a policy that does not exist; within 0 s they have not even found that out."""
    monkeypatch.setattr(servers, "START_TIMEOUT_S", limit_s)
    pipeline, logs = load_pipeline("textcraft-cpu"), tmp_path / "logs"
    spec = RolloutSpec(name="s", max_turns=evaluation_turns(pipeline), num_samples=1, temperature=1.0)
    with open_servers(pipeline, logs=logs) as policy_servers, pytest.raises(WingspanError) as failure:
        policy_servers.run(str(tmp_path / "nowhere"), split(pipeline.data).test[:1], spec)
    assert re.search(message, str(failure.value))
    assert str(failure.value).endswith(str(logs))
    assert "\n" not in str(failure.value)
    assert list(logs.glob("raylet*")), "Ray's own logs"
    assert list(logs.glob("worker-*")), "those of the processes"
