"""The environment's own rewards, as parts to build others upon."""

from agents.rewards.function import reward
from agents.types import Trajectory


@reward
def environment(trajectory: Trajectory) -> dict[str, float | list[float]]:
    """What the environment gave, on the turns that it gave it for."""
    return {"reward": 0.0, "turn_rewards": [turn.reward for turn in trajectory.turns]}


@reward
def environment_success(trajectory: Trajectory) -> float:
    """1 where the environment says that the problem is solved, else 0."""
    return float(trajectory.success)
