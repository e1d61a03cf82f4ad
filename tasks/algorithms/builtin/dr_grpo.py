"""GRPO done right."""

from typing import TYPE_CHECKING

from tasks.algorithms.algorithm import Aggregation, Estimate, OnlineAlgorithm

if TYPE_CHECKING:
    from tasks.algorithms.conversations import Conversations


class DrGrpo(OnlineAlgorithm):
    """R − mean of the group, and tokens weighed alike whatever their conversation's length.

    GRPO without its two biases, towards easy and hard items and towards long failures: Liu et al. 2025 (arXiv
    2503.20783, section 3.2). verl: `grpo` with `norm_adv_by_std_in_grpo: false`.
    """

    name: str = "dr_grpo"
    aggregation: Aggregation = "seq-mean-token-sum-norm"

    def estimate(self, batch: "Conversations") -> Estimate:
        return Estimate(batch.spread(batch.compare(batch.scores, normalize_by_std=False)))
