"""Two remedies against the fall of entropy, by the covariance of advantage and log-probability.

Cui et al. 2025, "The Entropy Mechanism of Reinforcement Learning" (arXiv 2505.22617, section 4). As in verl,
the means are those of a micro-batch: its size has an effect.
"""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from tasks.algorithms.losses.loss import ClipRatio, PolicyLoss, TokenLosses, Tokens

if TYPE_CHECKING:
    from torch import Tensor

Share = Annotated[float, Field(gt=0, le=1)]


class ClipCov(PolicyLoss):
    """PPO's clipped objective without the gradient of a few tokens of high covariance, drawn at random.

    Equations 10 and 11. verl: `clip_cov`.
    """

    name: Literal["clip_cov"] = "clip_cov"
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    clip_high: ClipRatio = 0.2
    share: Share = 2e-4
    """Of the tokens, that lose their gradient."""
    lowest: float = 1.0
    highest: float = 5.0
    """Between these, a token's covariance is high."""

    def per_token(self, tokens: Tokens) -> TokenLosses:
        """As of `PolicyLoss`."""
        import torch

        ratio, mask = tokens.log_ratios.exp(), tokens.mask
        free = -tokens.advantages * ratio
        clipped_losses = -tokens.advantages * ratio.clamp(1 - self.clip_low, 1 + self.clip_high)
        covariance = _covariance(tokens)
        high = (covariance > self.lowest) & (covariance < self.highest) & mask & (clipped_losses <= free)
        candidates = high.reshape(-1).nonzero().squeeze(1)
        count = max(int(self.share * int(mask.sum())), 1)
        generator = torch.Generator().manual_seed(tokens.seed)
        dropped_indices = candidates[
            torch.randperm(len(candidates), generator=generator)[:count].to(candidates.device)
        ]
        is_dropped = (
            torch.zeros_like(mask).reshape(-1).index_fill(0, dropped_indices, True).reshape(mask.shape)
        )
        return TokenLosses(free.maximum(clipped_losses) * ~is_dropped, is_dropped)


class KlCov(PolicyLoss):
    """−r·A, with a penalty |log r| on the tokens of the highest covariance.

    Equations 12 and 13. verl: `kl_cov`.
    """

    name: Literal["kl_cov"] = "kl_cov"
    share: Share = 2e-4
    """Of the tokens, that are penalised."""
    coef: Annotated[float, Field(gt=0)] = 1.0
    """Of the penalty."""

    def per_token(self, tokens: Tokens) -> TokenLosses:
        """As of `PolicyLoss`."""
        import torch

        log_ratios, mask = tokens.log_ratios, tokens.mask
        covariance = _covariance(tokens)[mask]
        count = max(int(self.share * len(covariance)), 1)
        places = mask.reshape(-1).nonzero().squeeze(1)[covariance.topk(min(count, len(covariance))).indices]
        high = torch.zeros_like(mask).reshape(-1).index_fill(0, places, True).reshape(mask.shape)
        return TokenLosses(-tokens.advantages * log_ratios.exp() + self.coef * log_ratios.abs() * high, high)


def _covariance(tokens: Tokens) -> "Tensor":
    """[B, R]: each token's part in the covariance of advantage and log-probability."""
    log_probs, mask = tokens.log_probs.detach(), tokens.mask

    def subtract_mean(values: "Tensor") -> "Tensor":
        return values - values[mask].mean()

    return subtract_mean(tokens.advantages) * subtract_mean(log_probs)
