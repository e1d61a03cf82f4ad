"""An environment that tools and rewards are checked on is made once, if one asks for it, and closed."""

from dataclasses import replace
from typing import Any

import pytest

from agents.rewards import REWARDS, CombinedReward, reward
from agents.rollout.env_checks import check_env
from agents.tools.registry import get_tool
from agents.tools.tool import tool
from agents.tools.toolbox import Toolbox
from envs.errors import ConfigError, EnvCrashed
from envs.registry import get_env
from envs.runtime.processes import ProcessHost
from envs.types import EnvCheck, Environment
from tests.support.toy import ToyEnv, toy_spec


class Making:
    """Makes environments, and keeps them."""

    def __init__(self) -> None:
        self.made: list[ToyEnv] = []

    def __call__(self) -> ToyEnv:
        self.made.append(ToyEnv())
        return self.made[-1]


def refuse(env: Environment | None) -> None:
    raise ConfigError("it has no bell")


def accept(env: Environment | None) -> None:
    assert isinstance(env, ToyEnv)


def make_tools(check: EnvCheck | None) -> Toolbox:
    @tool(check_env=check)
    def ring() -> str:
        """Ring."""
        return "ding"

    return Toolbox([ring])


def test_one_environment_serves_all_checks_and_is_closed() -> None:
    making = Making()
    judge = reward(check_env=accept)(lambda: 1.0)
    check_env(toy_spec(making), tools=make_tools(accept), reward=judge)
    assert [env.is_closed for env in making.made] == [True]
    with pytest.raises(ConfigError, match=r"^tool 'ring': it has no bell$"):
        check_env(toy_spec(making), tools=make_tools(refuse), reward=judge)
    assert [env.is_closed for env in making.made] == [True, True]


def test_nothing_is_made_where_nothing_asks() -> None:
    making = Making()
    check_env(toy_spec(making), tools=make_tools(None), reward=reward(lambda: 1.0))
    assert making.made == []


@pytest.mark.parametrize(
    ("changes", "options"),
    [
        ({}, {"is_served": True}),
        ({"isolation": "process"}, {}),
        ({"isolation": "own"}, {"remote_host": lambda spec: ProcessHost(spec.make)}),
    ],
)
def test_nothing_is_made_where_episodes_have_it_elsewhere(
    changes: dict[str, Any], options: dict[str, Any]
) -> None:
    making = Making()
    asked: list[Environment | None] = []
    spec = toy_spec(making, **changes)
    check_env(spec, tools=make_tools(asked.append), reward=None, **options)
    assert (making.made, asked) == ([], [None])


def test_a_workspace_in_another_process_is_refused() -> None:
    """The tools of an episode are given its `HostedEnv`, and not the workspace."""
    spec = replace(get_env("workspace"), isolation="process")
    with pytest.raises(ConfigError, match=r"^tool 'shell': an environment in another process or on a server"):
        check_env(spec, tools=Toolbox([get_tool("shell")]), reward=None)


def test_the_part_of_a_weighted_reward_that_refuses_is_named() -> None:
    bell = reward(name="bell", check_env=refuse)(lambda: 1.0)
    combined = CombinedReward({"bell": 1.0, "exact": 1.0}, rewards={"bell": bell, "exact": REWARDS["qa_f1"]})
    with pytest.raises(ConfigError, match=r"^reward 'bell': it has no bell$"):
        check_env(toy_spec(), tools=None, reward=combined)


def test_an_environment_that_cannot_be_made_is_named() -> None:
    def fail() -> ToyEnv:
        raise FileNotFoundError("levels.json")

    with pytest.raises(EnvCrashed, match=r"environment 'toy.* raised FileNotFoundError: levels.json"):
        check_env(toy_spec(fail), tools=make_tools(accept), reward=None)
