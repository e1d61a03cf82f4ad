"""Proximal policy optimization with a critic."""

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from envs.errors import WingspanError
from tasks.algorithms.algorithm import Algorithm
from tasks.algorithms.critic import CriticSettings

if TYPE_CHECKING:
    from tasks.algorithms.conversations import Conversations, Estimate


class Ppo(Algorithm):
    """Generalized advantage estimation over tokens, whitened over the step.

    δ_k = r_k + γ·V_(k+1) − V_k and A_k = δ_k + γλ·A_(k+1), k counting sampled tokens: observations are part
    of the state, not steps. Schulman et al. 2017 (arXiv 1707.06347) and 2015 (arXiv 1506.02438, equation 16).
    verl: `gae`.
    """

    compares_group = False
    skips_equal_groups = False
    needs_critic = True

    name: str = "ppo"
    gamma: Annotated[float, Field(gt=0, le=1)] = 1.0
    lam: Annotated[float, Field(ge=0, le=1)] = 1.0
    critic: CriticSettings = CriticSettings()

    def estimate(self, batch: "Conversations") -> "Estimate":
        """As of `Algorithm`, with returns A + V."""
        from tasks.algorithms.conversations import Estimate, gae

        if batch.values is None:
            raise WingspanError("ppo: the critic computed no values")
        advantages = gae(batch.rewards, batch.values, batch.mask, gamma=self.gamma, lam=self.lam)
        return Estimate(batch.whiten(advantages), (advantages + batch.values) * batch.mask)
