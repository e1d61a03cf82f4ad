"""PPO's clipped objective, with its variants clip-higher and dual clip."""

from typing import Annotated, Literal

from pydantic import Field

from tasks.algorithms.losses.loss import ClipRatio, PolicyLoss, TokenLosses, Tokens


class Vanilla(PolicyLoss):
    """min(r·A, clip(r, 1 − low, 1 + high)·A), with r the ratio of new to old probability.

    Schulman et al. 2017 (arXiv 1707.06347, equation 7). `clip_high` above `clip_low` is clip-higher (DAPO,
    arXiv 2503.14476). `dual_clip` bounds the loss of a negative advantage at that ratio (Ye et al. 2019,
    arXiv 1912.09729, equation 5). verl: `vanilla`.
    """

    name: Literal["vanilla"] = "vanilla"
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    clip_high: ClipRatio = 0.2
    dual_clip: Annotated[float, Field(gt=1)] = 3.0

    def per_token(self, tokens: Tokens) -> TokenLosses:
        """As of `PolicyLoss`."""
        ratio, advantages = tokens.log_ratios.exp(), tokens.advantages
        free = -advantages * ratio
        clipped_losses = -advantages * ratio.clamp(1 - self.clip_low, 1 + self.clip_high)
        losses = free.maximum(clipped_losses)
        dual_clipped = losses.minimum(-advantages * self.dual_clip)
        return TokenLosses(dual_clipped.where(advantages < 0, losses), clipped_losses > free)
