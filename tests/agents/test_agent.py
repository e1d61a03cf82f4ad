"""Agents that call tools and are judged by rewards: whole episodes, from text to tokens."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from agents.agent import Agent, FormatAgent, Opening
from agents.formats import NATIVE
from agents.formats.calls import ParsedTurn, ToolCall
from agents.prompting.renderer import Renderer
from agents.rewards import REWARDS, Reward, reward
from agents.rollout.conversation import TokenConversation
from agents.rollout.episode import EpisodeConfig
from agents.rollout.group import GroupSpec, run_groups
from agents.rollout.packing import pack
from agents.samplers.sampler import ScriptedSampler
from agents.tools.calculator import calculator
from agents.tools.episode import act, answer
from agents.tools.tool import tool
from agents.tools.toolbox import Toolbox
from agents.types import EpisodeLimits, FinishReason, SamplingParams, StopReason, Trajectory
from envs.errors import ConfigError, EnvCrashed, EpisodeTimeout
from envs.runtime.manager import EnvManager
from envs.types import Item, Message
from tests.support.tool_templates import TEMPLATES, with_template
from tests.support.toy import CHATML, ToyEnv, encode, toy_item, toy_tokenizer, toys
from tests.support.toy_episode import play_toy

LIMITS = EpisodeLimits(
    max_turns=4, max_tokens_per_turn=400, context_length=20_000, episode_timeout_s=5, step_timeout_s=0.3
)
ITEM = Item(item_id="toy_0", env="toy", metadata={"target": 3}, fields={"answer": "42"})


def play_texts(
    *texts: str,
    agent: Agent,
    tools: Toolbox | None = None,
    reward: Reward | None = None,
    env: ToyEnv | None = None,
    item: Item = ITEM,
    tokenizer: Any = None,
) -> Trajectory:
    return asyncio.run(
        play_toy(
            ScriptedSampler(texts, encode=encode),
            agent=agent,
            limits=LIMITS,
            tools=tools,
            reward=reward,
            env=env,
            item=item,
            tokenizer=tokenizer,
        )
    )


@reward
def exact(final_response: str, answer: str) -> dict[str, Any]:
    """1 for the very answer."""
    right = final_response == answer
    return {"reward": float(right), "success": right, "length": len(final_response)}


@tool
def search(query: str) -> str:
    """Find passages."""
    return query


def test_react_by_hand() -> None:
    tools = Toolbox([calculator])
    agent = FormatAgent("react", schemas=tools.schemas, instructions="Be brief.")
    trajectory = play_texts(
        'Thought: multiply\nAction: calculator\nAction Input: {"expression": "6*7"}',
        "Thought: done\nFinal Answer: 42",
        agent=agent,
        tools=tools,
        reward=exact,
    )
    assert (trajectory.stop_reason, trajectory.reward, trajectory.success) == (
        StopReason.TERMINATED,
        1.0,
        True,
    )
    assert [t.action for t in trajectory.turns] == ['calculator({"expression": "6*7"})', "42"]
    assert [t.thought for t in trajectory.turns] == ["multiply", "done"]
    assert [t.reward for t in trajectory.turns] == [0.0, 1.0]
    metrics = dict(trajectory.metrics)
    assert metrics.pop("tool_seconds/calculator") > 0
    assert metrics == {
        "parse_failures": 0,
        "segments": 1,
        "unknown_tools": 0,
        "tool_calls/calculator": 1,
        "tool_failures/calculator": 0,
        "reward/length": 2,
    }
    decode = toy_tokenizer().decode
    opening = decode(trajectory.prompt_ids)
    assert opening.startswith(
        "<|im_start|>system\nBe brief.\n\nAnswer the question or do the task step by step."
    )
    assert '{"name": "calculator"' in opening
    assert opening.endswith("<|im_start|>user\nGoal: reach 3.<|im_end|>\n<|im_start|>assistant\n")
    [segment] = pack(trajectory)
    assert decode(segment.response_ids).split("<|im_end|>\n<|im_start|>")[1] == "user\nObservation: 42"
    assert tools.usage["calculator"].calls == 0  # each episode counts for itself


@pytest.mark.parametrize(
    ("format", "text", "name"),
    [
        ("searchr1", "<think>I know</think><answer>42</answer>", "searchr1_exact_match"),
        ("searchr1", "<think>I know</think><answer>42</answer>", "qa_exact_match_with_format"),
        ("searchr1", "<think>I know</think><answer>42</answer>", "think_answer_format"),
        ("searchr1", "<answer>42</answer>", "answer_format"),
        ("hermes", "<think>I know</think>42", "think_format"),
        ("raw", "<think>I know</think>42", "think_format"),
    ],
)
def test_a_reward_for_marks_sees_those_that_the_format_reads(format: str, text: str, name: str) -> None:
    tools = Toolbox([search]) if format == "searchr1" else None  # it cannot do without
    agent = FormatAgent(format, schemas=tools.schemas if tools else ())
    for last_text, value in ((text, 1.0), ("nothing of the kind", 0.0)):
        texts = [last_text] * LIMITS.max_turns  # as many as may be asked for
        assert play_texts(*texts, agent=agent, tools=tools, reward=REWARDS[name]).reward == value


def test_an_answer_of_other_json_than_a_string_keeps_its_letters() -> None:
    agent = FormatAgent("json", schemas=Toolbox([calculator]).schemas)
    assert agent.parse('{"answer": ["Zürich"]}').answer == '["Zürich"]'


def test_a_call_of_an_agent_without_tools_counts_for_no_reward() -> None:
    call = '<tool_call>\n{"name": "nope", "arguments": {}}\n</tool_call>'
    reward = REWARDS["qa_exact_match_with_tool"]
    trajectory = play_texts(call, "42", agent=FormatAgent("hermes"), reward=reward)
    assert [turn.text for turn in trajectory.turns] == [call, "42"]
    assert trajectory.reward == 0.0


async def test_a_stop_text_ends_a_turn_and_is_not_part_of_it() -> None:
    trajectory = await play_toy(
        ScriptedSampler(["Thought: x\nAction: add 3\nObservation: 3", "no more"], encode=encode),
        agent=FormatAgent("action"),
        limits=LIMITS,
        sampling=SamplingParams(max_tokens=1, stop=("\nObservation:",)),
    )
    (turn,) = trajectory.turns
    assert turn.text == "Thought: x\nAction: add 3"
    assert turn.action == "add 3"
    assert turn.completion.finish_reason is FinishReason.CUT
    assert toy_tokenizer().decode(turn.completion.token_ids).endswith("Observation:")


@pytest.mark.parametrize("format", NATIVE)
def test_native_calls_are_answered_by_the_template_s_own_role(format: str) -> None:
    tokenizer = with_template(TEMPLATES[format])
    tools = Toolbox([calculator, answer])
    agent = FormatAgent(format, schemas=tools.schemas)

    def call(name: str, **arguments: Any) -> str:
        message_call = {"type": "function", "function": {"name": name, "arguments": arguments}}
        messages = [
            {"role": "user", "content": ""},
            {"role": "assistant", "content": "", "tool_calls": [message_call]},
        ]
        text: str = tokenizer.apply_chat_template(messages, tokenize=False)
        return text.rpartition("<|im_start|>assistant\n")[2].removesuffix("<|im_end|>\n")

    trajectory = play_texts(
        call("calculator", expression="6*7"),
        call("answer", answer="42"),
        agent=agent,
        tools=tools,
        reward=exact,
        tokenizer=tokenizer,
    )
    assert trajectory.stop_reason is StopReason.TERMINATED
    assert trajectory.reward == 1  # for "42": the tool's answer, not the text of its call
    assert '"name": "calculator"' in tokenizer.decode(trajectory.prompt_ids)
    [segment] = pack(trajectory)
    assert "<|im_start|>tool\n42<|im_end|>\n<|im_start|>assistant\n" in tokenizer.decode(segment.response_ids)


def test_what_goes_wrong_is_an_observation_and_counted() -> None:
    @tool
    def unlucky(x: int) -> str:
        """Breaks."""
        raise RuntimeError("no luck")

    tools = Toolbox([unlucky])
    trajectory = play_texts(
        "no format at all",
        '{"name": "unluky", "arguments": {"x": 1}}',
        '{"name": "unlucky", "arguments": {"x": "one"}}',
        '{"name": "unlucky", "arguments": {"x": "1"}}',
        agent=FormatAgent("json", schemas=tools.schemas),
        tools=tools,
    )
    assert trajectory.stop_reason is StopReason.MAX_TURNS
    observations = [t.observation for t in trajectory.turns]
    assert "did you mean 'unlucky'" in observations[1]
    assert "was not run" in observations[2]
    assert "unlucky failed: RuntimeError: no luck" in observations[3]
    assert [t.is_malformed for t in trajectory.turns] == [True, False, False, False]
    assert trajectory.metrics["parse_failures"] == 1
    assert trajectory.metrics["unknown_tools"] == 1
    assert (trajectory.metrics["tool_calls/unlucky"], trajectory.metrics["tool_failures/unlucky"]) == (2, 2)


def test_calls_of_one_turn_run_side_by_side_and_their_results_are_in_order() -> None:
    waits: list[asyncio.Event] = []

    @tool(timeout_s=3)
    async def meet(name: str) -> str:
        """Waits for another one to come.

        Args:
            name: Whose.
        """
        waits.append(asyncio.Event())
        if len(waits) == 2:
            waits[0].set()
        else:
            await waits[0].wait()
        return f"{name} met"

    tools = Toolbox([meet])
    calls = ", ".join(f'{{"name": "meet", "arguments": {{"name": "{name}"}}}}' for name in "ab")
    trajectory = play_texts(
        f"[{calls}]", '{"answer": "done"}', agent=FormatAgent("json", schemas=tools.schemas), tools=tools
    )
    assert trajectory.turns[0].observation == "a met\nb met"
    assert trajectory.metrics["tool_failures/meet"] == 0


def test_an_agent_of_one_s_own_acts_in_the_environment_by_a_tool() -> None:
    class Shouter(Agent):
        """Says ADD N."""

        def render(self, item: Item, observation: str) -> Opening:
            return Opening([Message("user", observation.upper())])

        def parse(self, text: str) -> ParsedTurn:
            return ParsedTurn(thought="", calls=(ToolCall("act", {"action": text.lower()}),))

        def reply(self, turn: ParsedTurn, observations: Sequence[str]) -> Sequence[Message]:
            return [Message("user", observations[0].upper())]

    trajectory = play_texts("ADD 1", "ADD 2", agent=Shouter(), tools=Toolbox([act]))
    assert (trajectory.success, trajectory.reward) == (True, 1.0)  # the environment's own
    assert "GOAL: REACH 3." in toy_tokenizer().decode(trajectory.prompt_ids)
    assert "THE TOTAL IS 1." in toy_tokenizer().decode(pack(trajectory)[0].response_ids)


def test_a_broken_environment_under_a_tool_is_no_play() -> None:
    tools = Toolbox([act])
    agent = FormatAgent("json", schemas=tools.schemas)
    call = '{"name": "act", "arguments": {"action": "add 1"}}'
    with pytest.raises(EnvCrashed):
        play_texts(call, agent=agent, tools=tools, env=ToyEnv(crash_at=1))
    with pytest.raises(EpisodeTimeout, match=r"step 1 took longer than 0\.3 s"):
        play_texts(call, agent=agent, tools=tools, env=ToyEnv(hang_at=1))


def test_earlier_messages_of_an_item_open_the_conversation() -> None:
    messages = [
        {"role": "user", "content": "Hello."},
        {"role": "assistant", "content": "Hello!"},
        {"role": "user", "content": "Goal: reach 3."},
    ]
    item = Item(item_id="toy_0", env="toy", metadata={"target": 3}, fields={"messages": messages})
    trajectory = play_texts("Action: add 3", agent=FormatAgent("action"), item=item)
    assert toy_tokenizer(CHATML).decode(trajectory.prompt_ids) == (
        "<|im_start|>user\nHello.<|im_end|>\n<|im_start|>assistant\nHello!<|im_end|>\n"
        "<|im_start|>user\nGoal: reach 3.<|im_end|>\n<|im_start|>assistant\n"
    )


async def test_a_reward_that_fails_drops_the_trajectory_without_playing_it_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    num_requests = 0

    @reward(max_attempts=2)
    def judge() -> float:
        nonlocal num_requests
        num_requests += 1
        raise ConnectionError("the judge is away")

    start_conversation = partial(
        TokenConversation,
        sampler=ScriptedSampler(["Action: add 3"], encode=encode),
        renderer=Renderer(toy_tokenizer()),
        sampling=SamplingParams(max_tokens=1),
    )
    config = EpisodeConfig(agent=FormatAgent("action"), limits=LIMITS, reward=judge)
    envs: EnvManager = toys(ToyEnv, capacity=2)
    [group] = await run_groups(
        [toy_item()],
        GroupSpec(name="p", num_samples=2, max_attempts=5),
        envs=envs,
        start_conversation=start_conversation,
        get_config=lambda _: config,
    )
    assert [t.stop_reason for t in group] == [StopReason.ERROR] * 2
    assert all("RewardFailed" in (t.error or "") and t.attempts == 1 for t in group)
    assert num_requests == 4  # once, and once again, for each
    assert sorted(record.getMessage()[:17] for record in caplog.records) == [
        "dropped, sample 0",
        "dropped, sample 1",
    ]


def test_actions_and_tools_do_not_go_together() -> None:
    with pytest.raises(ConfigError, match="'action' calls no tools, got calculator"):
        FormatAgent("action", schemas=Toolbox([calculator]).schemas)
