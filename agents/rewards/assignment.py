"""Puts the rewards of turns on their turns, and the outcome's on the last one."""

from dataclasses import replace

from agents.rewards.types import RewardResult
from agents.types import StopReason, Trajectory

PREFIX = "reward/"
"""Of the names of a reward's metrics among a trajectory's."""


def assign_rewards(trajectory: Trajectory, result: RewardResult) -> Trajectory:
    """`trajectory` with the rewards of `result`, which replace the environment's.

    A turn's reward is its entry of `turn_rewards`, else 0; the last turn also gets the outcome. The
    trajectory's reward is their sum. Raises `ValueError` for a failed episode, for one without turns, and for
    a number of `turn_rewards` other than the number of turns.
    """
    where = f"{trajectory.item.item_id}, sample {trajectory.sample_index}"
    if trajectory.stop_reason is StopReason.ERROR:
        raise ValueError(
            f"{where}: a failed episode has no reward ({trajectory.error}); drop it and count it"
        )
    if not trajectory.turns:
        raise ValueError(f"{where}: no turn can carry the reward; leave this trajectory at 0")
    turn_rewards = [0.0] * len(trajectory.turns) if result.turn_rewards is None else list(result.turn_rewards)
    if len(turn_rewards) != len(trajectory.turns):
        raise ValueError(f"{where}: {len(turn_rewards)} turn_rewards for {len(trajectory.turns)} turns")
    turn_rewards[-1] += result.reward
    return replace(
        trajectory,
        turns=tuple(
            replace(turn, reward=reward) for turn, reward in zip(trajectory.turns, turn_rewards, strict=True)
        ),
        reward=sum(turn_rewards),
        success=trajectory.success if result.success is None else result.success,
        metrics={
            **trajectory.metrics,
            **{f"{PREFIX}{name}": value for name, value in result.metrics.items()},
        },
    )
