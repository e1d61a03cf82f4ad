"""An environment that tools and rewards are checked on is made once, if one asks for it, and closed."""

from collections.abc import Callable

import pytest

from agents.rewards import reward
from agents.rollout.env_checks import check_env
from agents.tools.tool import tool
from agents.tools.toolbox import Toolbox
from envs.base import Environment
from envs.errors import ConfigError, EnvCrashed
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


def make_tools(check: Callable[[Environment | None], object] | None) -> Toolbox:
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


def test_nothing_is_made_where_nothing_asks_or_a_server_has_it() -> None:
    making = Making()
    check_env(toy_spec(making), tools=make_tools(None), reward=None)
    asked: list[Environment | None] = []
    check_env(toy_spec(making), tools=make_tools(asked.append), reward=None, is_served=True)
    assert (making.made, asked) == ([], [None])


def test_an_environment_that_cannot_be_made_is_named() -> None:
    def fail() -> ToyEnv:
        raise FileNotFoundError("levels.json")

    with pytest.raises(EnvCrashed, match=r"environment 'toy.* raised FileNotFoundError: levels.json"):
        check_env(toy_spec(fail), tools=make_tools(accept), reward=None)
