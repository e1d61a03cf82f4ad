"""An agent that cuts its own conversation, and goes on with what it wrote down."""

import asyncio
import json
from dataclasses import replace
from typing import Any

from agents.agent import FormatAgent
from agents.clients.endpoint import Endpoint
from agents.rollout.conversation import SUMMARY_HEADING, ContextPolicy
from agents.rollout.packing import pack
from agents.rollout.rollout import rollout
from agents.samplers.sampler import ScriptedSampler
from agents.tools.registry import get_tool
from agents.tools.toolbox import Toolbox
from agents.types import EpisodeLimits, StopReason, Trajectory
from tests.agents.test_segments import Recorder
from tests.support.chat_server import calls, chat_server, says
from tests.support.toy import encode, toy_tokenizer
from tests.support.toy_episode import play_toy

LIMITS = EpisodeLimits(
    max_turns=12, max_tokens_per_turn=400, context_length=4000, episode_timeout_s=5, step_timeout_s=5
)


OPENING = 1603
"""Tokens of the opening."""


def call(name: str, **arguments: Any) -> str:
    return json.dumps({"name": name, "arguments": arguments})


def play_episode(
    texts: list[str], *, limits: EpisodeLimits = LIMITS, policy: ContextPolicy | None = None
) -> tuple[Trajectory, list[str]]:
    """The trajectory, and what the policy was shown before each turn."""
    sampler = Recorder(ScriptedSampler(texts, encode=encode))
    tools = Toolbox(map(get_tool, ["act", "summarize", "calculator"]))
    agent = FormatAgent("json", schemas=tools.schemas)
    trajectory = asyncio.run(play_toy(sampler, agent=agent, limits=limits, tools=tools, context=policy))
    return trajectory, [toy_tokenizer().decode(ids) for ids in sampler.prompts]


def test_the_next_turn_sees_the_opening_and_the_summary() -> None:
    cut = call("summarize", summary="The total is 2. Add 1.")
    trajectory, prompts = play_episode([call("act", action="add 2"), cut, call("act", action="add 1")])
    assert trajectory.success
    assert prompts[2] == prompts[0].replace(
        "reach 3.<|im_end|>", f"reach 3.\n\n{SUMMARY_HEADING}\nThe total is 2. Add 1.<|im_end|>"
    )
    assert [turn.observation for turn in trajectory.turns] == ["The total is 2.", "", "The total is 3."]
    assert [turn.state for turn in trajectory.turns] == ["0", "2", "2"]
    first, _ = pack(trajectory)
    assert len(first.prompt_ids) == OPENING
    assert toy_tokenizer().decode(first.response_ids).endswith(f"{cut}<|im_end|>")


def test_a_second_summary_takes_the_place_of_the_first() -> None:
    _, prompts = play_episode(
        [call("summarize", summary="one"), call("summarize", summary="two"), call("act", action="add 3")]
    )
    assert prompts[2].count(SUMMARY_HEADING) == 1
    assert "\ntwo<" in prompts[2]


def test_answers_of_other_calls_of_the_turn_stay() -> None:
    two_calls = f"[{call('calculator', expression='6*7')}, {call('summarize', summary='Half of it.')}]"
    _, prompts = play_episode([two_calls, call("act", action="add 3")])
    assert f"{SUMMARY_HEADING}\nHalf of it.\n\n42<" in prompts[1]


def test_a_summary_without_room_cuts_nothing_and_is_reported() -> None:
    limits = replace(LIMITS, context_length=2 * OPENING + 100)
    probe = call("act", action="add 0")
    trajectory, prompts = play_episode(
        [probe, call("summarize", summary="xy" * 150), call("act", action="add 3")], limits=limits
    )
    assert trajectory.success
    assert trajectory.metrics["segments"] == 1
    assert "Nothing was cut" in trajectory.turns[1].observation
    assert prompts[2].startswith(prompts[1])


def test_turns_that_are_dropped_later_leave_the_summary() -> None:
    limits = replace(LIMITS, context_length=2 * OPENING + 1600)
    texts = [call("summarize", summary="Never forget.")]
    texts += [call("act", action="add 0") + f"turn {number}" + ", so" * 90 for number in range(11)]
    trajectory, prompts = play_episode(texts, limits=limits, policy=ContextPolicy(when_full="drop"))
    assert trajectory.stop_reason is StopReason.MAX_TURNS
    assert trajectory.metrics["segments"] > 2
    assert all("Never forget." in prompt and prompt.count("Goal: ") == 1 for prompt in prompts[1:])
    assert "turn 0" not in prompts[-1]


def test_by_function_calling() -> None:
    def script(body: Any) -> Any:
        last = body["messages"][-1]["content"]
        return says("42") if SUMMARY_HEADING in last else calls(("summarize", {"summary": "Say 42."}))

    with chat_server(script) as server:
        [trajectory] = rollout(
            ["6 * 7?"], agent="hermes", tools=["summarize"], model=Endpoint(server.url, "toy")
        )
    assert server.requests[1]["messages"] == [
        {"role": "user", "content": f"6 * 7?\n\n{SUMMARY_HEADING}\nSay 42."}
    ]
    assert trajectory.turns[-1].action == "42"
