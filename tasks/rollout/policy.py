"""Episodes with one model that is not being trained: for evaluation, and to sample data.

On a CPU the sampler is in this process; on GPUs verl's generation servers are started with the policy; a
model behind an endpoint is asked by messages.
"""

import asyncio
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from agents.clients.endpoint import ChatClient, Endpoint
from agents.rollout.group import Callbacks
from agents.samplers.local import LocalModel
from agents.samplers.vllm import find_python
from agents.types import Trajectory
from envs.types import Item
from tasks.config.pipelines import Pipeline
from tasks.rollout.current_episode import EpisodeWriter, OnTrajectory
from tasks.rollout.runner import RolloutRunner, RolloutSpec, make_endpoint_runner, make_runner

RunPolicy = Callable[[Sequence[Item], RolloutSpec], list[list[Trajectory]]]
"""A blocking call of `RolloutRunner.run` with one policy."""


@contextmanager
def open_policy(
    pipeline: Pipeline,
    *,
    model: Endpoint | str,
    on_trajectory: OnTrajectory = lambda _: None,
    episode_file: Path | None = None,
) -> Iterator[RunPolicy]:
    """Run episodes of `pipeline` with `model` while the context is open.

    `model` is an endpoint, or the folder of a policy; on GPUs also a name on a hub. `on_trajectory` is called
    in this process, for servers after each rollout. `episode_file`: where an `EpisodeWriter` writes, for a
    terminal. Raises `ConfigError` for a model that cannot be loaded and an endpoint that does not answer.
    """
    if not isinstance(model, Endpoint) and pipeline.backend.rollout == "vllm":
        with _open_servers(
            pipeline, model=model, on_trajectory=on_trajectory, episode_file=episode_file
        ) as run:
            yield run
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
                if isinstance(chosen_model, Endpoint):
                    await ChatClient(chosen_model).check()
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


@contextmanager
def _open_servers(
    pipeline: Pipeline, *, model: str, on_trajectory: OnTrajectory, episode_file: Path | None
) -> Iterator[RunPolicy]:
    """Run episodes on the generation servers that training would use, in a process that does not train."""
    import ray

    from tasks.cluster.session import connect_ray, disconnect_ray, result_of
    from tasks.verl.actor import launch

    owns_ray = connect_ray(pipeline)
    with tempfile.TemporaryDirectory() as no_checkpoints:
        trainer = launch(pipeline, model=model, checkpoints=Path(no_checkpoints), episode_file=episode_file)
        is_started = False

        def run(items: Sequence[Item], spec: RolloutSpec) -> list[list[Trajectory]]:
            nonlocal is_started
            if not is_started:
                result_of(trainer.start.remote(items))
                is_started = True
            groups: list[list[Trajectory]] = result_of(trainer.run_rollout.remote(items, spec))
            for group in groups:
                for trajectory in group:
                    on_trajectory(trajectory)
            return groups

        try:
            yield run
        finally:
            ray.kill(trainer)
            if owns_ray:
                disconnect_ray()
