"""Rewards: what tells an episode that went well from one that did not.

`REWARDS` has those that need no settings, by the names that pipelines use; `llm_judge` needs some, which a
pipeline gives under `agent.judges`. One of
your own is a function under `@reward`; `combine_rewards` makes one of several. `assign_rewards` puts a result
on a trajectory.
"""

import difflib

from agents.clients.endpoint import Endpoint
from agents.judging import JudgeSettings
from agents.rewards.assignment import assign_rewards
from agents.rewards.code import code_tests
from agents.rewards.environment import environment, environment_success
from agents.rewards.formats import answer_format, think_answer_format, think_format, tool_use
from agents.rewards.function import FunctionReward, reward
from agents.rewards.judge.reward import llm_judge
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

__all__ = [
    "REWARDS",
    "Endpoint",
    "FunctionReward",
    "JudgeSettings",
    "Reward",
    "RewardInput",
    "RewardResult",
    "assign_rewards",
    "combine_rewards",
    "get_reward",
    "llm_judge",
    "reward",
]

REWARDS: dict[str, FunctionReward] = {
    "environment": environment,
    "environment_success": environment_success,
    "string_equal": string_equal,
    "number_equal": number_equal,
    "math_equal": math_equal,
    "math_equal_with_tool": math_equal_with_tool,
    "math_equal_with_think": math_equal_with_think,
    "qa_exact_match": qa_exact_match,
    "qa_exact_match_with_format": qa_exact_match_with_format,
    "qa_exact_match_with_tool": qa_exact_match_with_tool,
    "qa_f1": qa_f1,
    "qa_f1_with_format": qa_f1_with_format,
    "qa_f1_with_tool": qa_f1_with_tool,
    "searchr1_exact_match": searchr1_exact_match,
    "think_format": think_format,
    "answer_format": answer_format,
    "think_answer_format": think_answer_format,
    "tool_use": tool_use,
    "code_tests": code_tests,
    "workspace_tests": workspace_tests,
}
"""Name → reward; each is called as its key says."""


def get_reward(name: str) -> FunctionReward:
    """The reward called `name`; raises `ConfigError` if there is none."""
    if name not in REWARDS:
        near = difflib.get_close_matches(name, REWARDS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ";"
        raise ConfigError(
            f"unknown reward {name!r}{hint} agents/rewards/__init__.py has: {', '.join(REWARDS)}"
        )
    return REWARDS[name]
