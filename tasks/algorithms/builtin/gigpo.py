"""Group-in-group policy optimization."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, model_validator

from tasks.algorithms.algorithm import Estimate, OnlineAlgorithm, check_turn_parameter
from tasks.algorithms.equality import have_equal_rewards

if TYPE_CHECKING:
    from agents.types import Trajectory
    from tasks.algorithms.conversations import Conversations


class Gigpo(OnlineAlgorithm):
    """GRPO's advantage of the conversation + `step_weight` · the turn's advantage among those of the group
    that were taken in the same state.

    A turn's return is the discounted sum of the rewards from it on. Its advantage is the return − the mean of
    the returns of all turns of the group in that state, however often an episode came by; 0 for a state that
    was met once. With `normalize_by_std`, both advantages are divided by the standard deviation + 1e-6 of
    what they are compared with. Feng et al. 2025 (arXiv 2505.10978, equations 3 to 8; γ 0.95 and ω 1 are the
    paper's). Reference implementation: verl-agent, `gigpo/core_gigpo.py`.
    """

    compares_states = True
    credits_parts = True

    name: str = "gigpo"
    gamma: Annotated[float, Field(gt=0, le=1)] = 0.95
    """γ, the discount of a turn."""
    step_weight: Annotated[float, Field(ge=0)] = 1.0
    """ω."""
    normalize_by_std: bool = True

    @model_validator(mode="after")
    def _turns_count(self) -> "Gigpo":
        check_turn_parameter(self, "gamma", step_weight=self.step_weight)
        return self

    def has_advantages(self, group: Sequence["Trajectory"], scores: Sequence[float]) -> bool:
        """Equal sums of rewards that are due at different turns compare unequal."""
        return (
            not have_equal_rewards(scores)
            or any(scores)
            or any(turn.reward for t in group for turn in t.turns)
        )

    def estimate(self, batch: "Conversations") -> Estimate:
        import torch

        from tasks.algorithms.conversations import compare, discounted_returns
        from tasks.algorithms.turns import turns_of_step

        turns = turns_of_step(batch, algorithm=self.name)
        episode = batch.compare(batch.scores, normalize_by_std=self.normalize_by_std)
        returns = discounted_returns(turns.rewards, gamma=self.gamma)[turns.mask]
        advantages = torch.zeros_like(turns.rewards)
        advantages[turns.mask] = self.step_weight * compare(
            returns, turns.state[turns.mask], normalize_by_std=self.normalize_by_std
        )
        return Estimate(batch.spread_turns(episode.unsqueeze(1) + advantages))
