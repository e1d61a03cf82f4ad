"""verl's update of the policy on given trajectories, in this process: all of a step that needs no Ray."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from agents.types import Trajectory, Turn
from tasks.config.pipelines import Pipeline
from tasks.data.trajectories import sampled_tokens
from tasks.verl.config import verl_config
from tasks.verl.local_worker import join_process_group, start_actor
from tasks.verl.rows import TrainingRow, fields_of, observation_tokens, parent_key, rows_of

if TYPE_CHECKING:
    import torch
    from tensordict import TensorDict
    from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

STEP = 1


@contextmanager
def policy_worker(pipeline: Pipeline, model: Path) -> "Iterator[ActorRolloutRefWorker]":
    """verl's worker with policy and optimizer as `pipeline` composes them; one at a time."""
    import torch

    join_process_group()
    yield start_actor(pipeline, model=model)
    torch.distributed.destroy_process_group()


@contextmanager
def critic_worker(pipeline: Pipeline, model: Path) -> "Iterator[TrainingWorker]":
    """verl's worker with critic and optimizer as `pipeline` composes them; one at a time."""
    import torch
    import verl  # noqa: F401  # loads the CPU's plugin
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.engine_workers import TrainingWorker, TrainingWorkerConfig

    from tasks.verl.loss import set_critic_loss

    join_process_group()
    config = omega_conf_to_dataclass(verl_config(pipeline, model=model, checkpoints=model).critic)
    # As `PPOTrainer._setup` does it.
    config.engine.infer_max_token_len_per_gpu = config.ppo_infer_max_token_len_per_gpu
    config.engine.max_token_len_per_gpu = config.ppo_infer_max_token_len_per_gpu
    worker = TrainingWorker(
        TrainingWorkerConfig(
            model_type="value_model",
            model_config=config.model,
            engine_config=config.engine,
            optimizer_config=config.optim,
            checkpoint_config=config.checkpoint,
        )
    )
    worker.reset()
    set_critic_loss(worker, pipeline.train, context_length=pipeline.rollout.context_length)
    yield worker
    torch.distributed.destroy_process_group()


def update(
    worker: "ActorRolloutRefWorker",
    pipeline: Pipeline,
    groups: Sequence[Sequence[Trajectory]],
    *,
    reference: Sequence[Sequence[Trajectory]] | None = None,
    trainer_groups: Sequence[Sequence[Trajectory]] | None = None,
    played_tokens: int | None = None,
    teacher_scores: Mapping[str, Sequence[float]] | None = None,
) -> dict[str, list[float]]:
    """One training step's optimizer steps, with the loss of `pipeline`; verl's metrics, a list each.

    `reference`: `groups` with the log-probs of the reference policy; `trainer_groups`: with those of the
    trainer, where the sampler's are not the old ones; `played_tokens`: of the step, by default of `groups`;
    `teacher_scores`: by key of the conversation (`trajectories_of`).
    """
    from verl.utils import tensordict_utils as tu

    from tasks.verl.loss import set_loss

    set_loss(worker, pipeline.train, context_length=pipeline.rollout.context_length)
    data = step_data(
        pipeline,
        groups,
        reference=reference,
        trainer_groups=trainer_groups,
        played_tokens=played_tokens,
        teacher_scores=teacher_scores,
    )
    metrics: dict[str, list[float]] = tu.get(worker.update_actor(data), "metrics")
    return metrics


def update_critic(
    worker: "TrainingWorker",
    pipeline: Pipeline,
    groups: Sequence[Sequence[Trajectory]],
    *,
    values: "torch.Tensor",
) -> dict[str, list[float]]:
    """As `update`, for the worker of a critic; `values`: nested [rows, tokens], those before the update."""
    from verl.utils import tensordict_utils as tu

    data = step_data(pipeline, groups, values=values)
    metrics: dict[str, list[float]] = tu.get(worker.train_mini_batch(data), "metrics")
    return metrics


def compute_values(
    worker: "TrainingWorker", pipeline: Pipeline, groups: Sequence[Sequence[Trajectory]]
) -> "torch.Tensor":
    """Nested [rows, tokens]: of each token of the rows' responses, 0 where it was not sampled."""
    from verl.utils import tensordict_utils as tu
    from verl.workers.utils.padding import response_from_nested

    data = fields_of(rows_of_all(groups))
    tu.assign_non_tensor(data, compute_loss=False, temperature=pipeline.rollout.temperature)
    output: torch.Tensor = response_from_nested(worker.infer_batch(data)["values"], data["response_mask"])
    return output


def step_data(
    pipeline: Pipeline,
    groups: Sequence[Sequence[Trajectory]],
    *,
    reference: Sequence[Sequence[Trajectory]] | None = None,
    trainer_groups: Sequence[Sequence[Trajectory]] | None = None,
    played_tokens: int | None = None,
    values: "torch.Tensor | None" = None,
    teacher_scores: Mapping[str, Sequence[float]] | None = None,
    ranks: int = 1,
    rank: int = 0,
) -> "TensorDict":
    """What the worker of `rank` is given for a step's update: each `ranks`-th row; other arguments as of
    `update` and `update_critic`."""
    from verl.utils import tensordict_utils as tu

    from tasks.verl.advantages import JoinedRows, estimate_advantages, rollout_weights
    from tasks.verl.trainer import update_options

    rows = rows_of_all(groups)
    data: TensorDict = fields_of(rows, with_observations=pipeline.train.observation_loss > 0)
    data["old_log_probs"] = data["rollout_log_probs"]
    if trainer_groups is not None:
        data["old_log_probs"] = fields_of(rows_of_all(trainer_groups))["rollout_log_probs"]
    if reference is not None:
        data["ref_log_prob"] = fields_of(rows_of_all(reference))["rollout_log_probs"]
    if values is not None:
        data["values"] = values
    train = pipeline.train
    trajectories = trajectories_of(groups)
    conversation_rows = JoinedRows([row.key for row in rows], data, trajectories)
    if train.rollout_correction is not None:
        data["rollout_is_weights"], _ = rollout_weights(train.rollout_correction, conversation_rows)
    estimate = estimate_advantages(
        train,
        conversation_rows,
        trajectories=trajectories,
        greedy_rewards={},
        teacher_scores=teacher_scores,
        num_played=pipeline.rollout.items_per_step * pipeline.rollout.group_size,
        context_length=pipeline.rollout.context_length,
    )
    data.update(estimate.fields)
    tokens = sum(sampled_tokens(t) for group in groups for t in group)
    data = tu.index_select_tensor_dict(data, list(range(rank, len(rows), ranks)))
    tu.assign_non_tensor(
        data,
        max_token_len_per_gpu=pipeline.train.micro_batch_tokens,  # not that of the worker's own pipeline
        **update_options(
            pipeline,
            rows=len(rows),
            played_tokens=tokens if played_tokens is None else played_tokens,
            trained_tokens=tokens,
            observation_tokens=observation_tokens(rows),
            step=STEP,
            temperature=pipeline.rollout.temperature,
        ),
    )
    return data


def trajectories_of(groups: Sequence[Sequence[Trajectory]]) -> dict[str, Trajectory]:
    """By the key of their rows without the segment's number."""
    return {parent_key(row.key): row.trajectory for row in rows_of_all(groups)}


def rows_of_all(groups: Sequence[Sequence[Trajectory]]) -> list[TrainingRow]:
    """In order; each group's uid is its index."""
    return [row for index, group in enumerate(groups) for row in rows_of(f"group{index}", list(group))]


def turns_of(trajectory: Trajectory) -> Iterator[tuple[tuple[int, ...], Turn]]:
    """Each turn, with all tokens that it was sampled on."""
    context = trajectory.prompt_ids
    for turn in trajectory.turns:
        context = context if turn.prompt_ids is None else turn.prompt_ids
        yield context, turn
        context = (*context, *turn.completion.token_ids, *turn.observation_ids)
