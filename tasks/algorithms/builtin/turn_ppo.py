"""Proximal policy optimization with a critic, where a turn is one step."""

from typing import TYPE_CHECKING

from tasks.algorithms.algorithm import ActorCritic, Estimate

if TYPE_CHECKING:
    from tasks.algorithms.conversations import Conversations


class TurnPpo(ActorCritic):
    """Generalized advantage estimation over turns, the same advantage on all tokens of a turn, whitened over
    the step's tokens.

    δ_t = r_t + γ·V(s_(t+1)) − V(s_t) and A_t = δ_t + γλ·A_(t+1), t counting turns: r_t is the sum of the
    turn's rewards, V(s_t) the critic's value before the turn's first token, and 0 after the last turn. A
    turn's length then changes neither its discount nor how far back a reward reaches.

    The critic learns A_t + V(s_t) at the first token of each turn only, the only place where it is asked: its
    error at the other tokens would weigh a turn by its length, and teach it values that nothing reads.

    Schulman et al. 2015 (arXiv 1506.02438, equation 16), with turns for steps. AReaL:
    `_compute_turn_level_gae`, which teaches its critic on all tokens of the turn.
    """

    name: str = "turn_ppo"

    def estimate(self, batch: "Conversations") -> Estimate:
        """The estimate includes the returns, A + V at the first token of each turn."""
        from tasks.algorithms.conversations import gae, whiten_

        lengths = batch.turn_lengths
        values = batch.first_of_turns(batch.critic_values)
        advantages = gae(batch.turn_rewards, values, gamma=self.gamma, lam=self.lam)
        returns = advantages + values
        share = lengths.sum(1) / (lengths > 0).sum(1)
        return Estimate(
            advantages=batch.spread_turns(whiten_(advantages, lengths)),
            returns=batch.at_turn_starts(returns),
            return_weights=batch.at_turn_starts(share.unsqueeze(1).expand_as(lengths)),
        )
