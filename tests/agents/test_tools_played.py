"""What tools do to the episode that calls them, and to those that come after it."""

import asyncio
import json
import time
from dataclasses import replace
from typing import Any

import pytest

from agents.agent import FormatAgent
from agents.rewards import reward
from agents.samplers.sampler import ScriptedSampler
from agents.tools.calculator import calculator
from agents.tools.episode import answer
from agents.tools.tool import tool
from agents.tools.toolbox import Toolbox
from agents.types import EpisodeLimits, Trajectory
from envs.errors import EpisodeTimeout
from envs.runtime.pool import EnvPool
from envs.types import Environment
from tests.support.toy import ToyEnv, encode, toy_item
from tests.support.toy_episode import play_toy

LIMITS = EpisodeLimits(
    max_turns=2, max_tokens_per_turn=400, context_length=20_000, episode_timeout_s=20, step_timeout_s=0.2
)
ITEM = replace(toy_item(), fields={"answer": "42"})


@reward
def exact(final_response: str, answer: str) -> float:
    """1 for the very answer."""
    return float(final_response == answer)


def call(name: str, **arguments: Any) -> str:
    return json.dumps({"name": name, "arguments": arguments})


async def play(*texts: str, tools: list[object], env: Environment | None = None) -> Trajectory:
    box = Toolbox(tools)
    return await play_toy(
        ScriptedSampler(texts, encode=encode),
        agent=FormatAgent("json", schemas=box.schemas),
        limits=LIMITS,
        tools=box,
        reward=exact,
        env=env,
        item=ITEM,
    )


def play_episode(*texts: str, tools: list[object]) -> Trajectory:
    return asyncio.run(play(*texts, tools=tools))


def test_the_answer_that_a_tool_was_given_is_the_answer() -> None:
    assert play_episode(call("answer", answer="42"), tools=[answer]).reward == 1
    assert play_episode(call("answer", answer="41"), tools=[answer]).reward == 0


def test_a_call_is_no_answer() -> None:
    """Not even one of the right number, for whoever looks for the last one."""
    texts = [call("calculator", expression=text) for text in ("6*7", "42")]
    without_answer = play_episode(*texts, tools=[calculator])
    assert without_answer.reward == 0
    assert len(without_answer.turns) == 2


def test_what_a_tool_measures_is_the_episodes() -> None:
    @tool
    def seek(word: str) -> dict[str, Any]:
        """Seek."""
        return {"observation": word, "hits": len(word)}

    metrics = play_episode(call("seek", word="abc"), call("seek", word="de"), tools=[seek]).metrics
    assert metrics["tool_metrics/seek/hits"] == 5


def test_a_tool_that_cancels_itself_is_an_observation() -> None:
    @tool
    async def gives_up() -> str:
        """Give up."""
        raise asyncio.CancelledError

    trajectory = play_episode(call("gives_up"), call("gives_up"), tools=[gives_up])
    assert [turn.observation for turn in trajectory.turns] == ["gives_up failed: it was cancelled"] * 2


def test_a_tool_that_keeps_time_has_as_much_as_it_takes() -> None:
    """A step of the environment would be given up after 0.2 s; a sandbox ends what hangs by itself."""

    @tool(keeps_time=True)
    async def patient() -> str:
        """Wait."""
        await asyncio.sleep(0.5)
        return "done"

    @tool(timeout_s=None)
    async def endless() -> str:
        """Wait."""
        await asyncio.sleep(0.5)
        return "done"

    assert play_episode(call("patient"), call("patient"), tools=[patient]).turns[0].observation == "done"
    with pytest.raises(EpisodeTimeout, match=r"step 1 took longer than 0\.2 s"):
        play_episode(call("endless"), tools=[endless])


@pytest.mark.parametrize("stateful", [True, False])
async def test_what_a_stateful_tool_was_at_work_on_is_not_lent_again(stateful: bool) -> None:
    @tool(stateful=True, timeout_s=0.1)
    def slow(env: Any) -> str:
        """Take long."""
        time.sleep(0.5)
        return "done"

    @tool(timeout_s=0.1)
    def slow_elsewhere() -> str:
        """Take long."""
        time.sleep(0.5)
        return "done"

    slow_tool = slow if stateful else slow_elsewhere
    pool = EnvPool(ToyEnv, capacity=1)
    async with pool.lease() as env:
        texts = [call(slow_tool.name), call("answer", answer="42")]
        trajectory = await play(*texts, tools=[slow_tool, answer], env=env)
        assert "took longer than 0.1 s" in trajectory.turns[0].observation
        assert trajectory.reward == 1
    async with pool.lease():
        assert pool.metrics.replaced == int(stateful)
    await pool.close()
