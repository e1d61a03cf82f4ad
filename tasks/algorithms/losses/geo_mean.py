"""The geometric mean of clipped ratios."""

from typing import Literal

from tasks.algorithms.losses.loss import ClipRatio, PolicyLoss, TokenLosses, Tokens


class GeoMean(PolicyLoss):
    """−A·exp(mean over a conversation's tokens of the clipped log-ratio), A the mean of the tokens'
    advantages.

    GMPO, Zhao et al. 2025 (arXiv 2507.20673, equation 5). verl: `geo_mean`, which takes the mean over the
    rows of a micro-batch; here a conversation weighs as `aggregation` says.
    """

    needs_whole_conversations = True

    name: Literal["geo_mean"] = "geo_mean"
    clip_low: ClipRatio = 0.4
    """Of the log-ratio."""
    clip_high: ClipRatio = 0.4

    def per_token(self, tokens: Tokens) -> TokenLosses:
        """As of `PolicyLoss`."""
        sign, log_ratios = tokens.advantages.sign(), tokens.log_ratios
        clipped_ratios = log_ratios.clamp(-self.clip_low, self.clip_high)
        pessimistic = sign * (sign * log_ratios).minimum(sign * clipped_ratios)
        ratio = tokens.conversation_mean(pessimistic).exp()
        advantage = tokens.conversation_mean(tokens.advantages)
        return TokenLosses((-advantage * ratio).expand_as(log_ratios), clipped_ratios != log_ratios)
