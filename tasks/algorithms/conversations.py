"""A step's trajectories as tensors, for advantage estimators: the segments of each joined to one
conversation, in the order of its turns.

Only what the policy sampled is kept. An estimator therefore never sees an observation token, a prompt or the
place where a segment ends, and its result is put back into the rows that are trained on
(`tasks/verl/advantages.py`).

Shapes: `C` conversations of the step, `T` sampled tokens of the longest and `N` turns of the one with the
most, left-aligned. All tensors are in the CPU's memory, as the rows are, whatever device trains.

What takes time is to write tensors of [C, T]: an estimator computes with numbers per conversation or per turn
where it can, and spreads them over the tokens once.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import torch
from torch import Tensor

from agents.types import Trajectory
from tasks.algorithms.algorithm import Estimate as Estimate  # with what it is made of, for users' algorithms
from tasks.algorithms.equality import ABSOLUTE_TOLERANCE, RELATIVE_TOLERANCE

_CACHED = 1 << 17
"""Numbers of a tensor that are computed with at once: a few such tensors fit into a core's cache."""

_CHUNK = 32
"""Steps whose discounted sums are one product with a matrix; twice as many take twice as long to multiply."""


@dataclass(frozen=True, kw_only=True)
class Conversations:
    """What an advantage estimator is given. Tensors of [C, T] are 0 where `mask` is False; their numbers are
    float32 or wider."""

    trajectories: Sequence[Trajectory]  # [C]
    group: Tensor  # [C], int64: conversations of one item have the same number
    mask: Tensor  # [C, T], bool
    turn_scores: Tensor  # [C, N], float64: reward of each turn, before the KL penalty
    kl_penalty: Tensor | None = None  # [C, T], subtracted from each token's reward
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
        return self.turn_scores - self.turn_sum(self.kl_penalty)

    @property
    def scores(self) -> Tensor:
        """[C], float64: the sum of each conversation's rewards."""
        return self.turn_rewards.sum(1)

    @property
    def token_rewards(self) -> Tensor:
        """[C, T], as the log-probs' type: each turn's score on its last token, less the KL penalty. For
        estimators that compute with each token and compare no sum with another."""
        rewards = self._place(self.turn_scores, self.turn_starts + self.turn_lengths - 1)
        return rewards if self.kl_penalty is None else rewards.sub_(self.kl_penalty)

    @property
    def lengths(self) -> Tensor:
        """[C], int64: sampled tokens."""
        return by_rows(lambda mask: _convert(mask, torch.float32).sum(1), self.mask).long()

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
        """[C, N], int64: the place of each turn's first token; after the last turn, the first without one."""
        return self.turn_lengths.cumsum(1) - self.turn_lengths

    def at_turn_starts(self, per_turn: Tensor) -> Tensor:
        """[C, N] → [C, T], as the log-probs' type: each value on the first token of its turn, 0 elsewhere."""
        return self._place(per_turn, self.turn_starts)

    def first_of_turns(self, values: Tensor) -> Tensor:
        """[C, T] → [C, N]: the value of each turn's first token, 0 after the last turn."""
        starts = self.turn_starts.clamp(max=self.mask.shape[1] - 1)
        return values.gather(1, starts).where(self.turn_lengths > 0, 0.0)

    def _place(self, per_turn: Tensor, places: Tensor) -> Tensor:
        """[C, N] → [C, T]: each turn's value at its place, `places` [C, N]; 0 elsewhere."""
        values = per_turn.where(self.turn_lengths > 0, 0.0).to(self.old_log_probs.dtype)
        zeros = torch.from_numpy(np.zeros(self.mask.shape, values.numpy().dtype))
        return zeros.scatter_add_(1, places.clamp(min=0, max=self.mask.shape[1] - 1), values)

    @property
    def turn_lengths(self) -> Tensor:
        """[C, N], int64: sampled tokens of each turn, 0 after the last."""
        return self._columns_of_turns[:, :-1]

    @cached_property
    def _columns_of_turns(self) -> Tensor:
        """[C, N + 1], int64: of the T columns, those of each turn, and at the end those without a token."""
        num_turns = np.array([len(trajectory.turns) for trajectory in self.trajectories], dtype=np.int64)
        lengths = [len(turn.completion.token_ids) for t in self.trajectories for turn in t.turns]
        counts = torch.zeros(len(num_turns), num_turns.max(initial=0) + 1, dtype=torch.int64)
        counts.numpy()[np.arange(counts.shape[1]) < num_turns[:, None]] = lengths
        counts[:, -1] = self.mask.shape[1] - counts.sum(1)
        return counts

    def turn_sum(self, values: Tensor) -> Tensor:
        """[C, N], float64: the sum of `values` [C, T] over each turn."""

        def sums(values: Tensor, lengths: Tensor) -> Tensor:
            flat = torch.segment_reduce(values.double().reshape(-1), "sum", lengths=lengths.reshape(-1))
            return flat.view(lengths.shape)

        return by_rows(sums, values, self._columns_of_turns)[:, :-1]

    def spread_turns(self, per_turn: Tensor) -> Tensor:
        """[C, N] → [C, T], as the log-probs' type: the same value on every token of a turn, 0 elsewhere."""
        return self._repeat(per_turn, self._columns_of_turns)

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


def by_rows(compute: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """[C, …]: `compute(*tensors)`, where each row depends on the same row of the `tensors` [C, …] alone.

    `compute` gets a few rows at a time, so that what it makes on the way stays in the cache. The result is an
    array of numpy's, which are on huge pages: to write it for the first time takes a third of the time.
    """
    blocks = _blocks_of_rows(*tensors)
    first = compute(*next(blocks))
    shape = (len(tensors[0]), *first.shape[1:])
    memory = np.empty(math.prod(shape) * first.element_size(), np.uint8)  # numpy has no bfloat16
    result = torch.from_numpy(memory).view(first.dtype).view(shape)
    result[: len(first)] = first
    for rows, block in zip(result.split(len(first))[1:], blocks, strict=True):
        rows.copy_(compute(*block))
    return result


def _blocks_of_rows(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The `tensors` [C, …], a few rows at a time."""
    columns = max(tensor[0].numel() for tensor in tensors)
    num_rows = max(1, _CACHED // max(1, columns))
    return zip(*(tensor.split(num_rows) for tensor in tensors), strict=True)


def whiten_(values: Tensor, counts: Tensor) -> Tensor:
    """Shift and scale `values`, in place, to mean 0 and variance 1 over all tokens of the step, `counts` of
    which have a value; 0 where none has. Return `values` (verl's `masked_whiten`).

    Shapes: both [C] with the lengths of conversations, [C, N] with those of turns, or [C, T] with the mask.
    """

    def moments(part: Tensor, counts: Tensor) -> Tensor:
        part, weights = part.reshape(len(part), -1), _convert(counts, part.dtype).reshape(len(part), -1)
        total = weights.sum(1)
        mean = (part * weights).sum(1) / total.clamp(min=1)
        squares = (part - mean.unsqueeze(1)).square_().mul_(weights).sum(1)
        return torch.stack([total, mean, squares], 1).double()

    totals, means, squares = by_rows(moments, values, counts).unbind(1)
    total = float(totals.sum())
    if total < 2:
        return values
    mean = float((totals * means).sum()) / total
    # the variance within rows and that between them
    variance = float((squares + totals * (means - mean).square()).sum()) / (total - 1)
    scale = (variance + 1e-8) ** -0.5
    for part, part_counts in _blocks_of_rows(values, counts):
        part.sub_(mean).mul_(scale).mul_(_convert(part_counts, part.dtype).clamp(max=1))
    return values


def _convert(counts: Tensor, dtype: torch.dtype) -> Tensor:
    """`counts` or a mask as another type; torch takes five times as long for a mask as for the same bytes."""
    return (counts.view(torch.uint8) if counts.dtype == torch.bool else counts).to(dtype)


def discounted_returns(rewards: Tensor, *, gamma: float) -> Tensor:
    """[C, T]: Σ over l ≥ k of gamma^(l − k)·rewards_l."""
    return by_rows(lambda part: _discount(part, gamma), rewards)


def gae(rewards: Tensor, values: Tensor, *, gamma: float, lam: float) -> Tensor:
    """[C, T]: generalized advantage estimation (arXiv 1506.02438, equation 16) over steps, be they tokens or
    turns; both arguments are 0 after the last step, and so is the result."""

    def estimate(rewards: Tensor, values: Tensor) -> Tensor:
        deltas = rewards - values  # and of all but the last step, + γ·V of the next
        deltas[:, :-1].add_(values[:, 1:], alpha=gamma)
        return _discount(deltas, gamma * lam)

    return by_rows(estimate, rewards, values)


def _discount(rewards: Tensor, gamma: float) -> Tensor:
    """`discounted_returns`: the sums within chunks of steps are one product with a matrix, and what follows a
    chunk is the same problem for the first sums of chunks."""
    steps = rewards.shape[1]
    if steps <= _CHUNK:
        return rewards @ _powers(gamma, steps, rewards.dtype)
    powers = _powers(gamma, _CHUNK, rewards.dtype)
    chunks = torch.nn.functional.pad(rewards, (0, -steps % _CHUNK)).unflatten(1, (-1, _CHUNK))
    returns: Tensor = chunks @ powers
    following = _discount(returns[:, 1:, 0], gamma**_CHUNK)
    returns[:, :-1].addcmul_(following.unsqueeze(2), gamma * powers[-1])
    return returns.flatten(1)[:, :steps]


@cache
def _powers(gamma: float, steps: int, dtype: torch.dtype) -> Tensor:
    """[steps, steps]: gamma^(l − k) in row l and column k ≤ l, 0 elsewhere."""
    step = torch.arange(steps)
    powers = torch.full((steps, steps), gamma, dtype=torch.float64)
    powers.pow_((step.unsqueeze(1) - step).clamp(min=0))
    return powers.tril().to(dtype)


def turn_scores_of(trajectories: Sequence[Trajectory]) -> Tensor:
    """[C, N], float64: the reward of each turn; 0 where a conversation has no more turns."""
    rewards = [[turn.reward for turn in trajectory.turns] for trajectory in trajectories]
    longest = max(map(len, rewards), default=0)
    padded = [row + [0.0] * (longest - len(row)) for row in rewards]
    return torch.from_numpy(np.array(padded, dtype=np.float64))
