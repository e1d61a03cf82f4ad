"""A quadratic penalty in place of a clip."""

from typing import Annotated, Literal

from pydantic import Field

from tasks.algorithms.losses.loss import PolicyLoss, TokenLosses, Tokens


class Dro(PolicyLoss):
    """−(A·log π − β/2·(log r)²): Richemond et al. 2024 (arXiv 2405.19107, equation 6). verl: `dro`."""

    name: Literal["dro"] = "dro"
    beta: Annotated[float, Field(gt=0)] = 0.05

    def per_token(self, tokens: Tokens) -> TokenLosses:
        """As of `PolicyLoss`."""
        penalty = 0.5 * self.beta * tokens.log_ratios.square()
        return TokenLosses(penalty - tokens.advantages * tokens.log_probs)
