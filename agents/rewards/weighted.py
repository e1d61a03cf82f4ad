"""Several rewards as one: a weighted sum, in which each part's own value stays to be seen."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from agents.rewards.types import Reward, RewardInput, RewardResult
from envs.errors import ConfigError
from envs.runtime.concurrency import gather_or_cancel


@dataclass(frozen=True, slots=True)
class Part:
    """One of several rewards."""

    name: str
    """Of its metric."""
    weight: float
    """Any finite number: below 0 is a penalty, 0 only records."""
    reward: Reward


@dataclass(frozen=True, slots=True, kw_only=True)
class CombinedReward:
    """A reward made of others, which are computed at the same time."""

    name: str
    parts: tuple[Part, ...]

    def check(self, available: Collection[str]) -> None:
        """See `Reward`; of every part."""
        for part in self.parts:
            part.reward.check(available)

    async def score(self, reward_input: RewardInput) -> RewardResult:
        """See `Reward`. What one part raises ends the others."""
        results = await gather_or_cancel(part.reward.score(reward_input) for part in self.parts)
        metrics: dict[str, float] = {}
        per_turn: list[float] | None = None
        for part, result in zip(self.parts, results, strict=True):
            metrics[part.name] = result.total
            metrics |= {f"{part.name}/{name}": value for name, value in result.metrics.items()}
            if result.turn_rewards is not None:
                before = per_turn or [0.0] * len(result.turn_rewards)
                per_turn = [
                    so_far + part.weight * part_result
                    for so_far, part_result in zip(before, result.turn_rewards, strict=True)
                ]
        successes = [result.success for result in results if result.success is not None]
        return RewardResult(
            reward=sum(part.weight * result.reward for part, result in zip(self.parts, results, strict=True)),
            turn_rewards=None if per_turn is None else tuple(per_turn),
            success=all(successes) if successes else None,
            metrics=metrics,
        )


def combine_rewards(
    weights: Mapping[str, float], *, rewards: Mapping[str, Reward], name: str = "weighted"
) -> CombinedReward:
    """The sum of `rewards[n] * weights[n]` over the names in `weights`.

    The metrics are `n`, the part's total before its weight, and `n/m` for each metric `m` of the part.
    `turn_rewards` are summed turn by turn. It is a success where every part that says so says so.
    Raises `ConfigError` for no weights, a name that `rewards` has not, or a weight that is not finite.
    """
    if not weights:
        raise ConfigError(f"reward {name!r} has no parts; give at least one name with a weight")
    parts = []
    for part, weight in weights.items():
        if part not in rewards:
            raise ConfigError(f"reward {name!r} has the part {part!r}; there are: {', '.join(rewards)}")
        if isinstance(weight, bool) or not math.isfinite(weight):
            raise ConfigError(f"reward {name!r}: the weight of {part!r} is {weight}; give a finite number")
        parts.append(Part(part, float(weight), rewards[part]))
    return CombinedReward(name=name, parts=tuple(parts))
