"""What is learned from finished episodes: which are imitated, which are compared, and as which tokens.

Owns selection: by success or reward, without duplicates, in pairs of a better and a worse episode of one
item. Leaves out training (`tasks/verl/sft.py`, `tasks/verl/dpo.py`) and where episodes come from.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from agents.rollout.packing import pack
from agents.types import Trajectory
from tasks.data.trajectories import is_usable


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisedRow:
    """A segment of a conversation, as supervised training reads it."""

    item_id: str
    prompt_ids: list[int]  # [P]
    response_ids: list[int]  # [R], ends with a token of the policy
    mask: list[int]  # [R], 1 on the tokens to imitate, or to compare


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The rows to imitate, and how they were chosen."""

    rows: list[SupervisedRow]
    """The original ones, then those of the chosen episodes, in order."""
    chosen: int
    """Episodes that were good enough."""
    duplicates: int
    """The number of chosen ones whose rows were all there already; they are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferencePair:
    """Two episodes of one item."""

    winner: Trajectory
    loser: Trajectory


def rows_of(trajectory: Trajectory) -> list[SupervisedRow]:
    """The segments of an episode, with the policy's tokens to imitate. Raises `ValueError` as `pack`."""
    return [
        SupervisedRow(
            item_id=trajectory.item.item_id,
            prompt_ids=list(segment.prompt_ids),
            response_ids=list(segment.response_ids),
            mask=list(segment.response_mask),
        )
        for segment in pack(trajectory)
    ]


def select(
    trajectories: Iterable[Trajectory], *, original: Sequence[SupervisedRow] = (), min_reward: float | None
) -> Selection:
    """`original`, and the episodes that are worth imitating, each once.

    `min_reward`: the least reward that is; None takes those that succeeded. A duplicate is an episode of the
    same item with the same tokens, be it another one's or an original's.
    """
    rows = list(original)
    known_rows = {_identity(row) for row in rows}
    chosen = duplicates = 0
    for trajectory in trajectories:
        if not is_usable(trajectory) or not _is_good(trajectory, min_reward=min_reward):
            continue
        chosen += 1
        new_rows = rows_of(trajectory)
        if all(_identity(row) in known_rows for row in new_rows):
            duplicates += 1
            continue
        rows += new_rows
        known_rows |= {_identity(row) for row in new_rows}
    return Selection(rows=rows, chosen=chosen, duplicates=duplicates)


def make_pairs(
    trajectories: Iterable[Trajectory], *, win_threshold: float, min_gap: float, pairs_per_item: int
) -> list[PreferencePair]:
    """The best episode of each item with its worst, the second best with the second worst, and so on.

    A winner has a reward of at least `win_threshold`, and at least `min_gap` more than its loser: the rules
    of AgentGym's `make_dpo_dataset.py`, which knows two episodes per item. Among equal rewards, the earlier
    episode comes first. Items are in the order of their first episode.
    """
    episodes: dict[str, list[Trajectory]] = defaultdict(list)
    for trajectory in trajectories:
        if is_usable(trajectory):
            episodes[trajectory.item.item_id].append(trajectory)
    return [
        pair
        for group in episodes.values()
        for pair in _pairs_of(group, win_threshold=win_threshold, min_gap=min_gap, at_most=pairs_per_item)
    ]


def _pairs_of(
    group: Sequence[Trajectory], *, win_threshold: float, min_gap: float, at_most: int
) -> Iterator[PreferencePair]:
    best = sorted(group, key=lambda t: -t.reward)
    worst = sorted(group, key=lambda t: t.reward)
    for _, winner, loser in zip(range(min(at_most, len(group) // 2)), best, worst, strict=False):
        if winner.reward >= win_threshold and winner.reward - loser.reward >= min_gap:
            yield PreferencePair(winner=winner, loser=loser)


def _is_good(trajectory: Trajectory, *, min_reward: float | None) -> bool:
    return trajectory.success if min_reward is None else trajectory.reward >= min_reward


def _identity(row: SupervisedRow) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    return row.item_id, tuple(row.prompt_ids), tuple(row.response_ids)
