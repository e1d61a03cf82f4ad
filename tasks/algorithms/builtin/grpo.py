"""Group relative policy optimization."""

from typing import TYPE_CHECKING

from tasks.algorithms.algorithm import Estimate, OnlineAlgorithm

if TYPE_CHECKING:
    from tasks.algorithms.conversations import Conversations


class Grpo(OnlineAlgorithm):
    """(R − mean of the group) / (standard deviation of the group + 1e-6), on every token.

    Shao et al. 2024 (arXiv 2402.03300, section 4.1.2). verl: `grpo`.
    """

    name: str = "grpo"

    def estimate(self, batch: "Conversations") -> Estimate:
        """The advantages are exactly 0 for a group of equal rewards."""
        return Estimate(batch.spread(batch.compare(batch.scores)))
