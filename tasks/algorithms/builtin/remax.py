"""REINFORCE with the reward of a greedy episode as the baseline."""

from typing import TYPE_CHECKING

from envs.errors import WingspanError
from tasks.algorithms.algorithm import Estimate, OnlineAlgorithm

if TYPE_CHECKING:
    from tasks.algorithms.conversations import Conversations


class Remax(OnlineAlgorithm):
    """The sum of the rewards from each token on − the reward of the item's greedy episode.

    Li et al. 2023 (arXiv 2310.10505, algorithm 2). Each step plays one more episode an item. verl: `remax`.
    """

    compares_group = False
    skips_equal_groups = False
    credits_parts = True
    needs_greedy = True

    name: str = "remax"

    def estimate(self, batch: "Conversations") -> Estimate:
        import torch

        from tasks.algorithms.conversations import by_rows, discounted_returns

        if batch.greedy_rewards is None:
            raise WingspanError("remax: no greedy episodes were played")
        returns = discounted_returns(batch.token_rewards, gamma=1.0)
        return Estimate(by_rows(torch.sub, returns, batch.spread(batch.greedy_rewards)))
