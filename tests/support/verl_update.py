"""verl's update of the policy on given trajectories, in this process: all of a step that needs no Ray."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agents.types import Trajectory
from tasks.config.pipelines import Pipeline
from tasks.verl.config import verl_config
from tasks.verl.local_worker import start_actor
from tasks.verl.rows import Row, fields_of, rows_of

STEP = 1


@contextmanager
def policy_worker(pipeline: Pipeline, model: Path) -> Iterator[Any]:
    """verl's worker with policy and optimizer as `pipeline` composes them; one at a time."""
    import torch

    yield start_actor(pipeline, model=model)
    torch.distributed.destroy_process_group()


def update(
    worker: Any,
    pipeline: Pipeline,
    groups: Sequence[Sequence[Trajectory]],
    *,
    reference: Sequence[Sequence[Trajectory]] | None = None,
) -> dict[str, list[float]]:
    """One training step's optimizer steps, with the loss of `pipeline`; verl's metrics, a list each.

    `reference`: `groups` with the log-probs of the reference policy.
    """
    from tensordict import TensorDict
    from verl.utils import tensordict_utils as tu

    from tasks.verl.loss import set_loss
    from tasks.verl.trainer import update_options

    set_loss(worker, verl_config(pipeline, model="", checkpoints=Path()))

    rows = rows_of_all(groups)
    data: TensorDict = fields_of(rows)
    data["old_log_probs"] = data["rollout_log_probs"]
    data["advantages"] = advantages(rows, data)
    if reference is not None:
        data["ref_log_prob"] = fields_of(rows_of_all(reference))["rollout_log_probs"]
    tu.assign_non_tensor(
        data, **update_options(pipeline, rows=len(rows), step=STEP, temperature=pipeline.rollout.temperature)
    )
    metrics: dict[str, list[float]] = tu.get(worker.update_actor(data), "metrics")
    return metrics


def advantages(rows: Sequence[Row], fields: Any) -> Any:
    """As verl's trainer computes them; nested, [rows, tokens]."""
    import numpy as np
    from verl import DataProto
    from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories
    from verl.workers.utils.padding import response_to_nested

    data = DataProto(batch=fields.select("response_mask", "rm_scores").to_padded_tensor())
    data.batch["token_level_rewards"] = data.batch["rm_scores"]
    data.non_tensor_batch["uid"] = np.array([row.uid for row in rows], dtype=object)
    compute_advantage_for_multi_trajectories(data, batch_keys=[row.key for row in rows], adv_estimator="grpo")
    return response_to_nested(data.batch["advantages"], fields["response_mask"])


def rows_of_all(groups: Sequence[Sequence[Trajectory]]) -> list[Row]:
    """In order; each group's uid is its index."""
    return [row for index, group in enumerate(groups) for row in rows_of(f"group{index}", list(group))]
