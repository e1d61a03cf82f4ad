"""A trust region on the divergence of single tokens, in place of a clip of their ratio."""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from tasks.algorithms.losses.loss import PolicyLoss, TokenLosses, Tokens

if TYPE_CHECKING:
    from torch import Tensor

MaxRatio = Annotated[float, Field(gt=1)]


class DppoTv(PolicyLoss):
    """−sg(min(r, max_ratio))·A·log π, where the total variation that a token moved is within bounds.

    A token is left out if A > 0 and π − π_old > high, or A ≤ 0 and π − π_old < −low. DPPO-Binary-TV (arXiv
    2602.04879, section 4). verl: `dppo_tv`.
    """

    name: Literal["dppo_tv"] = "dppo_tv"
    divergence_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    divergence_high: Annotated[float, Field(gt=0, lt=1)] = 0.2
    max_ratio: MaxRatio = 20.0

    def per_token(self, tokens: Tokens) -> TokenLosses:
        """As of `PolicyLoss`."""
        shift = (tokens.log_probs.exp() - tokens.old_log_probs.exp()).detach()
        inside = (shift <= self.divergence_high).where(tokens.advantages > 0, shift >= -self.divergence_low)
        return _inside_the_region(tokens, inside, max_ratio=self.max_ratio)


class DppoKl(PolicyLoss):
    """As `DppoTv`, by the KL divergence of the two-valued distribution "this token or another".

    DPPO-Binary-KL (arXiv 2602.04879, section 4). verl: `dppo_kl`.
    """

    name: Literal["dppo_kl"] = "dppo_kl"
    divergence_low: Annotated[float, Field(gt=0)] = 0.05
    divergence_high: Annotated[float, Field(gt=0)] = 0.05
    max_ratio: MaxRatio = 20.0

    def per_token(self, tokens: Tokens) -> TokenLosses:
        """As of `PolicyLoss`."""
        new, old = tokens.log_probs.detach().exp(), tokens.old_log_probs.exp()
        rest = ((1 - old + 1e-8) / (1 - new + 1e-8)).log()
        divergence = old * (tokens.old_log_probs - tokens.log_probs.detach()) + (1 - old) * rest
        too_high = (divergence > self.divergence_high) & (new > old)
        too_low = (divergence > self.divergence_low) & (new < old)
        inside = ~too_high.where(tokens.advantages > 0, too_low)
        return _inside_the_region(tokens, inside, max_ratio=self.max_ratio)


def _inside_the_region(tokens: Tokens, inside: "Tensor", *, max_ratio: float) -> TokenLosses:
    ratio = tokens.log_ratios.exp().clamp(max=max_ratio).detach()
    return TokenLosses(-tokens.advantages * ratio * tokens.log_probs * inside, ~inside)
