"""Group policy gradient."""

from typing import TYPE_CHECKING

from tasks.algorithms.algorithm import Estimate, OnlineAlgorithm
from tasks.algorithms.losses import AnyLoss, GpgLoss

if TYPE_CHECKING:
    from tasks.algorithms.conversations import Conversations


class Gpg(OnlineAlgorithm):
    """α·(R − mean of the group), with the plain policy gradient as the loss.

    α is the number of episodes played by the number of those in groups whose rewards differ: the gradient is
    as large as if no group had been without one. Chu et al. 2025 (arXiv 2504.02546, section 3). verl: `gpg`,
    which counts episodes of reward 0 instead.
    """

    name: str = "gpg"
    loss: AnyLoss = GpgLoss()

    def estimate(self, batch: "Conversations") -> Estimate:
        scores = batch.scores
        alpha = batch.num_played / (~batch.has_equal_rewards(scores)).sum().clamp(min=1)
        return Estimate(batch.spread(alpha * batch.compare(scores, normalize_by_std=False)))
