"""Episodes to be judged: trajectories with the texts, rewards and metrics that a test says."""

from typing import Any

from agents.rewards import RewardInput
from agents.types import Completion, FinishReason, StopReason, Trajectory, Turn
from tests.support.toy import toy_item


def played(
    *texts: str,
    rewards: list[float] | None = None,
    stop: StopReason = StopReason.TERMINATED,
    success: bool = False,
    metrics: dict[str, Any] | None = None,
) -> Trajectory:
    """One turn for each text."""
    given = rewards or [0.0] * len(texts)
    return Trajectory(
        item=toy_item(7),
        sample_index=2,
        prompt_ids=(1,),
        turns=tuple(
            Turn(
                completion=Completion(
                    token_ids=[11], logprobs=[-0.5], finish_reason=FinishReason.STOP, policy_version=0
                ),
                text=text,
                action=text,
                observation=f"seen {place}",
                reward=reward,
                observation_ids=(),
            )
            for place, (text, reward) in enumerate(zip(texts, given, strict=True))
        ),
        stop_reason=stop,
        reward=sum(given),
        success=success,
        seconds=1.0,
        error="EnvCrashed: it broke" if stop is StopReason.ERROR else None,
        metrics=metrics or {},
    )


def judged(*texts: str, fields: dict[str, Any] | None = None, **facts: Any) -> RewardInput:
    """What a reward is given for such an episode."""
    return RewardInput.from_trajectory(played(*texts, **facts), fields=fields)
