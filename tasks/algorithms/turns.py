"""A step's turns, for estimators that give each turn its own advantage, and compare those that were taken in
the same state.

Shapes: `C` conversations of the step, `K` turns of the longest, left-aligned.
"""

from dataclasses import dataclass

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
    shape = (len(batch.trajectories), num_turns)
    numbers: dict[tuple[int, object], int] = {}
    states, has_state, following = [], [], []  # flat, a row of K after the other

    def number(key: str | None, group: int) -> int:
        return numbers.setdefault((group, object() if key is None else key), len(numbers))

    for trajectory, group in zip(batch.trajectories, batch.group.tolist(), strict=True):
        keys = [turn.state for turn in trajectory.turns]
        if not any(keys):
            raise WingspanError(
                f"{algorithm}: {trajectory.where}, has no states; "
                f"give {trajectory.item.env} a state_key (docs/new-environment.md); update its servers"
            )
        row = [number(key, group) for key in keys]
        if trajectory.success:
            last = GOAL
        elif trajectory.final_state is None:
            last = DEAD_END
        else:
            last = number(trajectory.final_state, group)
        ends = []
        for key, state in zip(reversed(keys), reversed(row), strict=True):
            ends.append(last)
            if key is not None:  # a summary leads to where it was made
                last = state
        padding = [0] * (num_turns - len(row))
        states += [*row, *padding]
        has_state += [*(key is not None for key in keys), *padding]
        following += [*reversed(ends), *padding]

    num_of_trajectory = torch.tensor([len(trajectory.turns) for trajectory in batch.trajectories])
    return Turns(
        mask=torch.arange(num_turns) < num_of_trajectory.unsqueeze(1),
        rewards=batch.turn_rewards,
        state=torch.tensor(states).view(shape),
        has_state=torch.tensor(has_state, dtype=torch.bool).view(shape),
        following=torch.tensor(following).view(shape),
        num_states=len(numbers),
    )
