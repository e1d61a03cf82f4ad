"""The policy's loss in verl's worker: clipped policy gradient, KL to the reference, entropy bonus.

Owns how tokens are weighed: every trajectory weighs 1, and its sampled tokens, over all its segments, share
that equally. A segment is a row, and micro-batches and mini-batches may separate the rows of a trajectory,
so each row carries the tokens of its whole trajectory. verl's own loss would give each row the weight 1.

    loss = sum over trajectories of (mean over its sampled tokens) / trajectories played

The terms themselves are verl's (`core_algos.py`), chosen by its configuration.
"""

from functools import partial
from typing import Any

import torch
from tensordict import TensorDict
from verl.trainer.ppo.core_algos import agg_loss, get_policy_loss_fn, kl_penalty
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.metric import AggregationType, Metric
from verl.workers.utils.padding import no_padding_2_padding

SUM_OF_TOKENS = "seq-mean-token-sum"
"""verl's aggregation that adds up a row's tokens as they are and divides by `global_batch_size`."""


def set_loss(worker: Any, config: Any) -> None:
    """Let verl's `worker`, or a group of workers, train with `trajectory_loss`; `config`: verl's whole."""
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    worker.set_loss_fn(partial(trajectory_loss, config=actor))


def trajectory_loss(
    config: Any, model_output: dict[str, torch.Tensor], data: TensorDict, dp_group: Any = None
) -> tuple[torch.Tensor, dict[str, Any]]:
    """The loss of a micro-batch of `B` rows, to be added up over the mini-batch; and verl's metrics.

    `config`: verl's `ActorConfig`. `model_output`: nested [B, tokens], `log_probs`, and `entropy` if asked
    for. `data`: `trajectory_tokens` [B], what `tasks/verl/rows.py` lays out, `advantages`, `old_log_probs`,
    and where they apply `ref_log_prob` and `rollout_is_weights`; `global_batch_size` trajectories were
    played for the mini-batch, on all `dp_size` workers.
    """
    scale = {name: data[name] for name in ("dp_size", "batch_num_tokens", "global_batch_size")}
    config.global_batch_info.update(scale, loss_scale_factor=None)  # the policy loss reads it there
    log_probs = no_padding_2_padding(model_output["log_probs"], data)  # [B, R]
    weights = (1.0 / data["trajectory_tokens"]).unsqueeze(-1).expand_as(log_probs)
    optional = [name for name in ("ref_log_prob", "rollout_is_weights") if name in data]
    rows = data.select("response_mask", "old_log_probs", "advantages", *optional).to_padded_tensor()
    mask = rows["response_mask"].to(bool)

    def weigh(values: torch.Tensor) -> torch.Tensor:
        total: torch.Tensor = agg_loss(
            loss_mat=values * weights, loss_mask=mask, loss_agg_mode=SUM_OF_TOKENS, **config.global_batch_info
        )
        return total

    loss, policy_metrics = get_policy_loss_fn(config.policy_loss.get("loss_mode", "vanilla"))(
        old_log_prob=rows["old_log_probs"],
        log_prob=log_probs,
        advantages=rows["advantages"],
        response_mask=mask,
        loss_agg_mode=SUM_OF_TOKENS,
        config=config,
        # verl multiplies each token's policy loss by these
        rollout_is_weights=weights * rows["rollout_is_weights"] if "rollout_is_weights" in rows else weights,
    )
    metrics: dict[str, Any] = Metric.from_dict(policy_metrics, aggregation=AggregationType.MEAN)
    metrics["actor/pg_loss"] = Metric(value=loss, aggregation=AggregationType.SUM)
    if "entropy" in model_output:
        entropy = weigh(no_padding_2_padding(model_output["entropy"], data))
        loss = loss - config.entropy_coeff * entropy
        metrics["actor/entropy_loss"] = Metric(value=entropy, aggregation=AggregationType.SUM)
    if config.use_kl_loss:
        kl = weigh(kl_penalty(log_probs, rows["ref_log_prob"], config.kl_loss_type))
        loss = loss + config.kl_loss_coef * kl
        metrics["kl_loss"] = Metric(value=kl, aggregation=AggregationType.SUM)
        metrics["kl_coef"] = config.kl_loss_coef
    return loss, metrics
