"""The advantages of a step's rows, and their importance weights: joined to conversations, computed, and put
back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from tensordict import TensorDict
from verl.trainer.ppo.core_algos import kl_penalty
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights

from agents.rollout.packing import sampled_runs
from agents.types import Trajectory
from envs.errors import ConfigError
from tasks.algorithms.algorithm import ActorCritic, OnlineAlgorithm
from tasks.algorithms.conversations import Conversations, Estimate, turn_scores_of
from tasks.algorithms.users import users_boundary
from tasks.config.training import RolloutCorrectionSettings, TrainSettings
from tasks.verl.rows import overlong_penalty, parent_key, segment_number

_NO_BOUNDS = (1e-12, 1e12)
"""verl cuts log-ratios at ±20, so that no ratio lies outside."""


class JoinedRows:
    """A step's rows as conversations, in the order of `trajectories`, and back. The tokens of a conversation
    are in the order of its turns."""

    mask: torch.Tensor  # [C, T], bool

    def __init__(self, keys: Sequence[str], data: TensorDict, trajectories: Mapping[str, Trajectory]) -> None:
        """`keys`: of the rows, each a segment, in any order; those of `trajectories` are trained on, any
        other is padding. `data`: nested [rows, tokens], with `response_mask`."""
        numbers = {key: number for number, key in enumerate(trajectories)}
        # where each row belongs: conversation, segment, row
        order = sorted(
            (numbers[parent_key(key)], segment_number(key), row)
            for row, key in enumerate(keys)
            if parent_key(key) in numbers
        )
        masks = data["response_mask"].unbind()
        self._data = data
        self._lengths = [len(mask) for mask in masks]
        starts = torch.tensor([0, *self._lengths]).cumsum(0)[:-1].tolist()
        segments: list[list[torch.Tensor]] = [[] for _ in numbers]  # of each conversation
        for number, _, row in order:
            segments[number].append(masks[row].nonzero().squeeze(1) + starts[row])
        counts = [sum(map(len, places)) for places in segments]
        self._places = torch.cat(
            [
                places[segment][run]
                for trajectory, places in zip(trajectories.values(), segments, strict=True)
                for segment, run in sampled_runs(trajectory.turns)
            ]
        )
        """[N]: of each sampled token among the tokens of all rows."""
        self.mask = torch.arange(max(counts)) < torch.tensor(counts).unsqueeze(1)
        self._places_joined = self.mask.view(-1).nonzero().squeeze(1)
        """[N]: of the same tokens among the places of `mask`."""

    def join(self, name: str) -> torch.Tensor:
        """[C, T]: a field of the rows, in float32 or wider; 0 where there is no token."""
        flat = torch.cat(self._data[name].unbind())
        flat = flat.to(torch.promote_types(flat.dtype, torch.float32))  # sums in bf16 would be too coarse
        joined = flat.new_zeros(self.mask.numel())
        return joined.index_copy_(0, self._places_joined, flat.index_select(0, self._places)).view_as(
            self.mask
        )

    def split(self, values: torch.Tensor) -> torch.Tensor:
        """[C, T] → nested [rows, tokens], 0 on tokens that were not sampled."""
        flat = values.new_zeros(sum(self._lengths))
        flat.index_copy_(0, self._places, values.reshape(-1).index_select(0, self._places_joined))
        return torch.nested.as_nested_tensor(list(flat.split(self._lengths)), layout=torch.jagged)


def rollout_weights(
    correction: RolloutCorrectionSettings, rows: JoinedRows
) -> tuple[torch.Tensor, dict[str, float]]:
    """The importance weight of each token, nested [rows, tokens], and of all sampled tokens the mean weight,
    and the shares whose ratio was cut and rejected.

    `rows` have `old_log_probs`, the trainer's, and `rollout_log_probs`, the sampler's.
    """
    lowest, highest = _NO_BOUNDS
    ratios, _ = compute_rollout_correction_weights(
        rows.join("old_log_probs") - rows.join("rollout_log_probs"),
        rows.mask.to(torch.int64),
        rollout_is=correction.level,
        rollout_is_threshold=f"{correction.reject_below or lowest}_{correction.reject_above or highest}",
    )
    weights = ratios if correction.cap is None else ratios.clamp(max=correction.cap)
    sampled_mask = rows.mask
    return rows.split(weights), {
        "rollout_corr/mean": float(weights[sampled_mask].mean()),
        "rollout_corr/capped": float((weights < ratios)[sampled_mask].float().mean()),
        "rollout_corr/rejected": float((ratios == 0)[sampled_mask].float().mean()),
    }


@dataclass(frozen=True, slots=True)
class StepEstimate:
    """What the rows of a step are trained with."""

    advantages: torch.Tensor  # [C, T]
    fields: dict[str, torch.Tensor]
    """Nested [rows, tokens]: `advantages`; of an algorithm with a critic also `returns`, and `return_weights`
    where they differ."""
    metrics: dict[str, float]
    """Metrics by verl's names: the mean KL per token, where it is part of the reward; of a critic the mean
    value and the share of the returns' variance that its values explain. Of a teacher, by our own: the mean
    estimate of the KL from it per token, the mean of its log-probs, and the share of the conversations it has
    scored."""


def estimate_advantages(
    train: TrainSettings,
    rows: JoinedRows,
    *,
    trajectories: Mapping[str, Trajectory],
    greedy_rewards: Mapping[str, float],
    teacher_scores: Mapping[str, Sequence[float]] | None,
    num_played: int,
    context_length: int,
) -> StepEstimate:
    """Estimate the advantages of a step's rows.

    `rows` have `old_log_probs`, and where they apply `rollout_log_probs` (with a teacher), `ref_log_prob`,
    `values` and `sum_pi_squared`; `trajectories`: theirs, in that order; `greedy_rewards`: by uid of the
    group; `teacher_scores`: by key of the trajectory, as `Teacher.score` gives them. Raises `ConfigError` for
    an algorithm that raises, or that returns anything but tensors of [C, T].
    """
    algorithm = train.online_algorithm
    uids = list(map(parent_key, trajectories))
    groups = {uid: number for number, uid in enumerate(dict.fromkeys(uids))}
    turn_scores = turn_scores_of(list(trajectories.values()))
    if algorithm.overlong is not None:
        for number, trajectory in enumerate(trajectories.values()):
            penalty = overlong_penalty(trajectory, train, context_length=context_length)
            turn_scores[number, len(trajectory.turns) - 1] -= penalty
    old_log_probs = rows.join("old_log_probs")
    metrics: dict[str, float] = {}
    token_penalty = None
    if train.kl is not None and train.kl.place == "reward":
        kl = kl_penalty(old_log_probs, rows.join("ref_log_prob"), train.kl.estimator) * rows.mask
        token_penalty = train.kl.coef * kl
        metrics["actor/kl_loss"] = float(kl.sum() / rows.mask.sum())
    teacher_log_probs = None
    if teacher_scores is not None:
        teacher_log_probs, distill_metrics = _teacher_log_probs(
            [teacher_scores.get(key) for key in trajectories], rows, old_log_probs=old_log_probs
        )
        metrics |= distill_metrics
    values = rows.join("values") if isinstance(algorithm, ActorCritic) else None
    greedy = [greedy_rewards[uid] for uid in uids] if algorithm.needs_greedy else None
    estimate = _estimate(
        algorithm,
        Conversations(
            trajectories=list(trajectories.values()),
            group=torch.tensor([groups[uid] for uid in uids]),
            mask=rows.mask,
            turn_scores=turn_scores,
            kl_penalty=token_penalty,
            old_log_probs=old_log_probs,
            values=values,
            sum_pi_squared=rows.join("sum_pi_squared") if algorithm.needs_sum_pi_squared else None,
            greedy_rewards=None if greedy is None else torch.tensor(greedy, dtype=torch.float64),
            teacher_log_probs=teacher_log_probs,
            num_played=num_played,
        ),
    )
    if values is not None:
        metrics |= _critic_metrics(values, estimate, rows.mask)
    fields = {
        "advantages": estimate.advantages,
        "returns": estimate.returns,
        "return_weights": estimate.return_weights,
    }
    dtype = old_log_probs.dtype  # the loss's, where an estimator has kept that of the rewards
    return StepEstimate(
        estimate.advantages.to(dtype),
        {name: rows.split(x.to(dtype)) for name, x in fields.items() if x is not None},
        metrics,
    )


def _estimate(algorithm: OnlineAlgorithm, batch: Conversations) -> Estimate:
    """What an algorithm estimates, checked, for it may be a user's.

    Raises `ConfigError` for a user's algorithm that raises, unless it lacks memory.
    """
    subject = f"algorithm {algorithm.name!r}"
    with users_boundary(algorithm, f"{subject}: estimate"):
        estimate: object = algorithm.estimate(batch)
    if not isinstance(estimate, Estimate):
        raise ConfigError(f"{subject} returned a {type(estimate).__name__}; return an Estimate")
    for name in ("advantages", "returns", "return_weights"):
        values: object = getattr(estimate, name)
        if values is None and name != "advantages":
            continue
        if not isinstance(values, torch.Tensor):
            raise ConfigError(
                f"{subject} returned {name} as a {type(values).__name__}; return a tensor of [C, T]"
            )
        if values.shape != batch.mask.shape:
            raise ConfigError(
                f"{subject} returned {name} of shape {tuple(values.shape)}; return [C, T], here "
                f"{tuple(batch.mask.shape)}: batch.spread makes it of [C] (docs/algorithms.md)"
            )
    return estimate


def _teacher_log_probs(
    scores: Sequence[Sequence[float] | None], rows: JoinedRows, *, old_log_probs: torch.Tensor
) -> tuple[torch.Tensor, dict[str, float]]:
    """[C, T], `old_log_probs` where there are no `scores` ([C], [tokens] each); and metrics."""
    mask = rows.mask
    log_probs, is_scored = old_log_probs.clone(), torch.zeros_like(mask)
    for row, values in enumerate(scores):
        if values is not None:
            log_probs[row, mask[row]] = torch.tensor(values, dtype=log_probs.dtype)
            is_scored[row] = mask[row]
    metrics = {"distill/scored": float(is_scored.any(1).float().mean())}
    if is_scored.any():
        # A mean over samples estimates the KL of the policy that drew them, which may not be the trainer's.
        log_ratios = rows.join("rollout_log_probs") - log_probs
        metrics["distill/kl"] = float(log_ratios[is_scored].double().mean())
        metrics["distill/teacher_log_prob"] = float(log_probs[is_scored].double().mean())
    return log_probs, metrics


def _critic_metrics(values: torch.Tensor, estimate: Estimate, mask: torch.Tensor) -> dict[str, float]:
    """Metrics of the critic over the tokens at which it learns; all arguments are of [C, T]."""
    assert estimate.returns is not None
    is_weighted = mask if estimate.return_weights is None else estimate.return_weights > 0
    predictions, returns = values[is_weighted].double(), estimate.returns[is_weighted].double()
    metrics = {"critic/values/mean": float(predictions.mean())}
    if len(returns) > 1 and (variance := float(returns.var())) > 0:
        metrics["critic/vf_explained_var"] = 1 - float((returns - predictions).var()) / variance
    return metrics
