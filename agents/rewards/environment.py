"""The environment's own rewards, as parts of combined ones."""

from agents.rewards.function import reward
from agents.types import Trajectory


@reward
def environment(trajectory: Trajectory) -> dict[str, float | list[float]]:
    """The environment's rewards, each on its turn."""
    return {"reward": 0.0, "turn_rewards": [turn.reward for turn in trajectory.turns]}


@reward
def environment_success(trajectory: Trajectory) -> float:
    """1 if the environment reports success, else 0."""
    return float(trajectory.success)
