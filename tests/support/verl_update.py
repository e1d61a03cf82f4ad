"""verl's update of the policy on given trajectories, in this process: all of a step that needs no Ray."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agents.types import Trajectory
from tasks.config.pipelines import Pipeline
from tasks.data.trajectories import sampled_tokens
from tasks.verl.local_worker import start_actor
from tasks.verl.rows import Row, conversation_key, fields_of, observation_tokens, rows_of

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
    played_tokens: int | None = None,
) -> dict[str, list[float]]:
    """One training step's optimizer steps, with the loss of `pipeline`; verl's metrics, a list each.

    `reference`: `groups` with the log-probs of the reference policy; `played_tokens`: of the step, by default
    those of `groups`.
    """
    from tensordict import TensorDict
    from verl.utils import tensordict_utils as tu

    from tasks.verl.advantages import estimate_advantages
    from tasks.verl.loss import set_loss
    from tasks.verl.trainer import update_options

    train, context_length = pipeline.train, pipeline.rollout.context_length
    set_loss(worker, train, context_length=context_length)
    rows = rows_of_all(groups)
    data: TensorDict = fields_of(rows, with_observations=train.observation_loss > 0)
    data["old_log_probs"] = data["rollout_log_probs"]
    if reference is not None:
        data["ref_log_prob"] = fields_of(rows_of_all(reference))["rollout_log_probs"]
    data["advantages"], _, _ = estimate_advantages(
        train,
        keys=[row.key for row in rows],
        data=data,
        trajectories={conversation_key(row.key): row.trajectory for row in rows},
        greedy_rewards={},
        num_played=pipeline.rollout.items_per_step * pipeline.rollout.group_size,
        context_length=context_length,
    )
    tokens = sum(sampled_tokens(t) for group in groups for t in group)
    tu.assign_non_tensor(
        data,
        **update_options(
            pipeline,
            rows=len(rows),
            played_tokens=tokens if played_tokens is None else played_tokens,
            observation_tokens=observation_tokens(rows),
            step=STEP,
            temperature=pipeline.rollout.temperature,
        ),
    )
    metrics: dict[str, list[float]] = tu.get(worker.update_actor(data), "metrics")
    return metrics


def rows_of_all(groups: Sequence[Sequence[Trajectory]]) -> list[Row]:
    """In order; each group's uid is its index."""
    return [row for index, group in enumerate(groups) for row in rows_of(f"group{index}", list(group))]
