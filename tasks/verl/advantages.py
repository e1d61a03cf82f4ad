"""The advantages of a step's rows: joined to conversations, estimated by the algorithm, and put back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from tensordict import TensorDict
from verl.trainer.ppo.core_algos import kl_penalty

from agents.types import Trajectory
from tasks.algorithms.conversations import Conversations, Estimate, Joined, rewards_of, turns_of
from tasks.config.training import TrainSettings
from tasks.verl.rows import conversation_key, overlong_penalty


@dataclass(frozen=True, slots=True)
class StepEstimate:
    """What the rows of a step are trained with."""

    fields: dict[str, torch.Tensor]
    """Nested [rows, tokens]: `advantages`; of an algorithm with a critic also `returns`, and `return_weights`
    where they differ."""
    metrics: dict[str, float]
    """By verl's names: the mean KL per token, where it is part of the reward; of a critic the mean value and
    the share of the returns' variance that its values explain."""


def estimate_advantages(
    train: TrainSettings,
    *,
    keys: Sequence[str],
    data: TensorDict,
    trajectories: Mapping[str, Trajectory],
    greedy_rewards: Mapping[str, float],
    num_played: int,
    context_length: int,
) -> StepEstimate:
    """Estimate the advantages of a step's rows.

    `keys`: of the rows; those of `trajectories` are trained on, any other row is padding. `data`: nested
    [rows, tokens], `response_mask`, `old_log_probs`, and where they apply `ref_log_prob` and `values`.
    `greedy_rewards`: by uid of the group.
    """
    numbers = {key: number for number, key in enumerate(trajectories)}
    chosen = [row for row, key in enumerate(keys) if conversation_key(key) in numbers]
    masks = data["response_mask"].unbind()
    joined = Joined(
        [masks[row] for row in chosen],
        conversation=[numbers[conversation_key(keys[row])] for row in chosen],
        segment=[int(keys[row].rpartition("_")[2]) for row in chosen],
    )

    def join(name: str) -> torch.Tensor:
        values = data[name].unbind()
        return joined.join([values[row] for row in chosen])

    uids = [key.rpartition("_")[0] for key in trajectories]
    groups = {uid: number for number, uid in enumerate(dict.fromkeys(uids))}
    rewards = rewards_of(list(trajectories.values()), joined.mask)
    for number, trajectory in enumerate(trajectories.values()):
        last = int(joined.mask[number].sum()) - 1
        rewards[number, last] -= overlong_penalty(trajectory, train, context_length=context_length)
    old_log_probs = join("old_log_probs")
    metrics: dict[str, float] = {}
    if train.kl is not None and train.kl.place == "reward":
        kl = kl_penalty(old_log_probs, join("ref_log_prob"), train.kl.estimator) * joined.mask
        rewards = rewards - train.kl.coef * kl
        metrics["actor/kl_loss"] = float(kl.sum() / joined.mask.sum())
    values = join("values") if train.algorithm.needs_critic else None
    greedy = [greedy_rewards[uid] for uid in uids] if train.algorithm.needs_greedy else None
    estimate = train.algorithm.estimate(
        Conversations(
            trajectories=list(trajectories.values()),
            group=torch.tensor([groups[uid] for uid in uids]),
            mask=joined.mask,
            rewards=rewards,
            turn=turns_of(joined.mask, list(trajectories.values())),
            old_log_probs=old_log_probs,
            values=values,
            greedy_rewards=None if greedy is None else torch.tensor(greedy, dtype=torch.float64),
            num_played=num_played,
        )
    )

    if values is not None:
        metrics |= _critic_metrics(values, estimate, joined.mask)

    def split(values: torch.Tensor) -> torch.Tensor:
        rows = [torch.zeros(mask.shape, dtype=values.dtype) for mask in masks]
        for row, part in zip(chosen, joined.split(values), strict=True):
            rows[row] = part
        return torch.nested.as_nested_tensor(rows, layout=torch.jagged)

    fields = {
        "advantages": estimate.advantages,
        "returns": estimate.returns,
        "return_weights": estimate.return_weights,
    }
    return StepEstimate({name: split(x) for name, x in fields.items() if x is not None}, metrics)


def _critic_metrics(values: torch.Tensor, estimate: Estimate, mask: torch.Tensor) -> dict[str, float]:
    """Over the tokens at which the critic learns; all arguments are of [C, T]."""
    assert estimate.returns is not None
    chosen = mask if estimate.return_weights is None else estimate.return_weights > 0
    predictions, returns = values[chosen].double(), estimate.returns[chosen].double()
    metrics = {"critic/values/mean": float(predictions.mean())}
    if len(returns) > 1 and (variance := float(returns.var())) > 0:
        metrics["critic/vf_explained_var"] = 1 - float((returns - predictions).var()) / variance
    return metrics
