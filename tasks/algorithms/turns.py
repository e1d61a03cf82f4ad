"""A step's turns, for estimators that give each turn its own advantage, and compare those that were taken in
the same state.

Shapes: `C` conversations of the step, `K` turns of the longest, left-aligned.
"""

from collections import defaultdict
from dataclasses import dataclass
from itertools import count

import numpy as np
import torch
from torch import Tensor

from envs.errors import WingspanError
from tasks.algorithms.conversations import Conversations

GOAL, DEAD_END = -1, -2
"""Where a turn leads that ends the problem: solved, and not."""
NO_STATE = -3
"""The mark of a turn without a state, and of a place after the last turn, until these are numbered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """All turns of a step."""

    mask: Tensor  # [C, K], bool
    rewards: Tensor  # [C, K], float64
    state: Tensor  # [C, K], int64
    """Number of the state in which the turn was taken, the same for the same state of the same group only. A
    turn without one, a summary, has a number of its own, as has each place after the last turn."""
    has_state: Tensor  # [C, K], bool
    following: Tensor  # [C, K], int64
    """Number of the state that the turn led to, `GOAL` or `DEAD_END`."""
    num_states: int


def turns_of_step(batch: Conversations, *, algorithm: str) -> Turns:
    """The turns of `batch`; raises `WingspanError`, naming `algorithm`, for a conversation without states."""
    num_turns = max(len(trajectory.turns) for trajectory in batch.trajectories)
    numbers = count()
    # of each group, the number of each key: that of the first look-up is new
    number_of_key = defaultdict[int, dict[str | None, int]](
        lambda: defaultdict(numbers.__next__, {None: NO_STATE})
    )
    rows, ends = [], []  # of each conversation: the states of its turns, and where its last turn led
    for trajectory, group in zip(batch.trajectories, batch.group.tolist(), strict=True):
        number = number_of_key[group]
        row = [number[turn.state] for turn in trajectory.turns]
        rows.append(row + [NO_STATE] * (num_turns - len(row)))
        if trajectory.success:
            ends.append(GOAL)
        elif trajectory.final_state is None:
            ends.append(DEAD_END)
        else:
            ends.append(number[trajectory.final_state])

    state = np.array(rows)  # numpy reads lists in a fifth of torch's time
    has_state = state != NO_STATE
    has_any_state = has_state.any(1)
    if not has_any_state.all():
        trajectory = batch.trajectories[int(has_any_state.argmin())]
        raise WingspanError(
            f"{algorithm}: {trajectory.where}, has no states; "
            f"give {trajectory.item.env} a state_key (docs/new-environment.md); update its servers"
        )
    # A summary leads to where it was made: a turn leads to the state of the next turn that has one.
    place = np.where(has_state, np.arange(num_turns), num_turns)
    place_from_here_on = np.minimum.accumulate(place[:, ::-1], axis=1)[:, ::-1]
    following_place = np.pad(place_from_here_on[:, 1:], ((0, 0), (0, 1)), constant_values=num_turns)
    following = np.take_along_axis(np.column_stack([state, ends]), following_place, axis=1)
    num_keys = next(numbers)
    num_states = num_keys + int((~has_state).sum())
    state[~has_state] = np.arange(num_keys, num_states)
    return Turns(
        mask=batch.turn_lengths > 0,
        rewards=batch.turn_rewards,
        state=torch.from_numpy(state),
        has_state=torch.from_numpy(has_state),
        following=torch.from_numpy(following),
        num_states=num_states,
    )
