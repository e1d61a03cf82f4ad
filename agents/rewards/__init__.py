"""Rewards: functions that score finished episodes.

`REWARDS` has the prebuilt ones by the names that pipelines use. `LLMJudge` needs settings, which a pipeline
gives under `agent.judges`. `@reward` makes a function a reward, `CombinedReward` a weighted sum of several,
and `assign_rewards` puts a result on a trajectory.
"""

from agents.clients.endpoint import Endpoint
from agents.rewards import code, environment, formats, qa, text
from agents.rewards.function import FunctionReward, reward
from agents.rewards.judge.reward import LLMJudge
from agents.rewards.math import reward as math
from agents.rewards.types import Reward, RewardInput, RewardResult, assign_rewards, require_reward
from agents.rewards.weighted import CombinedReward
from agents.settings import JudgeSettings
from envs.requirements.plugins import Registry

__all__ = [
    "REWARDS",
    "CombinedReward",
    "Endpoint",
    "FunctionReward",
    "JudgeSettings",
    "LLMJudge",
    "Reward",
    "RewardInput",
    "RewardResult",
    "assign_rewards",
    "register_reward",
    "reward",
]

_MODULES = (environment, text, math, qa, formats, code)
_BUILTIN = [
    value for module in _MODULES for value in vars(module).values() if isinstance(value, FunctionReward)
]


REWARDS: Registry[Reward] = Registry(
    "reward",
    {reward.name: reward for reward in _BUILTIN},
    group="wingspan.rewards",
    origin="agents/rewards/__init__.py",
    validate=lambda name, value: require_reward(value, place=f"reward {name!r}"),
)


def register_reward(reward: Reward) -> None:
    """Make `reward` known by its name in this process; entry points of the group `wingspan.rewards` are
    known in every process. Raises `ConfigError` if another reward has this name."""
    REWARDS.register(reward.name, reward)
