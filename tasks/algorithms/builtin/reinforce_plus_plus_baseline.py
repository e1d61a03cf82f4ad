"""REINFORCE++ with a group's mean as the baseline."""

from typing import TYPE_CHECKING

from tasks.algorithms.algorithm import Estimate, OnlineAlgorithm

if TYPE_CHECKING:
    from tasks.algorithms.conversations import Conversations


class ReinforcePlusPlusBaseline(OnlineAlgorithm):
    """R − mean of the group, whitened over all tokens of the step.

    Hu 2025 (arXiv 2501.03262, section 3.3). verl: `reinforce_plus_plus_baseline`.
    """

    skips_equal_groups = False

    name: str = "reinforce_plus_plus_baseline"

    def estimate(self, batch: "Conversations") -> Estimate:
        from tasks.algorithms.conversations import whiten_

        scores = batch.scores
        return Estimate(batch.spread(whiten_(scores - batch.group_mean(scores), batch.lengths)))
