"""Proximal policy optimization with a critic."""

from typing import TYPE_CHECKING

from tasks.algorithms.algorithm import ActorCritic, Estimate

if TYPE_CHECKING:
    from tasks.algorithms.conversations import Conversations


class Ppo(ActorCritic):
    """Generalized advantage estimation over tokens, whitened over the step.

    δ_k = r_k + γ·V_(k+1) − V_k and A_k = δ_k + γλ·A_(k+1), k counting sampled tokens: observations are part
    of the state, not steps. Schulman et al. 2017 (arXiv 1707.06347) and 2015 (arXiv 1506.02438, equation 16).
    verl: `gae`.
    """

    name: str = "ppo"

    def estimate(self, batch: "Conversations") -> Estimate:
        """The estimate includes the returns, A + V."""
        import torch

        from tasks.algorithms.conversations import by_rows, gae, whiten_

        values = batch.critic_values
        advantages = gae(batch.token_rewards, values, gamma=self.gamma, lam=self.lam)
        returns = by_rows(torch.add, advantages, values)
        return Estimate(whiten_(advantages, batch.mask), returns)
