"""Episodes with one saved policy, outside of training: for evaluation, and to sample data.

On a CPU the sampler is in this process; on GPUs verl's generation servers are started with the policy.
"""

import asyncio
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from agents.rollout.group import Callbacks
from agents.samplers.local import LocalModel
from agents.types import Trajectory
from envs.types import Item
from tasks.config.pipelines import Pipeline
from tasks.data.items import read_items
from tasks.rollout.factory import make_runner
from tasks.rollout.runner import RolloutSpec

RunPolicy = Callable[[Sequence[Item], RolloutSpec], list[list[Trajectory]]]
"""A blocking call of `RolloutRunner.run` with one policy."""


def open_policy(
    pipeline: Pipeline, *, model: str, workspace: Path, count: Callable[[int], None] = lambda _: None
) -> AbstractContextManager[RunPolicy]:
    """Run episodes of `pipeline` with the policy in the folder `model` while the context is open.

    `workspace` has the items of `pipeline`; `count` gets the number of episodes that have just ended.
    """
    open_runner = _open_servers if pipeline.backend.rollout == "vllm" else _open_sampler
    return open_runner(pipeline, model=model, workspace=workspace, count=count)


@contextmanager
def _open_sampler(
    pipeline: Pipeline, *, model: str, workspace: Path, count: Callable[[int], None]
) -> Iterator[RunPolicy]:
    """Run episodes with the CPU sampler, in this process; `count` gets the number that have just ended."""
    local = LocalModel(Path(model), seed=pipeline.seed, max_sequences=pipeline.backend.max_sequences)
    with local.load(context_length=pipeline.rollout.context_length) as sampling:

        async def gather(items: Sequence[Item], spec: RolloutSpec) -> list[list[Trajectory]]:
            runner = make_runner(
                pipeline, sampler=sampling.sampler, tokenizer=sampling.tokenizer, processor=sampling.processor
            )
            try:
                return await runner.run(items, spec, Callbacks(on_trajectory=lambda _: count(1)))
            finally:
                await runner.close()

        yield lambda items, spec: asyncio.run(gather(items, spec))


@contextmanager
def _open_servers(
    pipeline: Pipeline, *, model: str, workspace: Path, count: Callable[[int], None]
) -> Iterator[RunPolicy]:
    """Run episodes on the generation servers that training would use, in a process that does not train."""
    import ray

    from tasks.cluster.session import connect_ray, end_local_ray, result_of
    from tasks.verl.actor import launch

    owns_ray = connect_ray(pipeline)
    with tempfile.TemporaryDirectory() as no_checkpoints:
        trainer = launch(pipeline, model=model, checkpoints=Path(no_checkpoints))

        def run(items: Sequence[Item], spec: RolloutSpec) -> list[list[Trajectory]]:
            groups: list[list[Trajectory]] = result_of(trainer.run_rollout.remote(items, spec))
            count(sum(map(len, groups)))
            return groups

        try:
            items = read_items(workspace / "data" / "train.jsonl", data=pipeline.data)
            result_of(trainer.start.remote(items))
            yield run
        finally:
            ray.kill(trainer)
            if owns_ray:
                end_local_ray()
