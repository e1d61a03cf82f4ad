"""Graph-based group policy optimization."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, model_validator

from tasks.algorithms.algorithm import Estimate, OnlineAlgorithm, check_turn_parameter
from tasks.algorithms.equality import have_equal_rewards

if TYPE_CHECKING:
    from torch import Tensor

    from agents.types import Trajectory
    from tasks.algorithms.conversations import Conversations
    from tasks.algorithms.turns import Turns

GOAL_REWARD = 10.0
"""The value of the reference implementation; after normalisation only its ratio to 1e-6 matters."""


class Graphgpo(OnlineAlgorithm):
    """`episode_weight` · GRPO's advantage of the conversation + `step_weight` · the turn's advantage by how
    near it came to the goal, whether its own episode reached it or not.

    The turns of a group are the edges of one graph of states; the last turn of a solved episode leads to the
    goal. d(s) is the least number of turns from s to the goal in this graph; where no way is known, one more
    than the largest of these numbers. A turn that leads to s is worth 10·ω^d(s). Its advantage is that − the
    mean over the group's turns from the same state, divided by their standard deviation + 1e-6 with
    `normalize_by_std`; 0 for a state that was left once, and in a group without a success. Cheng et al. 2026
    (arXiv 2605.26684, equation 4, every turn at cost 1). Reference implementation: verl-agent,
    `recipe/GraphGPO`, whose defaults these are; it has one factor ω less than the paper.
    """

    compares_states = True
    credits_parts = True

    name: str = "graphgpo"
    distance_discount: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """ω."""
    step_weight: Annotated[float, Field(ge=0)] = 1.0
    episode_weight: Annotated[float, Field(ge=0)] = 1.0
    normalize_by_std: bool = True

    @model_validator(mode="after")
    def _something_counts(self) -> "Graphgpo":
        if not self.step_weight and not self.episode_weight:
            raise ValueError("step_weight 0 and episode_weight 0 leave no advantages; raise one")
        return self

    @property
    def unused_reward(self) -> str:
        return "" if self.episode_weight else "episode_weight 0"

    @model_validator(mode="after")
    def _turns_count(self) -> "Graphgpo":
        check_turn_parameter(self, "distance_discount", step_weight=self.step_weight)
        return self

    def has_advantages(self, group: Sequence["Trajectory"], scores: Sequence[float]) -> bool:
        """Once the goal is known, turns of equal rewards may differ."""
        return not have_equal_rewards(scores) or any(trajectory.success for trajectory in group)

    def estimate(self, batch: "Conversations") -> Estimate:
        import torch

        from tasks.algorithms.conversations import compare
        from tasks.algorithms.turns import turns_of_step

        turns = turns_of_step(batch, algorithm=self.name)
        episode = batch.compare(batch.scores, normalize_by_std=self.normalize_by_std)
        worth = GOAL_REWARD * self.distance_discount ** _distances(turns, batch.group)[turns.mask]
        advantages = torch.zeros_like(turns.rewards)
        advantages[turns.mask] = self.step_weight * compare(
            worth, turns.state[turns.mask], normalize_by_std=self.normalize_by_std
        )
        return Estimate(batch.spread_turns(self.episode_weight * episode.unsqueeze(1) + advantages))


def _distances(turns: "Turns", group: "Tensor") -> "Tensor":
    """[C, K], float64: d of the state that each turn led to.

    By Bellman's recursion over the graphs of all groups at once, until nothing changes.
    """
    import torch

    from tasks.algorithms.turns import DEAD_END, GOAL

    goal, dead_end = turns.num_states, turns.num_states + 1
    target = turns.following.where(turns.following != GOAL, goal)
    target = target.where(target != DEAD_END, dead_end)
    edges = turns.has_state  # a summary is none
    sources, targets = turns.state[edges], target[edges]
    distance = torch.full((turns.num_states + 2,), torch.inf, dtype=torch.float64)
    distance[goal] = 0.0
    while True:
        nearer = distance.scatter_reduce(0, sources, distance[targets] + 1, "amin")
        if torch.equal(nearer, distance):
            break
        distance = nearer
    groups = group.unsqueeze(1).expand(edges.shape)
    # A state with a known distance is the goal, or was left by a turn.
    finite_distances = distance[sources].where(distance[sources].isfinite(), 0.0)
    farthest = torch.zeros(int(group.max()) + 1, dtype=torch.float64)
    farthest = farthest.scatter_reduce(0, groups[edges], finite_distances, "amax")
    return distance[target].where(distance[target].isfinite(), farthest[groups] + 1)
