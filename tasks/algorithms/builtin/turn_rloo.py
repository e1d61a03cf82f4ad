"""REINFORCE with a leave-one-out baseline for each turn."""

from typing import TYPE_CHECKING

from tasks.algorithms.algorithm import Aggregation, Estimate, OnlineAlgorithm

if TYPE_CHECKING:
    from tasks.algorithms.conversations import Conversations


class TurnRloo(OnlineAlgorithm):
    """The sum of the rewards from a turn on − its mean over the *other* conversations of the group that have
    this turn; where none has, RLOO's advantage of the whole conversation.

    A turn is credited with what comes after it alone, without a critic. The baseline depends on the others
    and on what came before the turn, never on how long the conversation goes on, so the policy gradient is
    unbiased. To centre the reward of each turn by itself and add these up is biased: it subtracts one mean
    for each turn that follows, as if another turn cost the mean reward of that turn (verl issue 7244).
    """

    skips_equal_groups = False  # equal sums may come at different turns
    credits_parts = True

    name: str = "turn_rloo"
    aggregation: Aggregation = "seq-mean-token-sum-norm"
    """A mean over a conversation's tokens would be a bias towards length again."""

    def estimate(self, batch: "Conversations") -> Estimate:
        from tasks.algorithms.conversations import discounted_returns

        rewards = batch.turn_rewards  # [C, N]
        is_turn = (batch.turn_lengths > 0).double()  # [C, N], 1 or 0
        returns = discounted_returns(rewards, gamma=1.0) * is_turn
        num_others = batch.group_sum(is_turn) - is_turn
        sum_of_others = batch.group_sum(returns) - returns
        scores, size = batch.scores, batch.group_size()
        mean_score = (batch.group_sum(scores) - scores) / (size - 1).clamp(min=1)
        baseline_of_whole = mean_score.unsqueeze(1) - (rewards.cumsum(1) - rewards)
        baseline = (sum_of_others / num_others.clamp(min=1)).where(num_others > 0, baseline_of_whole)
        return Estimate(batch.spread_turns(returns - baseline))
