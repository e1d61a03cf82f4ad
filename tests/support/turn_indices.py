"""To which turn a token belongs, counted by hand."""

import torch

from tasks.algorithms.conversations import Conversations


def turn_indices(batch: Conversations) -> torch.Tensor:
    """[C, T], int64: the index of each token's turn, 0 where there is no token."""
    indices = torch.zeros(batch.mask.shape, dtype=torch.int64)
    for row, trajectory in enumerate(batch.trajectories):
        turns = [i for i, turn in enumerate(trajectory.turns) for _ in turn.completion.token_ids]
        indices[row, : len(turns)] = torch.tensor(turns)
    return indices
