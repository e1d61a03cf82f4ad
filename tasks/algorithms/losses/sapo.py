"""A soft gate in place of a clip."""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from tasks.algorithms.losses.loss import PolicyLoss, TokenLosses, Tokens

if TYPE_CHECKING:
    from torch import Tensor


class SapoLoss(PolicyLoss):
    """−A·(4/τ)·σ(τ(r − 1)), with τ by the sign of the advantage.

    Gao et al. 2025 (arXiv 2511.20347, equation 6, with the temperatures of section 4). verl: `sapo`.
    """

    name: Literal["sapo"] = "sapo"
    tau_positive: Annotated[float, Field(gt=0)] = 1.0
    tau_negative: Annotated[float, Field(gt=0)] = 1.05

    def per_token(self, tokens: Tokens) -> TokenLosses:
        """As of `PolicyLoss`."""
        ratio, advantages = tokens.log_ratios.exp(), tokens.advantages

        def gate(tau: float) -> "Tensor":
            return (4.0 / tau) * (tau * (ratio - 1.0)).sigmoid()

        gates = gate(self.tau_positive).where(advantages > 0, gate(self.tau_negative))
        return TokenLosses(-gates * advantages)
