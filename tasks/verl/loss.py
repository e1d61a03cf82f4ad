"""The losses in verl's workers: the policy's (the algorithm's loss, KL to the reference, entropy bonus,
cross-entropy of observations) and the critic's.

Owns how tokens are weighed. A sequence is a whole conversation: each of its segments is a row, and
micro-batches and mini-batches may separate them, so each row carries the tokens of its conversation. What is
divided by is what was *played* for the mini-batch: episodes that are left out have gradient 0. FSDP takes the
mean of the workers' gradients, and `dp_size`, their number, makes it the sum.
"""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

import torch
from tensordict import TensorDict
from verl.trainer.ppo.core_algos import kl_penalty
from verl.utils.metric import AggregationType, Metric
from verl.workers.utils.padding import no_padding_2_padding

from agents.samplers.sampling import random_key
from envs.errors import ConfigError
from tasks.algorithms.algorithm import ActorCritic, Aggregation
from tasks.algorithms.losses import PolicyLoss, TokenLosses, Tokens
from tasks.algorithms.users import users_boundary
from tasks.config.training import TrainSettings

if TYPE_CHECKING:
    from verl.single_controller.base import Worker, WorkerGroup

PLAYED_EPISODES, PLAYED_TOKENS = "played_episodes", "played_tokens"
"""Options of an update: what was played for each of its mini-batches, on all workers."""
DRAWS_SEED = "draws_seed"
"""Option of an update: of what its loss draws at random. verl takes its own `seed` out of the batch."""
TRAINED_TOKENS = "trained_tokens"
"""Option of an update: sampled tokens in each of its mini-batches, in the mean, on all workers. Only those of
rows: the metrics of tokens are means over what is trained on."""
OBSERVATION_TOKENS = "observation_tokens"
"""Option of an update: tokens of the environment in each of its mini-batches, in the mean, on all workers.
Only those of rows: where an episode is left out, its observations are no zeros of the mean."""


def set_loss(worker: "Worker | WorkerGroup", train: TrainSettings, *, context_length: int) -> None:
    """Let verl's `worker`, or a group of workers, train with `policy_loss`."""
    worker.set_loss_fn(partial(policy_loss, train, context_length))


def set_critic_loss(worker: "Worker | WorkerGroup", train: TrainSettings, *, context_length: int) -> None:
    """Let verl's `worker` of a critic, or a group of workers, train with `value_loss`."""
    assert isinstance(train.algorithm, ActorCritic)
    worker.set_loss_fn(
        partial(value_loss, train.algorithm.aggregation, train.algorithm.critic.clip_range, context_length)
    )


def compute_token_losses(loss: PolicyLoss, tokens: Tokens) -> TokenLosses:
    """What a loss computes, checked, for it may be a user's.

    Raises `ConfigError` for a user's loss that raises, unless it lacks memory, and for another result.
    """
    subject = f"loss {loss.name!r}"
    with users_boundary(loss, f"{subject}: per_token"):
        result: object = loss.per_token(tokens)
    if not isinstance(result, TokenLosses):
        raise ConfigError(f"{subject} returned a {type(result).__name__}; return TokenLosses")
    for name in ("losses", "clipped"):
        values: object = getattr(result, name)
        if values is None and name == "clipped":
            continue
        if not isinstance(values, torch.Tensor) or values.shape != tokens.mask.shape:
            form = tuple(values.shape) if isinstance(values, torch.Tensor) else f"a {type(values).__name__}"
            raise ConfigError(
                f"{subject} returned {name} as {form}; return a tensor of [B, R], here "
                f"{tuple(tokens.mask.shape)} (docs/algorithms.md)"
            )
    return result


def policy_loss(
    train: TrainSettings,
    context_length: int,
    model_output: Mapping[str, torch.Tensor],
    data: TensorDict,
    dp_group: object = None,
) -> tuple[torch.Tensor, dict[str, object]]:
    """The loss of a micro-batch of `B` rows, to be added up over the mini-batch; and verl's metrics.

    `model_output`: nested [B, tokens], `log_probs`, and `entropy` if asked for. `data`: what
    `tasks/verl/rows.py` lays out, `advantages`, `old_log_probs`, and where they apply `ref_log_prob` and
    `rollout_is_weights`; verl's `dp_size`, and the options that are named above.
    """
    log_probs = no_padding_2_padding(model_output["log_probs"], data)  # [B, R]
    optional = [name for name in ("ref_log_prob", "rollout_is_weights") if name in data]
    required_fields = ("response_mask", "loss_mask", "old_log_probs", "advantages")
    rows = data.select(*required_fields, *optional).to_padded_tensor()
    mask = rows["response_mask"].to(bool)
    weights = mask * data["dp_size"] * _row_weights(train.online_algorithm.aggregation, data, context_length)

    def add_up(values: torch.Tensor) -> torch.Tensor:
        return torch.where(mask, values * weights, 0.0).sum()

    tokens = Tokens(
        log_probs=log_probs,
        old_log_probs=rows["old_log_probs"],
        advantages=rows["advantages"],
        mask=mask,
        conversation=data["conversation"],
        conversation_tokens=data["conversation_tokens"],
        seed=random_key("loss", int(data[DRAWS_SEED]), *data["conversation"].tolist()),
    )
    result = compute_token_losses(train.online_algorithm.loss, tokens)
    loss = add_up(result.losses * rows.get("rollout_is_weights", 1.0))
    metrics: dict[str, object] = {"actor/pg_loss": Metric(value=loss, aggregation=AggregationType.SUM)}
    metrics["actor/ppo_kl"] = _mean(-tokens.log_ratios, mask, data)
    if result.clipped is not None:
        metrics["actor/pg_clipfrac"] = _mean(result.clipped, mask, data)
    if "entropy" in model_output:
        entropy = add_up(no_padding_2_padding(model_output["entropy"], data))
        loss = loss - train.entropy_coef * entropy
        metrics["actor/entropy_loss"] = Metric(value=entropy, aggregation=AggregationType.SUM)
    if train.kl is not None and train.kl.place == "loss":
        kl = add_up(kl_penalty(log_probs, rows["ref_log_prob"], train.kl.estimator))
        loss = loss + train.kl.coef * kl
        metrics["kl_loss"] = Metric(value=kl, aggregation=AggregationType.SUM)
    if train.observation_loss > 0 and data[OBSERVATION_TOKENS] > 0:
        is_observation = rows["loss_mask"].to(bool) & ~mask
        scale = data["dp_size"] / float(data[OBSERVATION_TOKENS])
        cross_entropy = -torch.where(is_observation, log_probs, 0.0).sum() * scale
        loss = loss + train.observation_loss * cross_entropy
        metrics["observation_loss"] = Metric(value=cross_entropy, aggregation=AggregationType.SUM)
    return loss, metrics


def value_loss(
    aggregation: Aggregation,
    clip_range: float,
    context_length: int,
    model_output: Mapping[str, torch.Tensor],
    data: TensorDict,
    dp_group: object = None,
) -> tuple[torch.Tensor, dict[str, object]]:
    """The critic's loss of a micro-batch of `B` rows, and verl's metrics; tokens are weighed as the policy's.

    Half the squared error of a token's value, or that of the value clipped to at most `clip_range` from the
    one before the update, whichever is larger (verl: `compute_value_loss`). `model_output`: nested
    [B, tokens], `values`. `data`: as of `policy_loss`, `values` (before the update), `returns`, and where it
    applies `return_weights`.
    """
    values = no_padding_2_padding(model_output["values"], data)  # [B, R]
    optional = [name for name in ("return_weights",) if name in data]
    rows = data.select("response_mask", "values", "returns", *optional).to_padded_tensor()
    mask = rows["response_mask"].to(bool)
    return_weights = rows.get("return_weights", mask)
    weights = return_weights * data["dp_size"] * _row_weights(aggregation, data, context_length)
    old, returns = rows["values"], rows["returns"]
    free = (values - returns).square()
    # not old + clamp(values - old), which is another number by rounding where nothing is clipped
    clipped_errors = (values.clamp(old - clip_range, old + clip_range) - returns).square()
    loss = 0.5 * torch.where(mask, free.maximum(clipped_errors) * weights, 0.0).sum()
    metrics = {
        "critic/vf_loss": Metric(value=loss, aggregation=AggregationType.SUM),
        "critic/vf_clipfrac": _mean((clipped_errors > free) * return_weights, mask, data),
    }
    return loss, metrics


def _row_weights(aggregation: Aggregation, data: TensorDict, context_length: int) -> torch.Tensor:
    """[B, 1]: of each token of a row, so that the sum over all rows is the aggregate."""
    conversation_tokens: torch.Tensor = data["conversation_tokens"].unsqueeze(1)
    weights = torch.ones_like(conversation_tokens, dtype=torch.float32)
    if aggregation == "token-mean":
        return weights / float(data[PLAYED_TOKENS])
    weights = weights / float(data[PLAYED_EPISODES])
    if aggregation == "seq-mean-token-mean":
        return weights / conversation_tokens
    return weights / context_length if aggregation == "seq-mean-token-sum-norm" else weights


def _mean(values: torch.Tensor, mask: torch.Tensor, data: TensorDict) -> Metric:
    """The part of a micro-batch in the mean of `values` [B, R] over the sampled tokens of the step."""
    total = torch.where(mask, values.detach(), 0.0).sum() * data["dp_size"]
    return Metric(value=total / float(data[TRAINED_TOKENS]), aggregation=AggregationType.SUM)
