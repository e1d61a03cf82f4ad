"""REINFORCE++."""

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from tasks.algorithms.algorithm import Estimate, OnlineAlgorithm

if TYPE_CHECKING:
    from tasks.algorithms.conversations import Conversations


class ReinforcePlusPlus(OnlineAlgorithm):
    """The discounted sum of the rewards from each token on, whitened over all tokens of the step.

    Without a group: any `rollout.group_size` will do. Hu 2025 (arXiv 2501.03262, section 3). verl:
    `reinforce_plus_plus`.
    """

    compares_group = False
    skips_equal_groups = False
    credits_parts = True

    name: str = "reinforce_plus_plus"
    gamma: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Discount of a token."""

    def estimate(self, batch: "Conversations") -> Estimate:
        from tasks.algorithms.conversations import discounted_returns, whiten_

        returns = discounted_returns(batch.token_rewards, gamma=self.gamma)
        return Estimate(whiten_(returns, batch.mask))
