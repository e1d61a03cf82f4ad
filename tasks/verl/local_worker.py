"""verl's workers in this process, without Ray: for the warm-up, and to measure and test an update alone."""

import os
import socket
from pathlib import Path
from typing import Any

from tasks.config.pipelines import Pipeline
from tasks.verl.config import verl_config


def join_process_group_of_one() -> None:
    """Make this process the only one of its process group, which torch finds by environment variables."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ |= {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def start_actor(pipeline: Pipeline, *, model: Path) -> Any:
    """verl's worker with policy, optimizer and loss as the training process starts it."""
    import verl  # noqa: F401  # loads the CPU's plugin
    from verl.workers.engine_workers import ActorRolloutRefWorker

    from tasks.verl.loss import set_loss

    join_process_group_of_one()
    config = verl_config(pipeline, model=model, checkpoints=model)
    worker = ActorRolloutRefWorker(config.actor_rollout_ref, role="actor")
    worker.init_model()
    set_loss(worker, pipeline.train, context_length=pipeline.rollout.context_length)
    return worker
