"""REINFORCE with a leave-one-out baseline."""

from typing import TYPE_CHECKING

from tasks.algorithms.algorithm import Estimate, OnlineAlgorithm

if TYPE_CHECKING:
    from tasks.algorithms.conversations import Conversations


class Rloo(OnlineAlgorithm):
    """R − the mean of the *other* conversations of the group.

    Ahmadian et al. 2024 (arXiv 2402.14740, equation 8). verl: `rloo`.
    """

    name: str = "rloo"

    def estimate(self, batch: "Conversations") -> Estimate:
        scores, size = batch.scores, batch.group_size()
        advantages = (scores - batch.group_mean(scores)) * size / (size - 1).clamp(min=1)
        return Estimate(batch.spread(advantages * ~batch.has_equal_rewards(scores)))
