"""The tools of an episode: names, counts, the answer that ends it and the action on its environment."""

import asyncio
from dataclasses import astuple
from typing import Any

import pytest

from agents.tools.calculator import calculator
from agents.tools.episode import act, answer
from agents.tools.tool import tool
from agents.tools.toolbox import Toolbox
from agents.tools.types import ToolResult, ToolStatus, ToolUsage
from envs.errors import ConfigError, EnvCrashed
from tests.support.toy import ToyEnv, toy_item


class Library:
    @tool
    def look_up(self, title: str) -> str:
        return title.upper()

    @tool
    def lend(self) -> None:
        raise ValueError("closed")


def run_calls(box: Toolbox, *calls: tuple[str, Any], env: Any = None) -> list[ToolResult]:
    async def main() -> list[ToolResult]:
        return [await box.call(name, arguments, env=env) for name, arguments in calls]

    return asyncio.run(main())


def test_calls_go_by_name_and_are_counted() -> None:
    box = Toolbox([calculator, Library(), answer])
    results = run_calls(
        box,
        ("look_up", {"title": "Emma"}),
        ("look_up", {}),
        ("lend", {}),
        ("calculator", {"expression": "6*7"}),
        ("answer", {"answer": 42}),
    )
    assert [(r.observation, r.ends_episode) for r in results if r.status is ToolStatus.OK] == [
        ("EMMA", False),
        ("42", False),
        ("42", True),
    ]
    counts = {name: astuple(usage)[:2] for name, usage in box.usage.items()}
    assert counts == {"calculator": (1, 0), "look_up": (2, 1), "lend": (1, 1), "answer": (1, 0)}
    assert box.usage["calculator"].seconds > 0
    assert [schema["function"]["name"] for schema in box.schemas] == list(box.tools)
    assert all(usage == ToolUsage() for usage in box.fresh().usage.values())


def test_an_unknown_name_is_answered_with_those_that_there_are() -> None:
    box = Toolbox([calculator, answer])
    [near, far, endless] = run_calls(box, ("Calculater", {}), ("fly", {}), ("x" * 10**6, {}))
    assert near.observation == (
        "there is no tool 'Calculater'; did you mean 'calculator'? The tools are: calculator, answer"
    )
    assert far.observation == "there is no tool 'fly'. The tools are: calculator, answer"
    assert len(endless.observation) < 200
    assert {near.status, far.status, endless.status} == {ToolStatus.UNKNOWN_TOOL}
    assert box.unknown_calls == 3
    assert box.fresh().unknown_calls == 0
    assert sum(usage.calls for usage in box.usage.values()) == 0


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="two tools are called 'look_up'"):
        Toolbox([Library(), Library()])
    assert Toolbox([]).schemas == []


def test_an_answer_that_is_refused_does_not_end_the_episode() -> None:
    assert [
        r.ends_episode for r in run_calls(Toolbox([answer]), ("answer", {}), ("answer", {"answer": "x"}))
    ] == [False, True]


def test_acting_steps_the_environment_and_keeps_its_reward() -> None:
    env, box = ToyEnv(), Toolbox([act])
    asyncio.run(env.reset(toy_item(target=3)))
    [add, vague, last] = run_calls(
        box, *[("act", {"action": a}) for a in ("add 1", "jump", "add 2")], env=env
    )
    assert (add.observation, add.ends_episode) == ("The total is 1.", False)
    assert (vague.status, vague.observation) == (ToolStatus.OK, "Could not execute jump")
    assert last.ends_episode
    assert last.step is not None
    assert (last.step.reward, last.step.terminated, last.step.success) == (1.0, True, True)
    assert box.schemas[0]["function"]["description"] == "Act in the environment."
    assert list(box.tools["act"].schema["function"]["parameters"]["properties"]) == ["action"]


def test_an_environments_own_end_ends_the_episode() -> None:
    env = ToyEnv(max_steps=1)
    asyncio.run(env.reset(toy_item()))
    [result] = run_calls(Toolbox([act]), ("act", {"action": "x"}), env=env)
    assert result.ends_episode
    assert result.step is not None
    assert result.step.truncated


def test_an_environment_that_breaks_is_no_play() -> None:
    env, box = ToyEnv(crash_at=1), Toolbox([act])
    asyncio.run(env.reset(toy_item()))
    with pytest.raises(EnvCrashed, match="act: step raised KeyError: 'the toy broke'"):
        run_calls(box, ("act", {"action": "add 1"}), env=env)
    assert astuple(box.usage["act"])[:2] == (1, 1)
    with pytest.raises(ConfigError, match="without an environment"):
        run_calls(box, ("act", {"action": "add 1"}))
