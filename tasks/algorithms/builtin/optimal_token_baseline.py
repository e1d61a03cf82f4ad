"""The baseline of least variance for each token."""

from typing import TYPE_CHECKING

from tasks.algorithms.algorithm import Estimate, OnlineAlgorithm

if TYPE_CHECKING:
    from tasks.algorithms.conversations import Conversations


class OptimalTokenBaseline(OnlineAlgorithm):
    """The sum of the rewards from a token on − its mean over the conversations of the group that have a token
    in this place, weighed by W; 0 instead of the mean where only one has.

    W_k = Σ over j ≤ k of 1 − 2·π_j + Σπ_j², the squared norms of the gradients of the log-probabilities by
    the logits, over sampled tokens. Σπ² is that of the whole vocabulary: it costs a forward pass on a CPU,
    and on GPUs the logits of a whole micro-batch at once.

    Li et al. 2026 (arXiv 2602.07078). verl: `tir_optimal_token_baseline`, without importance weights.
    """

    skips_equal_groups = False  # equal sums may come at different tokens
    credits_parts = True
    needs_sum_pi_squared = True

    name: str = "optimal_token_baseline"

    def estimate(self, batch: "Conversations") -> Estimate:
        from tasks.algorithms.conversations import discounted_returns

        assert batch.sum_pi_squared is not None
        energy = 1 - 2 * batch.old_log_probs.exp() + batch.sum_pi_squared
        energy = energy.clamp(min=0) * batch.mask  # rounding makes that of a token with π near 1 negative
        weights = energy.cumsum(1) * batch.mask
        returns = discounted_returns(batch.token_rewards, gamma=1.0)
        is_alone = batch.group_sum(batch.mask.to(returns.dtype)) < 2
        baseline = batch.group_sum(returns * weights) / (batch.group_sum(weights) + 1e-8)
        return Estimate((returns - baseline.masked_fill(is_alone, 0.0)) * batch.mask)
