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


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """All turns of a step."""

    mask: Tensor  # [C, K], bool
    rewards: Tensor  # [C, K], float64
    state: Tensor  # [C, K], int64
    """Number of the state in which the turn was taken, the same for the same state of the same group only. A
    turn without one, a summary, has a number of its own."""
    has_state: Tensor  # [C, K], bool
    following: Tensor  # [C, K], int64
    """Number of the state that the turn led to, `GOAL` or `DEAD_END`."""
    num_states: int


def turns_of_step(batch: Conversations, *, algorithm: str) -> Turns:
    """The turns of `batch`; raises `WingspanError`, naming `algorithm`, for a conversation without states."""
    num_turns = max(len(trajectory.turns) for trajectory in batch.trajectories)
    numbers = count()
    # of each group, the number of each key: that of the first look-up is new
    number_of_key = defaultdict[int, dict[str, int]](lambda: defaultdict(numbers.__next__))
    states, has_state, following = [], [], []  # [C] lists of [K]
    for trajectory, group in zip(batch.trajectories, batch.group.tolist(), strict=True):
        keys = [turn.state for turn in trajectory.turns]
        if not any(keys):
            raise WingspanError(
                f"{algorithm}: {trajectory.where}, has no states; "
                f"give {trajectory.item.env} a state_key (docs/new-environment.md); update its servers"
            )
        number = number_of_key[group]
        row = [next(numbers) if key is None else number[key] for key in keys]
        if trajectory.success:
            last = GOAL
        elif trajectory.final_state is None:
            last = DEAD_END
        else:
            last = number[trajectory.final_state]
        ends = []
        for key, state in zip(reversed(keys), reversed(row), strict=True):
            ends.append(last)
            if key is not None:  # a summary leads to where it was made
                last = state
        padding = [0] * (num_turns - len(row))
        states.append(row + padding)
        has_state.append([key is not None for key in keys] + padding)
        following.append(ends[::-1] + padding)

    # numpy reads lists in a fifth of torch's time
    return Turns(
        mask=batch.turn_lengths[:, :-1] > 0,
        rewards=batch.turn_rewards,
        state=torch.from_numpy(np.array(states)),
        has_state=torch.from_numpy(np.array(has_state, dtype=np.bool_)),
        following=torch.from_numpy(np.array(following)),
        num_states=next(numbers),
    )
