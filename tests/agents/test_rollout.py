"""Agents without training: from a script and from the command line, by an endpoint or a local model."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from agents.agent import AGENTS, Agent, FormatAgent, Opening, register_format
from agents.clients.endpoint import Endpoint
from agents.formats.calls import ParsedTurn, Schema
from agents.rewards import reward
from agents.rollout.conversation import ContextPolicy
from agents.rollout.group import Callbacks
from agents.rollout.rollout import rollout
from agents.samplers.local import LocalModel
from agents.tools.tool import tool
from agents.types import EpisodeLimits, SamplingParams, StopReason, Turn
from envs.errors import ConfigError
from envs.files import try_lock
from envs.registry import get_env
from envs.types import Item, Message
from flows.cli.command_line import app
from tasks.data.trajectories import read_trajectories
from tests.support.chat_server import ChatServer, calls, chat_server, fails, in_turn, says
from tests.support.tiny_model import save_tiny_model
from tests.support.toy import toy_item, toy_spec
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
NOBODY = Endpoint("http://127.0.0.1:9/v1", "toy", max_attempts=1)


@tool
def double(number: int) -> int:
    """Twice a number."""
    return 2 * number


@reward
def right(final_response: str, answer: str) -> dict[str, Any]:
    return {"reward": float(final_response == answer), "success": final_response == answer}


def test_questions_with_tools_and_a_reward() -> None:
    def script(body: Any) -> Any:
        question, last = body["messages"][0]["content"], body["messages"][-1]
        number = int(question.split()[-1])
        return says(last["content"]) if last["role"] == "tool" else calls(("double", {"number": number}))

    rows = [{"question": f"Twice {number}", "answer": "4"} for number in (1, 2, 3)]
    with chat_server(script) as server:
        trajectories = rollout(
            rows,
            agent="hermes",
            tools=[double, "calculator"],
            reward=right,
            model=Endpoint(server.url, "toy"),
            num_samples=2,
        )
    assert [(t.item.item_id, t.sample_index) for t in trajectories] == [
        (f"question_{index}", sample_index) for index in range(3) for sample_index in range(2)
    ]
    assert [t.turns[-1].action for t in trajectories] == ["2", "2", "4", "4", "6", "6"]
    assert [(t.reward, t.success) for t in trajectories[::2]] == [(0.0, False), (1.0, True), (0.0, False)]
    assert {t.metrics["tool_calls/double"] for t in trajectories} == {1}
    assert {schema["function"]["name"] for schema in server.requests[0]["tools"]} == {"double", "calculator"}


def test_a_conversation_is_asked_with_its_earlier_messages() -> None:
    talk = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Yes?"},
        {"role": "user", "content": "6 * 7?"},
    ]
    with chat_server(in_turn(says("42"))) as server:
        [episodes] = rollout([{"messages": talk}], agent="raw", model=Endpoint(server.url, "toy"))
    assert server.requests[0]["messages"] == talk
    assert (episodes.stop_reason, episodes.turns[0].action) == (StopReason.TERMINATED, "42")


class Shout(Agent):
    """Asks in capitals, and takes the whole text as the action."""

    def __init__(self, schemas: Sequence[Schema]) -> None:
        pass

    def render(self, item: Item, observation: str) -> Opening:
        return Opening([Message("user", observation.upper())])

    def parse(self, text: str) -> ParsedTurn:
        return ParsedTurn(thought="", action=text)


@pytest.mark.parametrize("name", ["shout", f"{__name__}:Shout"])
def test_an_agent_by_a_name_of_a_plug_in_or_a_module(name: str) -> None:
    with AGENTS.scope(), chat_server(in_turn(says("yes"))) as server:
        register_format("shout", Shout)
        [episode] = rollout(["So?"], agent=name, model=Endpoint(server.url, "toy"))
    assert server.requests[0]["messages"] == [{"role": "user", "content": "SO?"}]
    assert (episode.stop_reason, episode.turns[0].action) == (StopReason.TERMINATED, "yes")


def test_an_environment_by_name_and_turns_as_they_come() -> None:
    turns_so_far: list[tuple[str, int, int, str]] = []
    item_ids: list[str] = []

    def on_turn(item: Item, sample_index: int, turns: Sequence[Turn]) -> None:
        assert not item_ids
        turns_so_far.append((item.item_id, sample_index, len(turns), turns[-1].action))

    item = get_env("textcraft").split(0).test[0]
    with chat_server(in_turn(says("Action: inventory"))) as server:
        [episodes] = rollout(
            [item],
            agent=FormatAgent("action"),
            model=Endpoint(server.url, "toy"),
            limits=EpisodeLimits(max_turns=3),
            callbacks=Callbacks(
                on_turn=on_turn, on_trajectory=lambda trajectory: item_ids.append(trajectory.item.item_id)
            ),
        )
    assert episodes.stop_reason is StopReason.MAX_TURNS
    assert turns_so_far == [(item.item_id, 0, number, "inventory") for number in (1, 2, 3)]
    assert item_ids == [item.item_id]
    assert "Goal" in server.requests[0]["messages"][0]["content"]


def test_a_local_model_gives_tokens(tmp_path: Path) -> None:
    model = LocalModel(save_tiny_model(tmp_path), seed=3)

    def play(**changes: Any) -> list[list[list[int]]]:
        arguments: dict[str, Any] = {"agent": "action", "env": toy_spec(), "model": model, "num_samples": 2}
        limits = EpisodeLimits(max_turns=2, max_tokens_per_turn=12, context_length=256)
        episodes = rollout([toy_item()], limits=limits, **(arguments | changes))
        assert {t.stop_reason for t in episodes} == {StopReason.MAX_TURNS}
        assert all(t.prompt_ids for t in episodes)
        return [[[*turn.completion.token_ids] for turn in t.turns] for t in episodes]

    first_run = play()
    assert first_run == play()
    assert first_run[0] != first_run[1]
    assert all(0 < len(ids) <= 12 for turns in first_run for ids in turns)
    greedy = play(sampling=SamplingParams(temperature=0.0))
    assert greedy[0] == greedy[1]
    with pytest.raises(ConfigError, match="chat template"):
        play(agent="hermes", tools=[double])


def test_the_scripted_policy_of_the_docs_plays_in_its_environment() -> None:
    page = (ROOT / "docs" / "rollout.md").read_text()
    _, code = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    trajectory = names["trajectory"]
    assert trajectory.stop_reason is StopReason.MAX_TURNS
    assert [turn.action for turn in trajectory.turns] == ["inventory"] * 3
    assert trajectory.turns[0].observation.startswith("Inventory:")


@pytest.mark.parametrize("value", [{"when_full": "sumarize"}, {"summarize_at": 1.0}, {"max_observation": 0}])
def test_a_context_policy_that_cannot_be_is_refused(value: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(value))):
        ContextPolicy(**value)


@pytest.mark.parametrize("when_full", ["stop", "drop"])
def test_a_share_at_which_nothing_is_summarized_is_refused(when_full: Any) -> None:
    with pytest.raises(
        ValidationError, match=f"summarize_at 0.5 is for when_full: summarize, and it is {when_full}"
    ):
        ContextPolicy(when_full=when_full, summarize_at=0.5)


@pytest.mark.heavy
@pytest.mark.parametrize("when_full", ["stop", "drop", "summarize"])
def test_a_context_policy_is_what_the_model_sees_of_its_past(tmp_path: Path, when_full: Any) -> None:
    [episodes] = rollout(
        [toy_item()],
        agent="raw",
        env=toy_spec(),
        model=LocalModel(save_tiny_model(tmp_path)),
        context=ContextPolicy(
            when_full=when_full, summarize_at=0.3 if when_full == "summarize" else None, max_observation=10
        ),
        limits=EpisodeLimits(max_turns=40, max_tokens_per_turn=12, context_length=500),
    )
    reason = StopReason.MAX_CONTEXT if when_full == "stop" else StopReason.MAX_TURNS
    assert episodes.stop_reason is reason
    num_starts = sum(turn.prompt_ids is not None for turn in episodes.turns)
    assert (num_starts > 0) == (when_full != "stop")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"context": ContextPolicy()}, "an endpoint's model sees the whole conversation"),
        ({"agent": "herms"}, "unknown format 'herms'; did you mean 'hermes'"),
        ({"agent": "action", "tools": [double]}, "'action' calls no tools, got double"),
        ({"tools": ["calculater"]}, "unknown tool 'calculater'; did you mean 'calculator'"),
        ({"reward": "math_equl"}, "unknown reward 'math_equl'; did you mean 'math_equal'"),
        ({"reward": right}, "takes 'answer', which nothing fills"),
        ({"reward": right.function}, "reward is a function, not a reward; decorate a function with @reward"),
        ({"tools": ["shell"]}, "tool 'shell': QuestionEnv has no workspace; wrap it in"),
        ({"tools": ["act"]}, "tool 'act': QuestionEnv has no actions: a step is the answer"),
        (
            {"reward": "workspace_tests", "items": [{"question": "?", "test_command": "true"}]},
            "reward 'workspace_tests': QuestionEnv has no workspace; wrap it in",
        ),
        ({"tools": ["calculator", "search"]}, "tool 'search': there is nothing to search"),
        ({"env": "textcarft"}, "unknown env 'textcarft'; did you mean 'textcraft'"),
        ({"num_samples": 0}, "num_samples=0"),
        ({"max_live_envs": 0}, "max_live_envs=0; give 1 or more"),
        ({"tools": "calculator"}, "tools is a str, 'calculator'; give a list of tools"),
        ({"tools": double}, "tools is a Tool, .*; give a list of tools"),
        ({"items": []}, "there are no items"),
        ({"items": [{"text": "6 * 7?"}], "reward": None}, "question"),
        ({"agent": FormatAgent("raw"), "instructions": "Be kind"}, "'Be kind': a FormatAgent has its own"),
        ({"agent": f"{__name__}:Shout", "instructions": "Be kind"}, "Shout' writes its own prompts; leave"),
        ({"agent": f"{__name__}:double"}, "agent .*:double' makes a list; make it a subclass of agents"),
        ({"agent": f"{__name__}:Whisper"}, "agent: .*/test_rollout.py has no 'Whisper'"),
        ({}, r"no endpoint: http://127.0.0.1:9/v1/models: ConnectError.*start the server"),
        ({"model": "models/textcraft-base"}, r"model is a str, 'models/.*LocalModel\(FOLDER\)"),
        ({"items": "What?"}, "items is a str, 'What\\?'; give a list of items, rows or questions"),
        ({"items": {"question": "What?"}}, "items is a dict, "),
        ({"items": toy_item()}, "items is a Item, .*; give a list"),
        ({"items": 5}, "items is a int, 5; give a list"),
        ({"env": "textcraft"}, r"items\[0\] is a str, '6 .*', and environment 'textcraft' has its own"),
        (
            {"items": [{"item_id": "textcraft_1"}], "env": "textcraft"},
            r"items\[0\] is a dict, .* its own items",
        ),
        ({"items": ["What?", 5]}, r"items\[1\] is a int, 5; give an Item, a row or a question"),
        ({"model": LocalModel(Path("models/none"))}, "no model in 'models/none'"),
        ({"model": LocalModel("models/none")}, "no model in 'models/none'"),  # type: ignore[arg-type]
    ],
)
def test_items_that_cannot_be_played_are_refused_before_a_model_is_asked(
    changes: dict[str, Any], message: str
) -> None:
    arguments: dict[str, Any] = {"items": ["6 * 7?"], "agent": "hermes", "model": NOBODY} | changes
    if changes.get("items"):
        with chat_server(in_turn(says("5"))) as server:
            arguments["model"] = Endpoint(server.url, "toy")
            with pytest.raises(ConfigError, match=message):
                rollout(arguments.pop("items"), **arguments)
        assert server.requests == []
        return
    with pytest.raises(ConfigError, match=message):
        rollout(arguments.pop("items"), **arguments)


def wingspan(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["rollout", "textcraft-cpu", *arguments])


def endpoint_options(server: ChatServer) -> tuple[str, ...]:
    return ("--endpoint", server.url, "--model", "toy")


@pytest.fixture(autouse=True)
def _from_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def test_the_command_shows_turns_and_sums_up(tmp_path: Path) -> None:
    out = tmp_path / "new" / "out.jsonl"
    out.parent.mkdir()
    out.write_text("an earlier play\n")
    with chat_server(
        in_turn(says("Thought: what have I?\nAction: inventory"), says("I [bold]give up\n\nfor now"))
    ) as server:
        done = wingspan(
            *endpoint_options(server), "--items", "2", "--num-samples", "2", "--max-turns", "3",
            "--temperature", "0.5", "--out", str(out),
        )  # fmt: skip
    assert done.exit_code == 0, done.output
    first, second = get_env("textcraft").split(0).test[:2]
    lines = done.output.splitlines()
    assert "thought: what have I?" in done.output
    # The task comes first: what the model is shown before its first turn.
    begin = next(index for index, line in enumerate(lines) if "#0 begins task: " in line)
    goal = next(index for index, line in enumerate(lines) if line.startswith("    Goal: "))
    assert begin < goal < next(index for index, line in enumerate(lines) if "#0 turn 1" in line)
    task = server.requests[0]["messages"][-1]["content"].splitlines()
    assert lines[begin].removeprefix(f"{first.item_id} #0 begins task: ") == task[0]
    assert lines[goal].strip() in task
    for item in (first, second):
        for sample_index in range(2):
            text = lines.index(f"{item.item_id} #{sample_index} turn 3 unparsed: I [bold]give up")
            assert lines[text + 1] == "    for now"
            assert any(
                line.startswith(f"{item.item_id} #{sample_index} max_turns, no success, reward 0, 3 turns")
                for line in lines
            )
    assert f"{first.item_id} #0 turn 1 observation: " in done.output
    summary = dict(line.split(maxsplit=1) for line in lines[-12:])
    assert (summary["success"], summary["turns"], summary["episodes"]) == ("0", "3", "4")
    assert summary["stop_max_turns"] == "4"
    assert "tokens" not in summary
    assert {t.stop_reason for t in read_trajectories(out)} == {StopReason.MAX_TURNS}
    assert len(read_trajectories(out)) == 4
    assert {body["temperature"] for body in server.requests} == {0.5}


def test_the_command_plays_training_items_with_the_pipelines_agent() -> None:
    settings = ["agent.format=hermes", "agent.tools=[act]", "agent.instructions=true"]
    script = in_turn(calls(("act", {"action": "inventory"})), says("I give up."))
    with chat_server(script) as server:
        done = wingspan(
            *endpoint_options(server),
            "--items",
            "1",
            "--split",
            "train",
            *(part for setting in settings for part in ("--set", setting)),
        )
    assert done.exit_code == 0, done.output
    item = get_env("textcraft").split(0).train[0]
    assert f'{item.item_id} #0 turn 1 action: act({{"action": "inventory"}})' in done.output
    assert "tool_calls/act" in done.output
    assert f"{item.item_id} #0 begins task (system): " in done.output
    assert server.requests[0]["tools"][0]["function"]["name"] == "act"
    assert get_env("textcraft").instructions in server.requests[0]["messages"][0]["content"]


def test_the_command_plays_the_policy_of_a_run(tmp_path: Path) -> None:
    save_tiny_model(tmp_path / "policy")
    out = tmp_path / "out.jsonl"
    short = ["--set", "rollout.context_length=500", "--set", "rollout.max_tokens_per_turn=10"]
    done = wingspan("--policy", str(tmp_path), "--items", "1", "--max-turns", "1", "--out", str(out), *short)
    assert done.exit_code == 0, done.output
    [episodes] = read_trajectories(out)
    assert episodes.prompt_ids
    assert re.search(r"reward [\d.]+, 1 turn in ", done.output)
    assert "tokens_per_turn" in done.output


def test_trajectories_go_to_a_pipe_as_well() -> None:
    reading, writing = os.pipe()
    with chat_server(in_turn(says("I give up."))) as server:
        done = wingspan(
            *endpoint_options(server), "--items", "2", "--max-turns", "1", "--out", f"/dev/fd/{writing}"
        )
    os.close(writing)
    with os.fdopen(reading) as pipe:
        trajectories = [json.loads(line) for line in pipe]
    assert done.exit_code == 0, done.output
    assert len(trajectories) == 2


def test_if_every_episode_is_dropped_the_status_says_so() -> None:
    with chat_server(lambda _: fails(400, "no such thing")) as server:
        done = wingspan(*endpoint_options(server), "--items", "1", "--set", "rollout.max_attempts=1")
    assert done.exit_code == 1
    assert "dropped after 1 attempt: SamplerFailed: textcraft" in done.output
    assert "no such thing" in done.output
    assert "dropped_SamplerFailed" in done.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--split", "tset"], "--split 'tset'; did you mean 'test'?"),
        (["--model", "toy"], "--model toy needs an endpoint; give --endpoint URL"),
        (["--api-key-from", "KEY"], "--api-key-from KEY needs an endpoint"),
        (["--endpoint", "http://127.0.0.1:9/v1"], "Give --model NAME"),
        (["--endpoint", "127.0.0.1:9", "--model", "toy"], "url='127.0.0.1:9'; give one like http://"),
        (["--endpoint", "http://127.0.0.1:9/v1", "--model", "toy", "--policy", "x"], "only one of them"),
        (
            ["--endpoint", "http://127.0.0.1:9/v1", "--model", "toy", "--api-key-from", "NO_SUCH_KEY"],
            "environment variable NO_SUCH_KEY is not set",
        ),
        (["--policy", "models/none"], "no policy 'models/none': there is no such folder"),
        (["--out", "docs"], "--out docs cannot be written: IsADirectoryError"),
        (
            [
                "--endpoint",
                "http://127.0.0.1:9/v1",
                "--model",
                "t",
                "--set",
                "agent.context.show_budget=true",
            ],
            "agent.context.show_budget=True",
        ),
        (["--set", "agent.reward=string_equal"], "takes 'answer', which nothing fills"),
        (
            ["--set", "agent.format=json", "--set", "agent.tools=[shell]"],
            "tool 'shell': TextCraftEnv has no workspace; wrap it in",
        ),
    ],
)
def test_a_mistake_of_the_command_is_named(arguments: list[str], message: str) -> None:
    done = wingspan(*arguments)
    assert isinstance(done.exception, ConfigError), done.output
    assert message in str(done.exception)


def test_a_file_that_another_command_writes_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "episodes.jsonl"
    with out.open("a") as file:
        assert try_lock(file)
        done = wingspan("--out", str(out))
    assert isinstance(done.exception, ConfigError), done.output
    assert f"--out {out} is being written by another command; wait for it" in str(done.exception)


@pytest.mark.heavy
def test_what_has_ended_is_summed_up_after_ctrl_c() -> None:
    is_over = threading.Event()
    command = ["rollout", "textcraft-cpu", "--items", "8", "--max-turns", "1"]
    command += ["--set", "rollout.max_live_envs=1", "--set", "data.parts={textcraft: }"]

    def script(body: Any) -> Any:
        if len(server.requests) > 3:
            is_over.wait(60)
        return says("Action: inventory")

    with chat_server(script) as server:
        process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                "from flows.cli.app import main; main()",
                *command,
                *endpoint_options(server),
            ],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
        )
        wait_until(lambda: len(server.requests) >= 4)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
        is_over.set()
    assert process.returncode == 130
    assert re.search(r"episodes +3\b", output)


@pytest.mark.heavy
def test_the_command_as_users_type_it() -> None:
    """One line and a status for an error; and torch is not loaded for an endpoint."""
    code = (
        "import atexit, sys; from flows.cli.app import main; sys.argv[0] = 'wingspan'\n"
        "atexit.register(lambda: print('torch' in sys.modules)); main()"
    )

    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-c", code, "rollout", "textcraft-cpu", "--items", "1", *arguments],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=300,
        )

    with chat_server(in_turn(says("Action: inventory")), key="right") as server:
        done = run(*endpoint_options(server))
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert line.startswith(f"error: {server.url}/models answered 401: ")
    assert json.dumps("Incorrect API key provided.") in line
    assert done.stdout.splitlines()[-1] == "False"
