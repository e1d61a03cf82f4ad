"""verl's workers in this process, without Ray: for the warm-up, and to measure and test an update alone."""

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.config.pipelines import Pipeline
from tasks.verl.config import verl_config

if TYPE_CHECKING:
    from verl.workers.engine_workers import ActorRolloutRefWorker


def join_process_group(*, rank: int = 0, size: int = 1, port: int | None = None) -> None:
    """Make this process one of a process group of `size` on this machine, which torch finds by environment
    variables. `port`: of the process of rank 0; None takes a free one, which the others cannot know."""
    if port is None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def start_actor(pipeline: Pipeline, *, model: Path) -> "ActorRolloutRefWorker":
    """verl's worker with policy, optimizer and loss as the training process starts it.

    The caller has joined a process group.
    """
    import verl  # noqa: F401  # loads the CPU's plugin
    from verl.workers.engine_workers import ActorRolloutRefWorker

    from tasks.verl.loss import set_loss

    config = verl_config(pipeline, model=model, checkpoints=model)
    worker = ActorRolloutRefWorker(config.actor_rollout_ref, role="actor")
    worker.init_model()
    set_loss(worker, pipeline.train, context_length=pipeline.rollout.context_length)
    return worker
