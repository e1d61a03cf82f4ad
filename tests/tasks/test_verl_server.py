"""verl's client and our sampler over real Ray actors: dead engines, and requests that nobody waits for."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from agents.types import SamplingParams
from tasks.cluster.session import start_local_ray
from tasks.errors import SamplerDied, names_dead_engine
from tasks.stages.train import TrainSession
from tasks.verl.rollout import VerlSampler
from tests.support.verl_toy import toy_pipeline

pytestmark = pytest.mark.slow


class EngineDeadError(Exception):
    """As vLLM names it."""


class EngineGenerateError(Exception):
    """As vLLM names what may work at the next try."""


class Server:
    """verl's server of one vLLM engine, as far as a client sees it."""

    def __init__(self, failure: str = "") -> None:
        self._failure = failure
        self.aborted_requests: list[str] = []
        self.running = 0

    async def generate(self, *, request_id: str, **_: Any) -> Any:
        if self._failure == "dead":
            raise EngineDeadError
        if self._failure == "dead elsewhere":
            from engine_there import EngineDeadError as Theirs  # type: ignore[import-not-found]

            raise Theirs
        if self._failure == "dead beneath":
            try:
                raise EngineDeadError
            except EngineDeadError as error:
                raise EngineGenerateError from error
        if self._failure:
            raise EngineGenerateError(self._failure)
        self.running += 1
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:  # where vLLM aborts the request
            self.aborted_requests.append(request_id)
            raise
        finally:
            self.running -= 1

    async def state(self) -> tuple[int, int]:
        """(requests that run, requests that were aborted)."""
        return self.running, len(self.aborted_requests)


@pytest.fixture(scope="module")
def cluster(verl: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of modules that actors can import and this process cannot."""
    import ray

    folder = tmp_path_factory.mktemp("there")
    (folder / "engine_there.py").write_text("class EngineDeadError(Exception): ...\n")
    start_local_ray(num_cpus=2)
    yield folder
    ray.shutdown()


def connect(server: Any) -> VerlSampler:
    import ray
    from omegaconf import OmegaConf
    from verl.workers.rollout.router import GlobalRequestLoadBalancer

    from tasks.verl.client import CancellingClient

    balancer = ray.remote(GlobalRequestLoadBalancer).options(num_cpus=0).remote(servers={"one": server})
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": {"name": "vllm"}}})
    return VerlSampler(CancellingClient(config, balancer))


def start(folder: Path, failure: str = "") -> Any:
    import ray

    root = str(Path(__file__).parents[2])
    paths = {"env_vars": {"PYTHONPATH": f"{root}:{folder}"}}
    return ray.remote(Server).options(num_cpus=0, runtime_env=paths).remote(failure)


@pytest.mark.parametrize("failure", ["dead", "dead elsewhere", "dead beneath"])
def test_a_dead_engine_in_a_living_actor_is_a_dead_sampler(cluster: Path, failure: str) -> None:
    import ray

    server = start(cluster, failure)
    with pytest.raises(SamplerDied, match="engine died"):
        asyncio.run(connect(server).sample((1, 2), params=SamplingParams(max_tokens=4), episode_id="e"))
    assert ray.get(server.state.remote()) == (0, 0)  # the actor lives


def test_the_trainers_own_calls_to_a_dead_engine_start_training_anew(cluster: Path, tmp_path: Path) -> None:
    """`_restarting` goes on from the last checkpoint where a call ends in `SamplerDied`."""
    session = TrainSession(toy_pipeline(tmp_path), tmp_path)
    server = start(cluster, "dead elsewhere")
    with pytest.raises(SamplerDied, match="engine died after step 0"):
        session._get(server.generate.remote(request_id="sleep"))


def test_what_the_engine_survives_does_not_end_the_run(cluster: Path) -> None:
    sampler = connect(start(cluster, "bad request"))
    with pytest.raises(Exception, match="bad request") as failure:
        asyncio.run(sampler.sample((1, 2), params=SamplingParams(max_tokens=4), episode_id="e"))
    assert not isinstance(failure.value, SamplerDied)
    assert not names_dead_engine(failure.value)


def test_a_cancelled_episode_is_aborted_on_its_server(cluster: Path) -> None:
    server = start(cluster)

    async def wait_for(state: tuple[int, int]) -> None:
        while tuple(await server.state.remote()) != state:
            await asyncio.sleep(0.05)

    async def play() -> None:
        sampler = connect(server)
        params = SamplingParams(max_tokens=4)
        finished_server, going = (
            asyncio.create_task(sampler.sample((1, 2), params=params, episode_id=name)) for name in "ab"
        )
        await asyncio.wait_for(wait_for((2, 0)), 60)
        finished_server.cancel()
        with pytest.raises(asyncio.CancelledError):
            await finished_server
        await asyncio.wait_for(wait_for((1, 1)), 60)
        assert not going.done()
        going.cancel()

    asyncio.run(play())
