"""Several rewards as one: a weighted sum that also reports each part's own value."""

import math
from collections.abc import Collection, Mapping

from agents.rewards.types import Reward, RewardInput, RewardResult, require_reward
from envs.errors import ConfigError, RewardFailed, boundary
from envs.runtime.concurrency import gather_or_cancel
from envs.types import EnvCheck


class CombinedReward:
    """The sum of `rewards[n] * weights[n]` over the names in `weights`, which are computed concurrently.

    The metrics are `n`, the part's total before its weight, and `n/m` for each metric `m` of the part.
    `turn_rewards` are summed turn by turn. The episode succeeds if every part does that reports success and
    has a weight above 0.
    """

    name = "weighted"

    def __init__(self, weights: Mapping[str, float], *, rewards: Mapping[str, Reward]) -> None:
        """`weights`: any finite numbers; below 0 is a penalty, 0 only records.

        Raises `ConfigError` for no weights, for a name missing from `rewards` or of another object, or for a
        weight that is not finite.
        """
        if not weights:
            raise ConfigError("a weighted reward has no parts; give at least one name with a weight")
        for part, weight in weights.items():
            if part not in rewards:
                raise ConfigError(f"a weighted reward has the part {part!r}; there are: {', '.join(rewards)}")
            if isinstance(weight, bool) or not math.isfinite(weight):
                raise ConfigError(
                    f"a weighted reward: the weight of {part!r} is {weight}, not a finite number"
                )
        self._weights = {part: float(weight) for part, weight in weights.items()}
        self._rewards = {
            part: require_reward(rewards[part], place=f"a weighted reward: {part!r}") for part in weights
        }

    def check(self, available: Collection[str]) -> None:
        for reward in self._rewards.values():
            reward.check(available)

    @property
    def env_checks(self) -> dict[str, EnvCheck]:
        return {name: check for reward in self._rewards.values() for name, check in reward.env_checks.items()}

    async def score(self, reward_input: RewardInput) -> RewardResult:
        results = await gather_or_cancel(reward.score(reward_input) for reward in self._rewards.values())
        metrics: dict[str, float] = {}
        weighted_turns: list[list[float]] = []
        for (part, weight), result in zip(self._weights.items(), results, strict=True):
            metrics[part] = result.total
            metrics |= {f"{part}/{name}": value for name, value in result.metrics.items()}
            if result.turn_rewards is not None:
                weighted_turns.append([weight * value for value in result.turn_rewards])
        weights = self._weights.values()
        successes = [
            result.success
            for weight, result in zip(weights, results, strict=True)
            if weight > 0 and result.success is not None
        ]
        with boundary(RewardFailed, f"{reward_input.trajectory.where}: the weighted reward"):
            return RewardResult(
                reward=sum(weight * result.reward for weight, result in zip(weights, results, strict=True)),
                turn_rewards=tuple(map(sum, zip(*weighted_turns, strict=True))) if weighted_turns else None,
                success=all(successes) if successes else None,
                metrics=metrics,
            )
