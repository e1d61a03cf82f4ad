"""The gradient of pass@k."""

from typing import TYPE_CHECKING

from tasks.algorithms.algorithm import Estimate, OnlineAlgorithm

if TYPE_CHECKING:
    from tasks.algorithms.conversations import Conversations


class GrpoPassk(OnlineAlgorithm):
    """Highest reward of the group − the second highest, for the conversation that has the highest; 0 for the
    others.

    With `normalize_by_std`, divided by the group's standard deviation + 1e-6. Tang et al. 2025 (arXiv
    2503.19595, section 3), k being `rollout.group_size`. verl: `grpo_passk`.
    """

    name: str = "grpo_passk"
    normalize_by_std: bool = True

    def estimate(self, batch: "Conversations") -> Estimate:
        import torch

        scores = batch.scores
        advantages = torch.zeros_like(scores)
        by_score = scores.argsort(descending=True)
        by_group = by_score[batch.group[by_score].argsort(stable=True)]  # and in each by score
        size = torch.bincount(batch.group)
        best = (size.cumsum(0) - size)[size > 1]
        advantages[by_group[best]] = scores[by_group[best]] - scores[by_group[best + 1]]
        if self.normalize_by_std:
            advantages = advantages / (batch.group_std(scores) + 1e-6)
        return Estimate(batch.spread(advantages * ~batch.has_equal_rewards(scores)))
