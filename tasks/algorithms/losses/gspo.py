"""Sequence-level clipping."""

from typing import Literal

from tasks.algorithms.losses.loss import ClipRatio, PolicyLoss, TokenLosses, Tokens


class GspoLoss(PolicyLoss):
    """PPO's clipped objective with one ratio for a whole conversation: the geometric mean of its tokens'
    ratios.

    Zheng et al. 2025 (arXiv 2507.18071, equations 5 and 7, in the token form of equation 13, whose gradient
    is the same for equal advantages; the clip of section 5.1). verl: `gspo`.
    """

    needs_whole_conversations = True

    name: Literal["gspo"] = "gspo"
    clip_low: ClipRatio = 3e-4
    clip_high: ClipRatio = 4e-4

    def per_token(self, tokens: Tokens) -> TokenLosses:
        """As of `PolicyLoss`."""
        mean_log_ratio = tokens.conversation_mean(tokens.log_ratios).detach()
        ratio = (tokens.log_probs - tokens.log_probs.detach() + mean_log_ratio).exp()
        free = -tokens.advantages * ratio
        clipped_losses = -tokens.advantages * ratio.clamp(1 - self.clip_low, 1 + self.clip_high)
        return TokenLosses(free.maximum(clipped_losses), clipped_losses > free)
