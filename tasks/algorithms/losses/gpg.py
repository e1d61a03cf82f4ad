"""The plain policy gradient."""

from typing import Literal

from tasks.algorithms.losses.loss import PolicyLoss, TokenLosses, Tokens


class GpgLoss(PolicyLoss):
    """−A·log π: REINFORCE, without ratio or trust region (Chu et al. 2025, arXiv 2504.02546). verl: `gpg`."""

    name: Literal["gpg"] = "gpg"

    def per_token(self, tokens: Tokens) -> TokenLosses:
        """As of `PolicyLoss`."""
        return TokenLosses(-tokens.advantages * tokens.log_probs)
