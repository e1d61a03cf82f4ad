"""Clipped weights of importance sampling."""

from typing import Annotated, Literal

from pydantic import Field

from tasks.algorithms.losses.loss import ClipRatio, PolicyLoss, TokenLosses, Tokens


class CispoLoss(PolicyLoss):
    """−sg(clip(r, 1 − low, 1 + high))·A·log π: no token loses its gradient.

    MiniMax-M1 (arXiv 2506.13585, equation 4), which bounds the ratio from above only (`clip_low: 1`); the
    bound of 5 is ScaleRL's (arXiv 2510.13786). verl: `cispo`.
    """

    name: Literal["cispo"] = "cispo"
    clip_low: Annotated[float, Field(gt=0, le=1)] = 1.0
    clip_high: ClipRatio = 4.0

    def per_token(self, tokens: Tokens) -> TokenLosses:
        """As of `PolicyLoss`."""
        ratio = tokens.log_ratios.exp().detach()
        clipped_ratio = ratio.clamp(1 - self.clip_low, 1 + self.clip_high)
        return TokenLosses(-clipped_ratio * tokens.advantages * tokens.log_probs, clipped_ratio != ratio)
