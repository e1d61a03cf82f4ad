"""Questions out of a user's data, from the file to the metrics: asked, answered with a tool, judged."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from agents.agent import Agent, FormatAgent
from agents.formats.calls import Schema
from agents.rewards import reward
from agents.rewards.text import verdict
from agents.samplers.sampler import ScriptedSampler
from agents.tools.tool import tool
from agents.types import StopReason
from envs.builtin.question.env import QuestionEnv
from envs.errors import ConfigError, MissingDependency
from envs.registry import get_env
from envs.sandbox.workspace import WithWorkspace
from envs.types import Item
from tasks.config.agent import AgentSettings
from tasks.config.episodes import check_agent, check_reward
from tasks.data.items import read_items, split
from tasks.data.trajectories import summarise
from tasks.rollout.runner import make_runner
from tasks.rollout.spec import RolloutSpec
from tasks.stages.prepare import prepare
from tasks.stages.provision import provision
from tests.support.question_toy import TRAIN, pipeline_of, write_questions, write_rows
from tests.support.toy import encode, toy_tokenizer
from tests.support.verl_toy import register


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_questions()


async def test_the_question_is_asked_and_any_action_is_the_answer() -> None:
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "b?"}]
    env = QuestionEnv()
    assert await env.reset(Item("a_0", "question", fields={"question": "a?"})) == "a?"
    assert await env.reset(Item("a_1", "question", fields={"messages": messages})) == "b?"
    result = await env.step("")
    assert (result.terminated, result.reward, result.success) == (True, 0.0, False)
    for ask in (get_env("question").split, get_env("workspace").split):
        with pytest.raises(ConfigError, match="no items of its own; give a part"):
            ask(0)


@tool
def double(number: int) -> str:
    """Double a number."""
    return str(2 * number)


@reward
def right(final_response: str, answer: str) -> dict[str, float | bool]:
    """1 for the answer of the data."""
    return verdict(final_response == answer, length=float(len(final_response)))


TOOLS = {
    "instructions": False,
    "format": "json",
    "tools": [f"{__name__}:double"],
    "reward": f"{__name__}:right",
}


async def test_a_group_uses_a_tool_and_is_judged_by_the_answer_in_the_data() -> None:
    pipeline = pipeline_of(TOOLS)
    (item,) = split(pipeline.data).test

    def says(episode_id: str, turn: int) -> str:
        if turn == 0:
            return '{"name": "double", "arguments": {"number": 9}}'
        return json.dumps({"answer": "18" if episode_id.endswith("/0/1") else "19"})

    runner = make_runner(pipeline, sampler=ScriptedSampler(says, encode=encode), tokenizer=toy_tokenizer())

    spec = RolloutSpec(name="p", max_turns={"math": 4}, num_samples=2, temperature=1.0)
    try:
        [group] = await runner.run([item], spec)
    finally:
        await runner.close()
    assert [t.stop_reason for t in group] == [StopReason.TERMINATED] * 2
    assert [turn.observation for turn in group[0].turns] == ["18", ""]
    assert sorted(t.reward for t in group) == [0.0, 1.0]
    assert [t.success for t in group] == [t.reward == 1 for t in group]
    summary = summarise(group)
    assert (summary["success"], summary["tool_calls/double"], summary["tool_failures/double"]) == (0.5, 1, 0)
    assert summary["reward/length"] == 2
    for name in ("reward", *group[0].metrics):
        check_agent(pipeline_of(TOOLS, train__algorithm=gdpo(name)))


def gdpo(metric: str) -> dict[str, Any]:
    return {"name": "gdpo", "rewards": {metric: 1.0}}


@pytest.mark.parametrize(
    ("changes", "metric", "is_known"),
    [
        ({}, "length", False),
        ({}, "tool_calls/doubel", False),
        ({"tools": [], "format": "action"}, "tool_calls/double", False),
        ({}, "env_metrics/f1", True),
        ({"reward": None}, "reward/length", False),
        ({"reward": {TOOLS["reward"]: 1.0}}, f"reward/{TOOLS['reward']}", True),
        ({"reward": {TOOLS["reward"]: 1.0}}, f"reward/{TOOLS['reward']}/length", True),
        ({"reward": {TOOLS["reward"]: 1.0}}, "reward/length", False),
    ],
)
def test_a_metric_that_no_episode_has_is_refused_before_anything_starts(
    changes: dict[str, Any], metric: str, is_known: bool
) -> None:
    env = "parity" if changes.get("reward", "") is None else "question"  # which gives rewards
    register()
    pipeline = pipeline_of(TOOLS | changes, env=env, train__algorithm=gdpo(metric))
    if is_known:
        check_agent(pipeline)
        return
    with pytest.raises(ConfigError, match=f"rewards: no episode of this agent has the metric '{metric}'; "):
        check_agent(pipeline)


def test_questions_are_provisioned_without_an_expert(tmp_path: Path) -> None:
    pipeline = pipeline_of(TOOLS)
    check_agent(pipeline)
    prepare(pipeline, tmp_path / "run")
    assert len(read_items(tmp_path / "run" / "data" / "train.jsonl", data=pipeline.data)) == 5
    provision(pipeline, tmp_path / "run")
    receipt = json.loads((tmp_path / "run" / "provision.json").read_text())
    assert (receipt["episodes"], receipt["solved"], receipt["turns"]) == (5, 0, 5)


def test_a_workspace_is_tried_before_training(tmp_path: Path) -> None:
    pipeline = pipeline_of(TOOLS, env="workspace")
    try:
        env = get_env("workspace").make()
    except MissingDependency as missing:
        pytest.skip(str(missing))
    assert isinstance(env, WithWorkspace)
    prepare(pipeline, tmp_path / "run")
    provision(pipeline, tmp_path / "run")
    assert json.loads((tmp_path / "run" / "provision.json").read_text())["episodes"] == 5


def test_a_reward_that_some_item_does_not_fill_stops_the_run(tmp_path: Path) -> None:
    pipeline = pipeline_of(TOOLS)
    write_rows(TRAIN, {"question": "1?", "answer": "1"}, {"question": "why?"})
    prepare(pipeline, tmp_path / "run")
    with pytest.raises(ConfigError, match=r"math_1: reward 'right' takes 'answer', which nothing fills"):
        provision(pipeline, tmp_path / "run")
    settings = AgentSettings.model_validate(TOOLS)
    check_reward(settings, [Item(item_id="a_0", env="question", metadata={"answer": "x"})])
    check_reward(AgentSettings(instructions=False), [Item(item_id="a_0", env="question")])


def make_mine(schemas: Sequence[Schema]) -> Agent:
    return FormatAgent("raw")


MINE = f"{__name__}:make_mine"
WARMUP = {"demonstrations": 1, "noise": 0, "steps": 1, "batch_size": 1, "lr": 1e-3}


@pytest.mark.parametrize(
    ("agent", "changes", "message"),
    [
        ({"tools": ["calculater"]}, {}, "unknown tool 'calculater'; did you mean 'calculator'"),
        ({"tools": ["calculator"], "format": "action"}, {}, "format 'action' calls no tools"),
        ({"tools": ["code_session"]}, {}, "tool 'code_session': QuestionEnv has no workspace"),
        ({"tools": ["read_file"]}, {}, "tool 'read_file': QuestionEnv has no workspace"),
        ({"tools": ["act"]}, {}, "tool 'act': QuestionEnv has no actions"),
        ({"reward": "workspace_tests"}, {}, "reward 'workspace_tests': QuestionEnv has no workspace; wrap"),
        ({"reward": {"string_equal": 1, "workspace_tests": 1}}, {}, "reward 'workspace_tests': QuestionEnv"),
        ({"format": "jsn"}, {}, "unknown format"),
        ({"format": MINE, "prompt": "data/x.md"}, {}, rf"agent\.prompt: agent\.format '{MINE}' writes"),
        ({"format": MINE, "instructions": True}, {}, rf"agent\.instructions: agent\.format '{MINE}' writes"),
        ({"format": "jsn", "instructions": True}, {}, "unknown format 'jsn'; did you mean 'json'"),
        ({"reward": "string_equl"}, {}, "unknown reward"),
        ({"reward": f"{__name__}:WARMUP"}, {}, "is a [a-zA-Z]+, not a reward; decorate"),
        ({"reward": None}, {}, r"agent\.reward: environment 'question' gives no rewards; name one"),
        ({}, {"warmup": WARMUP}, r"warmup: agent\.format 'json' has no demons.* name the tool 'act'"),
        ({"tools": [], "format": "action"}, {"warmup": WARMUP}, r"warmup: question has no expert.*: null"),
    ],
)  # fmt: skip
def test_an_agent_that_cannot_be_is_refused(
    agent: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        check_agent(pipeline_of(TOOLS | agent, **changes))


def test_an_agent_that_writes_its_own_prompts_needs_no_instructions() -> None:
    agent: dict[str, object] = {"format": MINE, "reward": f"{__name__}:right"}
    check_agent(pipeline_of(agent))
    with pytest.raises(ValidationError, match=r"agent\.instructions\n *Field required"):
        pipeline_of(agent | {"format": "json"})


def test_questions_are_not_played_on_servers() -> None:
    pipeline = pipeline_of(TOOLS, servers={"question": {"urls": ["http://127.0.0.1:9"]}})
    with pytest.raises(ConfigError, match=r"servers\.question: its items are your data"):
        make_runner(pipeline, sampler=ScriptedSampler([], encode=lambda text: []), tokenizer=toy_tokenizer())
