"""Episodes to score: trajectories with the texts, rewards and metrics of a test."""

from collections.abc import Mapping
from typing import Any

from agents.rewards import RewardInput
from agents.types import Completion, FinishReason, StopReason, Trajectory, Turn
from tests.support.toy import toy_item


def make_trajectory(
    *texts: str,
    rewards: list[float] | None = None,
    stop: StopReason = StopReason.TERMINATED,
    success: bool = False,
    metrics: Mapping[str, float] | None = None,
) -> Trajectory:
    """One turn for each text."""
    turn_rewards = rewards or [0.0] * len(texts)
    return Trajectory(
        item=toy_item(7),
        sample_index=2,
        prompt_ids=(1,),
        turns=tuple(
            Turn(
                completion=Completion(
                    token_ids=(11,), logprobs=(-0.5,), finish_reason=FinishReason.STOP, policy_version=0
                ),
                text=text,
                action=text,
                observation=f"seen {index}",
                reward=reward,
                observation_ids=(),
            )
            for index, (text, reward) in enumerate(zip(texts, turn_rewards, strict=True))
        ),
        stop_reason=stop,
        reward=sum(turn_rewards),
        success=success,
        seconds=1.0,
        error="EnvCrashed: it broke" if stop is StopReason.ERROR else None,
        metrics=metrics or {},
    )


def make_reward_input(*texts: str, fields: Mapping[str, object] | None = None, **options: Any) -> RewardInput:
    """The input of a reward for such an episode; its final response is the last text."""
    trajectory = make_trajectory(*texts, **options)
    final_response = texts[-1] if texts else ""
    return RewardInput(final_response=final_response, trajectory=trajectory, fields=fields or {})
