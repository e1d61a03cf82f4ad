"""Maximum likelihood reinforcement learning."""

from typing import TYPE_CHECKING

from tasks.algorithms.algorithm import Estimate, OnlineAlgorithm
from tasks.algorithms.equality import RELATIVE_TOLERANCE

if TYPE_CHECKING:
    from tasks.algorithms.conversations import Conversations


class Maxrl(OnlineAlgorithm):
    """(R − mean of the group) / mean of the group, 0 where the mean is not positive.

    For rewards of 0 and 1, an item weighs 1/p with p its share of successes: the gradient of log p instead of
    that of p. arXiv 2602.02710; prime-rl: `max_rl`.
    """

    name: str = "maxrl"

    def estimate(self, batch: "Conversations") -> Estimate:
        scores = batch.scores
        mean = batch.group_mean(scores)
        rounding = RELATIVE_TOLERANCE * batch.group_mean(scores.abs())
        advantages = ((scores - mean) / mean).where(mean > rounding, 0.0)
        return Estimate(batch.spread(advantages * ~batch.has_equal_rewards(scores)))
