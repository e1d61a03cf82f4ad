"""Several rewards, each normalised apart."""

from typing import TYPE_CHECKING, Annotated

from pydantic import Field, field_validator

from envs.errors import WingspanError
from tasks.algorithms.algorithm import Estimate, OnlineAlgorithm

if TYPE_CHECKING:
    from torch import Tensor

    from tasks.algorithms.conversations import Conversations


class Gdpo(OnlineAlgorithm):
    """The weighted sum of GRPO's advantages for each of several metrics of an episode, whitened over the
    step.

    A metric that differs little within its group counts as much as one that differs a lot. Liu et al. 2026
    (arXiv 2601.05242, equations 4 to 6). verl: `gdpo`.
    """

    skips_equal_groups = False

    name: str = "gdpo"
    rewards: Annotated[dict[str, float], Field(min_length=1)]
    """Weights by metric of the trajectory; `reward` is the episode's own."""

    @field_validator("rewards", mode="after")
    @classmethod
    def _something_counts(cls, rewards: dict[str, float]) -> dict[str, float]:
        if not any(rewards.values()):
            raise ValueError(f"{rewards}: with weights of 0 there are no advantages; raise one")
        return rewards

    @property
    def unused_reward(self) -> str:
        return "" if self.rewards.get("reward") else "rewards do not name `reward`"

    def estimate(self, batch: "Conversations") -> Estimate:
        """Raises `WingspanError` for a trajectory without one of the metrics."""
        from tasks.algorithms.conversations import whiten_

        total = batch.scores.new_zeros(len(batch.group))
        for name, weight in self.rewards.items():
            total += weight * batch.compare(_metric(batch, name))
        return Estimate(batch.spread(whiten_(total, batch.lengths)))


def _metric(batch: "Conversations", name: str) -> "Tensor":
    if name == "reward":
        return batch.scores
    for trajectory in batch.trajectories:
        if name not in trajectory.metrics:
            raise WingspanError(
                f"train.algorithm.rewards names {name!r}, which {trajectory.where}, does not have; "
                f"it has: {', '.join(trajectory.metrics) or 'none'}"
            )
    return batch.scores.new_tensor([t.metrics[name] for t in batch.trajectories])
