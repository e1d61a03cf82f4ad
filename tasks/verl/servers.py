"""Generation servers of verl without a trainer, with one policy after another: evaluation on GPUs.

vLLM takes most of a minute to start, and a policy's weights are loaded in seconds. So the servers stay up,
and load the weights of the next policy.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agents.huggingface.files import load_tokenizer
from agents.rollout.group import Callbacks
from agents.types import Trajectory
from envs.errors import BudgetSpent, ConfigError, MissingDependency, WingspanError
from envs.types import Item
from tasks.cluster.placement import Placement, place_workers
from tasks.cluster.session import connect_ray, disconnect_ray, keep_logs
from tasks.config.pipelines import Pipeline
from tasks.errors import actor_deaths
from tasks.rollout.current_episode import EpisodeWriter, OnTrajectory
from tasks.rollout.runner import make_runner
from tasks.rollout.spec import RolloutSpec
from tasks.verl.cpu import fork_server
from tasks.verl.process import await_actor, end_actor, runtime_env_of

if TYPE_CHECKING:
    from omegaconf import DictConfig
    from ray import ObjectRef
    from ray.actor import ActorHandle

START_TIMEOUT_S = 1800.0
"""The time for the servers to start: vLLM takes 1 to 3 minutes, and longer where it downloads the model."""

Episodes = list[list[Trajectory]]
"""A group for each item, as `RolloutRunner.run` returns them."""


class PolicyServers:
    """Runs episodes on servers that start with the first policy; in a process that is connected to Ray."""

    def __init__(self, pipeline: Pipeline, *, logs: Path) -> None:
        self._pipeline = pipeline
        self._logs = logs
        self._actor: ActorHandle | None = None
        self._model: str | None = None

    def run(
        self,
        model: str,
        items: Sequence[Item],
        spec: RolloutSpec,
        *,
        on_trajectory: OnTrajectory = lambda _: None,
        episode_file: Path | None = None,
    ) -> Episodes:
        """`RolloutRunner.run` with `model`, a folder or a name on a hub; every later one must have the shape
        of the first. `on_trajectory` is called in this process, within some seconds of the end of each
        episode. `episode_file`: where an `EpisodeWriter` writes, for a terminal.

        Raises `ConfigError` if the session has no place for `backend.workers`, and `WingspanError` if servers
        or episodes fail, or if the servers do not start in time.
        """
        with self._failures_with_logs(model):
            actor = self._actor
            if actor is None:
                actor = self._actor = self._launch(model)
                self._await_start(actor, model)
            elif model != self._model:
                self._await(actor.load.remote(model), model=model)
            self._model = model
            answer = actor.run.remote(items, spec, episode_file)

            def report() -> None:
                for trajectory in self._await(actor.take_finished.remote(), model=model):
                    on_trajectory(trajectory)

            episodes: Episodes = self._await(answer, model=model, while_waiting=report)
            report()  # those since the last poll
            return episodes

    def _await_start(self, actor: "ActorHandle", model: str) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S

        def check_time() -> None:
            if time.monotonic() > deadline:
                raise WingspanError(
                    f"the servers of {model} have not started within {START_TIMEOUT_S / 60:.0f} minutes; run "
                    "the same command again, and download a model of a hub first (hf download)"
                )

        self._await(actor.start.remote(), model=model, while_waiting=check_time)

    def _await(
        self, answer: "ObjectRef", *, model: str, while_waiting: Callable[[], object] = lambda: None
    ) -> Any:
        return await_actor(answer, failure=f"episodes with {model} failed", while_waiting=while_waiting)

    @contextmanager
    def _failures_with_logs(self, model: str) -> Iterator[None]:
        """Keep Ray's logs if servers or episodes fail, and name their folder."""
        failures: tuple[type[Exception], ...] = (*actor_deaths(), WingspanError)
        try:
            yield
        except (ConfigError, MissingDependency, BudgetSpent):
            raise
        except failures as error:
            text = str(error)
            if not isinstance(error, WingspanError):
                text = (
                    f"episodes with {model} failed: a process of the servers died ({type(error).__name__}); "
                    "run the same command again"
                )
            place = f"; see Ray's logs in {self._logs}" if keep_logs(self._logs) else ""
            raise WingspanError(text + place) from error

    def _launch(self, model: str) -> "ActorHandle":
        import ray

        return (
            ray.remote(ServersProcess)
            .options(num_cpus=0, runtime_env=runtime_env_of(self._pipeline))
            .remote(self._pipeline, model=model, placement=place_workers(self._pipeline.backend))
        )

    def end(self) -> None:
        """End the servers."""
        if self._actor is not None:
            end_actor(self._actor)


@contextmanager
def open_servers(pipeline: Pipeline, *, logs: Path) -> Iterator[PolicyServers]:
    """`PolicyServers` on the Ray cluster that this process is connected to, else as `connect_ray` does.

    `logs`: where Ray's logs are copied if the servers fail. Ray keeps the servers' GPUs until the session
    ends, so open them once in a session.
    """
    owns_ray = connect_ray(pipeline)
    servers = PolicyServers(pipeline, logs=logs)
    try:
        yield servers
    finally:
        servers.end()
        if owns_ray:
            disconnect_ray()
        fork_server.close()


class ServersProcess:
    """A Ray actor: owns verl's servers, and the environments of the episodes. `start` first."""

    def __init__(self, pipeline: Pipeline, *, model: str, placement: Placement) -> None:
        self._pipeline = pipeline
        self._model = model
        self._placement = placement
        self._finished: list[Trajectory] = []

    async def start(self) -> None:
        """Start the servers with the policy."""
        from verl.workers.rollout.llm_server import LLMServerManager

        from tasks.verl.client import make_sampler
        from tasks.verl.vision import verl_processor

        config = servers_config(self._pipeline, model=self._model, placement=self._placement)
        self._servers = await LLMServerManager.create(config)
        self._sampler = make_sampler(self._servers)
        self._tokenizer = load_tokenizer(self._model)
        self._processor = verl_processor(self._model)

    async def load(self, model: str) -> None:
        """Load the weights of another policy."""
        await load_weights(self._servers.server_handles, model)

    async def run(self, items: Sequence[Item], spec: RolloutSpec, episode_file: Path | None) -> Episodes:
        """`RolloutRunner.run`, with its own environments."""
        callbacks = Callbacks(on_trajectory=self._finished.append)
        if episode_file is not None:
            writer = EpisodeWriter(episode_file, self._pipeline)
            callbacks = writer.callbacks(spec, on_trajectory=self._finished.append)
        runner = make_runner(
            self._pipeline, sampler=self._sampler, tokenizer=self._tokenizer, processor=self._processor
        )
        try:
            runner.check(items)
            return await runner.run(items, spec, callbacks)
        finally:
            await runner.close()

    async def take_finished(self) -> list[Trajectory]:
        """The episodes of `run` that have ended since the last call, in the order of their ends."""
        finished = self._finished.copy()
        self._finished.clear()
        return finished


async def load_weights(servers: Sequence["ActorHandle"], model: str) -> None:
    """Have verl's servers of vLLM load the weights of `model`, which has the shape of theirs."""

    async def load(server: "ActorHandle") -> None:
        await server.collective_rpc.remote("reload_weights", kwargs={"weights_path": model})
        await server.clear_kv_cache.remote()  # keys and values are those of the old weights

    await asyncio.gather(*map(load, servers))


def servers_config(pipeline: Pipeline, *, model: str, placement: Placement) -> "DictConfig":
    """`verl_config` for servers that load `model` by themselves, on the GPUs that training would have."""
    from omegaconf import OmegaConf, open_dict

    from tasks.verl.config import verl_config

    config = verl_config(pipeline, model=model, checkpoints=Path(), placement=placement)
    options = {
        "load_format": "auto",  # verl's default are random weights, which a trainer replaces
        "nnodes": placement.nodes,
        "n_gpus_per_node": placement.workers_per_node,
    }
    with open_dict(config):
        OmegaConf.update(config, "actor_rollout_ref.rollout", options)
    return config
