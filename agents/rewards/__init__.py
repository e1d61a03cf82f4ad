"""Rewards: what tells an episode that went well from one that did not.

`REWARDS` has those that need no settings, by the names that pipelines use; `LLMJudge` needs some, which a
pipeline gives under `agent.judges`. One of
your own is a function under `@reward`; `combine_rewards` makes one of several. `assign_rewards` puts a result
on a trajectory.
"""

from typing import Any

from agents.clients.endpoint import Endpoint
from agents.judging import JudgeSettings
from agents.rewards.assignment import assign_rewards
from agents.rewards.code import code_tests
from agents.rewards.environment import environment, environment_success
from agents.rewards.formats import answer_format, think_answer_format, think_format, tool_use
from agents.rewards.function import FunctionReward, reward
from agents.rewards.judge.reward import LLMJudge
from agents.rewards.math.reward import math_equal, math_equal_with_think, math_equal_with_tool
from agents.rewards.qa import (
    qa_exact_match,
    qa_exact_match_with_format,
    qa_exact_match_with_tool,
    qa_f1,
    qa_f1_with_format,
    qa_f1_with_tool,
    searchr1_exact_match,
)
from agents.rewards.text import number_equal, string_equal
from agents.rewards.types import Reward, RewardInput, RewardResult
from agents.rewards.weighted import combine_rewards
from agents.rewards.workspace import workspace_tests
from envs.errors import ConfigError
from envs.plugins import Registry

__all__ = [
    "REWARDS",
    "Endpoint",
    "FunctionReward",
    "JudgeSettings",
    "LLMJudge",
    "Reward",
    "RewardInput",
    "RewardResult",
    "assign_rewards",
    "combine_rewards",
    "get_reward",
    "register_reward",
    "reward",
]

_BUILTIN: tuple[FunctionReward, ...] = (
    environment,
    environment_success,
    string_equal,
    number_equal,
    math_equal,
    math_equal_with_tool,
    math_equal_with_think,
    qa_exact_match,
    qa_exact_match_with_format,
    qa_exact_match_with_tool,
    qa_f1,
    qa_f1_with_format,
    qa_f1_with_tool,
    searchr1_exact_match,
    think_format,
    answer_format,
    think_answer_format,
    tool_use,
    code_tests,
    workspace_tests,
)


def _validate(name: str, value: Any) -> Reward:
    if not all(callable(getattr(value, method, None)) for method in ("score", "check")):
        raise ConfigError(f"reward {name!r} is a {type(value).__name__}; decorate a function with @reward")
    reward: Reward = value
    return reward


REWARDS: Registry[Reward] = Registry(
    "reward",
    {reward.name: reward for reward in _BUILTIN},
    group="wingspan.rewards",
    origin="agents/rewards/__init__.py",
    validate=_validate,
)


def register_reward(reward: Reward) -> None:
    """Make `reward` known by its name in this process; entry points of the group `wingspan.rewards` are
    known in every process. Raises `ConfigError` if another reward has this name."""
    REWARDS.register(reward.name, reward)


def get_reward(name: str) -> Reward:
    """The reward called `name`. Raises `ConfigError` for an unknown name."""
    return REWARDS.find(name)
