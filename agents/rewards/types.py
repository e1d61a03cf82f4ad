"""What a reward is given, what it returns, the interface of all rewards, and the effect on a trajectory."""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from agents.types import Trajectory
from envs.errors import ConfigError, show, suggest
from envs.types import EnvCheck, Environment, Item, is_flag, read_flag, read_number

PREFIX = "reward/"
"""The prefix of the names of a reward's metrics among a trajectory's."""
ALWAYS = ("final_response", "last_text", "trajectory", "transcript", "item", "fields")
"""Names that every reward may take, besides `ENV`, if there is one, and the item's fields."""
_KEYS = ("reward", "turn_rewards", "success")
"""The keys of the mapping that a reward may return; every other one is a metric's."""
ENV = "env"
"""The name by which a reward takes the episode's environment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardInput:
    """All that a reward may use. A name is looked up here, then in `fields`, then in `item.metadata`."""

    final_response: str
    """The policy's answer, in its format or by a tool that ends the episode; empty if its last turn called
    other tools; else its last text."""
    trajectory: Trajectory
    fields: Mapping[str, object] = field(default_factory=dict)
    """Further columns of a user's data set, e.g. `{"answer": "42"}`, of any type and size, never shown to the
    policy. `item.metadata` holds the few values by which success is broken down."""
    env: Environment | None = None
    """The episode's, at its end; not yet lent to another episode."""

    @property
    def item(self) -> Item:
        """The trajectory's item."""
        return self.trajectory.item

    @property
    def last_text(self) -> str:
        """All that the policy wrote in its last turn, with the marks that its format reads; empty without a
        turn."""
        return self.trajectory.turns[-1].text if self.trajectory.turns else ""

    @property
    def transcript(self) -> str:
        """All turns as text: what the policy wrote, and the observations."""
        lines = []
        for turn in self.trajectory.turns:
            lines.append(f"Assistant: {turn.text}")
            lines.append(f"Observation: {turn.observation}")
        return "\n".join(lines)

    def arguments(self, names: Collection[str]) -> dict[str, object]:
        """The values of those of `names` that exist."""
        free = {**self.item.metadata, **self.fields}
        if self.env is not None:
            free[ENV] = self.env
        return {
            name: getattr(self, name) if name in ALWAYS else free[name]
            for name in names
            if name in ALWAYS or name in free
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardResult:
    """What a reward returns. Raises `ValueError` unless all numbers and the sums of rewards are finite."""

    reward: float
    """The reward of the episode as a whole, in addition to `turn_rewards`."""
    turn_rewards: tuple[float, ...] | None = None
    """One for each turn of the trajectory, in order; None if the reward knows only the outcome."""
    success: bool | None = None
    """Whether the item is solved; None keeps the environment's value."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Further numbers to record."""

    def __post_init__(self) -> None:
        rewards = (self.reward, *(self.turn_rewards or ()))
        if not math.isfinite(sum(map(abs, rewards))):
            raise ValueError(f"the rewards {str(rewards)[:80]} have no finite sum; return smaller numbers")

    @property
    def total(self) -> float:
        """The sum of the outcome's and all turns' rewards."""
        return self.reward + sum(self.turn_rewards or ())


class Reward(Protocol):
    """Scores trajectories. Any number of episodes may call it at the same time."""

    @property
    def name(self) -> str:
        """The name that pipelines use."""

    def check(self, available: Collection[str]) -> None:
        """Check, before anything expensive starts, that it can be computed.

        `available`: the names of the item's fields and metadata, and `env` if there is one. Raises
        `ConfigError` for a parameter that nothing fills, `MissingDependency` for what is not installed.
        """

    @property
    def env_checks(self) -> Mapping[str, EnvCheck]:
        """Checks by the name of this reward, or of one that it consists of. Each raises `ConfigError` if that
        reward cannot judge episodes of an environment; `{}` accepts every environment."""

    async def score(self, reward_input: RewardInput) -> RewardResult:
        """Score one finished episode.

        Raises `RewardFailed` if no reward could be computed, which is never a reward of 0, and `ValueError`
        for a failed episode, which has none.
        """


def require_reward(value: Any, *, place: str) -> Reward:
    """`value`, which must be a reward; `place` names where it is given. Raises `ConfigError`."""
    members = ("score", "check", "env_checks")
    if missing := [name for name in members if not hasattr(value, name)]:
        remedy = "decorate a function with @reward"
        if len(missing) < len(members):
            remedy = f"it has no {missing[0]!r}; add it, or {remedy}"
        raise ConfigError(f"{place} is a {type(value).__name__}, not a reward; {remedy}")
    reward: Reward = value
    return reward


def check_items(reward: Reward, items: Iterable[Item], *, with_env: bool = True) -> None:
    """Check, before any episode, that `items` give `reward` all that it takes.

    `with_env`: whether their episodes have an environment. Raises `ConfigError`, naming an item, and
    `MissingDependency`.
    """
    kinds = {frozenset({*item.metadata, *item.fields}): item for item in items}
    for names, item in kinds.items():
        if ENV in names:
            raise ConfigError(
                f"{item.item_id}: the data has a field {ENV!r}, which is the name of the environment; "
                "rename the field"
            )
        try:
            reward.check({ENV, *names} if with_env else names)
        except ConfigError as error:
            raise ConfigError(f"{item.item_id}: {error}") from None


def assign_rewards(trajectory: Trajectory, result: RewardResult) -> Trajectory:
    """`trajectory` with the rewards of `result`, which replace the environment's.

    A turn's reward is its entry of `turn_rewards`, else 0; the last turn also gets the outcome. The
    trajectory's reward is their sum. Raises `ValueError` for a failed episode, for one without turns, and for
    a number of `turn_rewards` other than the number of turns.
    """
    where = trajectory.where
    if trajectory.has_failed:
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


def read_result(value: object, *, turns: int) -> RewardResult:
    """Check what a reward function returned: a number, or a mapping with `reward`.

    `turns`: the trajectory's number of turns. In a mapping, `turn_rewards` is one number a turn, `success` a
    bool, and every other entry a metric. Raises `ValueError` for anything else: NaN, infinities, and a metric
    that is a bool, which is often a misspelt `success`.
    """
    if not isinstance(value, Mapping):
        return RewardResult(reward=read_number(value, "the reward"))
    if "reward" not in value:
        raise ValueError(f"a mapping with {sorted(map(str, value))} and no 'reward'; add it")
    per_turn = value.get("turn_rewards")
    if per_turn is not None:
        if not isinstance(per_turn, list | tuple):
            raise ValueError(f"turn_rewards is {show(per_turn)}; return a list with one number a turn")
        if len(per_turn) != turns:
            raise ValueError(f"{len(per_turn)} turn_rewards for {turns} turns; return one for each turn")
        per_turn = tuple(read_number(number, f"turn_rewards[{i}]") for i, number in enumerate(per_turn))
    success = value.get("success")
    metrics: dict[str, float] = {}
    for name, number in value.items():
        if name in _KEYS:
            continue
        if is_flag(number):
            raise ValueError(f"metric {name!r} is {number}; {suggest(str(name), _KEYS)}return a number")
        metrics[str(name)] = read_number(number, f"metric {name!r}")
    return RewardResult(
        reward=read_number(value["reward"], "the reward"),
        turn_rewards=per_turn,
        success=None if success is None else read_flag(success, "success"),
        metrics=metrics,
    )
