"""A step's trajectories as tensors, for advantage estimators: the segments of each joined to one
conversation.

Only what the policy sampled is kept. An estimator therefore never sees an observation token, a prompt or the
place where a segment ends, and its result is put back into the rows that are trained on
(`tasks/verl/advantages.py`).

Shapes: `C` conversations of the step, `T` sampled tokens of the longest and `N` turns of the one with the
most, left-aligned.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from agents.types import Trajectory
from tasks.algorithms.algorithm import Estimate as Estimate  # with what it is made of, for users' algorithms
from tasks.algorithms.equality import ABSOLUTE_TOLERANCE, RELATIVE_TOLERANCE

_ROWS = 32
"""Conversations whose numbers are converted to float64 at once: they stay in the cache."""


@dataclass(frozen=True, kw_only=True)
class Conversations:
    """What an advantage estimator is given."""

    trajectories: Sequence[Trajectory]  # [C]
    group: Tensor  # [C], int64: conversations of one item have the same number
    mask: Tensor  # [C, T], bool
    turn_scores: Tensor  # [C, N], float64: reward of each turn, before the KL penalty
    kl_penalty: Tensor | None = None  # [C, T], subtracted from each token's reward; 0 where `mask` is False
    old_log_probs: Tensor  # [C, T]
    values: Tensor | None = None  # [C, T], of the critic, at the state before each token is sampled
    sum_pi_squared: Tensor | None = None  # [C, T]: Σπ² over the vocabulary, of the policy that sampled
    greedy_rewards: Tensor | None = None  # [C], of a greedy episode of the same item
    teacher_log_probs: Tensor | None = None
    """[C, T]: of the teacher, in its own context; `old_log_probs` where it has not scored a conversation."""
    num_played: int
    """Episodes of the step, those included that are not trained on."""

    @cached_property
    def turn_rewards(self) -> Tensor:
        """[C, N], float64: `turn_scores` less the KL penalty of the turn's tokens."""
        if self.kl_penalty is None:
            return self.turn_scores
        return self.turn_scores - self.turn_sum(self.kl_penalty.double())

    @property
    def scores(self) -> Tensor:
        """[C], float64: the sum of each conversation's rewards."""
        return self.turn_rewards.sum(1)

    @property
    def token_rewards(self) -> Tensor:
        """[C, T], as the log-probs' type: each turn's score on its last token, less the KL penalty. For
        estimators that compute with each token and compare no sum with another."""
        ends = (self.turn_lengths[:, :-1].cumsum(1) - 1).clamp(min=0)
        scores = self.turn_scores.to(self.old_log_probs.dtype)
        rewards = torch.zeros_like(self.old_log_probs).scatter_add_(1, ends, scores)
        return rewards if self.kl_penalty is None else rewards.sub_(self.kl_penalty)

    @property
    def lengths(self) -> Tensor:
        """[C], int64: sampled tokens."""
        return _row_sums(self.mask, torch.int64)

    def spread(self, per_conversation: Tensor) -> Tensor:
        """[C] → [C, T], as the log-probs' type: the same value on every token of a conversation, 0
        elsewhere."""
        lengths = self.lengths
        counts = torch.stack([lengths, self.mask.shape[1] - lengths], 1)
        return self._repeat(per_conversation.unsqueeze(1), counts)

    @property
    def critic_values(self) -> Tensor:
        """`values` of an algorithm with a critic."""
        assert self.values is not None, "the critic computed no values"
        return self.values

    @property
    def turn_starts(self) -> Tensor:
        """[C, T], bool: the first token of each turn."""
        lengths = self.turn_lengths[:, :-1]
        rows, turns = lengths.nonzero(as_tuple=True)
        starts = torch.zeros_like(self.mask)
        starts[rows, (lengths.cumsum(1) - lengths)[rows, turns]] = True
        return starts

    @cached_property
    def turn_lengths(self) -> Tensor:
        """[C, N + 1], int64: sampled tokens of each turn, and at the end the places without a token."""
        lengths = [[len(turn.completion.token_ids) for turn in t.turns] for t in self.trajectories]
        longest = max(map(len, lengths), default=0)
        counts = torch.tensor([row + [0] * (longest + 1 - len(row)) for row in lengths])
        counts[:, -1] = self.mask.shape[1] - counts.sum(1)
        return counts

    def turn_sum(self, values: Tensor) -> Tensor:
        """[C, N]: the sum of `values` [C, T] over each turn."""
        lengths = self.turn_lengths
        sums = torch.segment_reduce(values.reshape(-1), "sum", lengths=lengths.view(-1))
        return sums.view(lengths.shape)[:, :-1]

    def spread_turns(self, per_turn: Tensor) -> Tensor:
        """[C, N] → [C, T], as the log-probs' type: the same value on every token of a turn, 0 elsewhere."""
        return self._repeat(per_turn, self.turn_lengths)

    def _repeat(self, values: Tensor, counts: Tensor) -> Tensor:
        """[C, K] and [C, K + 1] → [C, T]: each value as often as its count says, then zeros."""
        values = torch.nn.functional.pad(values.to(self.old_log_probs.dtype), (0, 1))
        # numpy repeats in a twentieth of torch's time
        value_of_token = values.numpy().ravel().repeat(counts.numpy().ravel())
        return torch.from_numpy(value_of_token).view(self.mask.shape)

    def group_mean(self, values: Tensor, *, weights: Tensor | None = None) -> Tensor:
        """[C]: of each conversation's group, weighted by `weights` [C]."""
        weights = torch.ones_like(values) if weights is None else weights.to(values.dtype)
        return self.group_sum(values * weights) / self.group_sum(weights)

    def group_sum(self, values: Tensor) -> Tensor:
        """[C] or [C, N], as `values`: of each conversation's group."""
        sums = values.new_zeros(int(self.group.max()) + 1, *values.shape[1:])
        return sums.index_add_(0, self.group, values)[self.group]

    def group_size(self) -> Tensor:
        """[C]: conversations of each conversation's group."""
        return torch.bincount(self.group)[self.group]

    def group_std(self, values: Tensor) -> Tensor:
        """[C], unbiased; 0 for a group of one."""
        squares = self.group_sum((values - self.group_mean(values)).square())
        return (squares / (self.group_size() - 1).clamp(min=1)).sqrt()

    def has_equal_rewards(self, values: Tensor) -> Tensor:
        """[C], bool: whether all `values` of the conversation's group are equal, as of `are_equal`."""
        return are_equal(values, self.group)

    def compare(self, values: Tensor, *, normalize_by_std: bool = True) -> Tensor:
        """[C], float64: value − mean of the conversation's group, divided by the group's unbiased standard
        deviation + 1e-6 if `normalize_by_std`; exactly 0 in a group of equal values."""
        return compare(values, self.group, normalize_by_std=normalize_by_std)

    def whiten(self, values: Tensor) -> Tensor:
        """[C, T]: `values`, which are 0 where `mask` is False, shifted and scaled to mean 0 and variance 1
        over all tokens of the step (verl's `masked_whiten`)."""
        count = int(self.lengths.sum())
        if count < 2:
            return values
        mean = _row_sums(values, torch.float64).sum() / count
        parts = zip(values.split(_ROWS), self.mask.split(_ROWS), strict=True)
        squares = sum(float(((part.double() - mean).square() * mask).sum()) for part, mask in parts)
        scale = (squares / (count - 1) + 1e-8) ** -0.5
        return torch.where(self.mask, (values - mean.to(values.dtype)) * scale, 0.0)


def are_equal(values: Tensor, place: Tensor) -> Tensor:
    """[N], bool: whether all `values` [N] of the same `place` [N], int64, from 0, are equal but for rounding
    (`tasks/algorithms/equality.py`).

    A standard deviation does not tell: the mean of equal numbers may differ from them by rounding.
    """

    def extreme(reduce: str) -> Tensor:
        empty = values.new_zeros(int(place.max()) + 1)
        return empty.scatter_reduce(0, place, values, reduce, include_self=False)

    lowest, highest = extreme("amin"), extreme("amax")
    tolerance = (RELATIVE_TOLERANCE * lowest.abs().maximum(highest.abs())).clamp(min=ABSOLUTE_TOLERANCE)
    return (highest - lowest <= tolerance)[place]


def compare(values: Tensor, place: Tensor, *, normalize_by_std: bool) -> Tensor:
    """[N], float64: value − mean of those of the same place, divided by their unbiased standard deviation +
    1e-6 if `normalize_by_std`. Exactly 0 where all values of a place are equal, as where there is only one.

    `place`: [N], int64, from 0.
    """
    size = torch.bincount(place)
    mean = (torch.bincount(place, weights=values) / size)[place]
    difference = values - mean
    if normalize_by_std:
        squares = torch.bincount(place, weights=difference.square())
        difference = difference / ((squares / (size - 1).clamp(min=1)).sqrt() + 1e-6)[place]
    return difference * ~are_equal(values, place)


def _row_sums(values: Tensor, dtype: torch.dtype) -> Tensor:
    """[C]; torch converts all of a tensor before it adds anything."""
    return torch.cat([rows.sum(1, dtype=dtype) for rows in values.split(_ROWS)])


def discounted_returns(rewards: Tensor, *, gamma: float) -> Tensor:
    """[C, T]: Σ over l ≥ k of gamma^(l − k)·rewards_l."""
    if gamma == 1.0:
        return rewards.flip(1).cumsum(1).flip(1)
    returns = torch.empty_like(rewards)
    running = rewards.new_zeros(len(rewards))
    for place in reversed(range(rewards.shape[1])):
        running = rewards[:, place] + gamma * running
        returns[:, place] = running
    return returns


def gae(rewards: Tensor, values: Tensor, mask: Tensor, *, gamma: float, lam: float) -> Tensor:
    """[C, T]: generalized advantage estimation (arXiv 1506.02438, equation 16) over steps, be they tokens or
    turns; all arguments are 0 where `mask` is False, and the value after the last step is 0."""
    following = torch.nn.functional.pad(values[:, 1:], (0, 1))
    return discounted_returns((rewards + gamma * following - values) * mask, gamma=gamma * lam)


def turn_scores_of(trajectories: Sequence[Trajectory]) -> Tensor:
    """[C, N], float64: the reward of each turn; 0 where a conversation has no more turns."""
    rewards = [[turn.reward for turn in trajectory.turns] for trajectory in trajectories]
    longest = max(map(len, rewards), default=0)
    return torch.tensor([row + [0.0] * (longest - len(row)) for row in rewards], dtype=torch.float64)
