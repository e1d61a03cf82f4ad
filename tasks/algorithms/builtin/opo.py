"""On-policy RL with the optimal reward baseline."""

from typing import TYPE_CHECKING

from tasks.algorithms.algorithm import Estimate, OnlineAlgorithm

if TYPE_CHECKING:
    from tasks.algorithms.conversations import Conversations


class Opo(OnlineAlgorithm):
    """R − the mean of the group weighed by the number of sampled tokens.

    The baseline of least variance if every token's gradient is as long as any other's: Hao et al. 2025 (arXiv
    2505.23585, equation 7). verl: `opo`.
    """

    name: str = "opo"

    def estimate(self, batch: "Conversations") -> Estimate:
        scores = batch.scores
        advantages = scores - batch.group_mean(scores, weights=batch.lengths)
        return Estimate(batch.spread(advantages * ~batch.has_equal_rewards(scores)))
