"""A software agent: a project in the sandbox, tools to work on it, hidden tests to judge what it did."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agents.clients.endpoint import Endpoint
from agents.rollout.rollout import rollout
from agents.types import Trajectory
from envs.builtin.question.env import QuestionEnv
from envs.errors import ConfigError
from envs.registry import get_env, register_env
from envs.sandbox.sandbox import SANDBOX
from envs.sandbox.workspace import WithWorkspace, Workspace
from tasks.config.data import DataSettings
from tasks.data.files import read_parts
from tests.support.chat_server import chat_server, says
from tests.support.needs import needs

needs_sandbox = needs(SANDBOX)
TOOLS = ["shell", "list_files", "grep", "read_file", "edit_file", "create_file", "undo_edit"]
HIDDEN_TEST = (
    "import unittest\nfrom calc import add\n\n\nclass Negative(unittest.TestCase):\n"
    "    def test(self):\n        self.assertEqual(add(-2, -3), -5)\n"
)
BUG: dict[str, Any] = {
    "question": "add() is wrong for negative numbers.",
    "files": {"calc.py": "def add(a, b):\n    return abs(a) + abs(b)\n", "docs/about.txt": "sums\n"},
    "test_files": {"test_hidden.py": HIDDEN_TEST},
    "test_command": "python3 -m unittest",
}


def call(name: str, **arguments: Any) -> str:
    return json.dumps({"name": name, "arguments": arguments})


def run_agent(*texts: str, row: dict[str, Any] = BUG, env: str = "workspace") -> Trajectory:
    """An episode in which the model says `texts`, one a turn, and then that it is done."""

    def script(body: Any) -> Any:
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        return says(texts[turn] if turn < len(texts) else json.dumps({"answer": "Done."}))

    with chat_server(script) as server:
        [trajectory] = rollout(
            [row],
            agent="json",
            tools=TOOLS,
            env=env,
            reward="workspace_tests",
            instructions=Path("agents/prompting/prompts/swe.md").read_text(),
            model=Endpoint(server.url, "toy"),
        )
    assert "software engineer" in server.requests[0]["messages"][0]["content"]
    return trajectory


@needs_sandbox
def test_a_bug_is_found_mended_and_judged_by_tests_that_the_agent_never_saw() -> None:
    trajectory = run_agent(
        call("list_files"),
        call("grep", pattern="abs"),
        call("edit_file", path="calc.py", old="abs(a) + abs(b)", new="a + b"),
        call("shell", command="python3 -c 'import calc; print(calc.add(-2, -3))'"),
    )
    observations = [turn.observation for turn in trajectory.turns]
    assert observations[0].split() == ["calc.py", "42", "bytes", "docs/", "docs/about.txt", "5", "bytes"]
    assert observations[1] == "calc.py:2:     return abs(a) + abs(b)"
    assert observations[3].strip() == "-5"
    assert (trajectory.reward, trajectory.success) == (1.0, True)


@pytest.mark.heavy
@needs_sandbox
@pytest.mark.parametrize(
    "texts",
    [
        (),
        (call("create_file", path="test_hidden.py", text="", overwrite=True),),  # it is written over
        (call("shell", command="echo 'import sys; sys.exit(1)' > calc.py"),),
    ],
)
def test_what_does_not_pass_is_no_success(texts: tuple[str, ...]) -> None:
    trajectory = run_agent(*texts)
    assert (trajectory.reward, trajectory.success) == (0.0, False)
    assert trajectory.error is None


@pytest.mark.heavy
@needs_sandbox
def test_tests_that_hang_are_no_success() -> None:
    def make_impatient() -> WithWorkspace:
        return WithWorkspace(QuestionEnv(), Workspace(run_timeout_s=4.0))

    register_env(replace(get_env("workspace"), name="impatient-workspace", make=make_impatient))
    hang = call("shell", command="echo 'import time; time.sleep(99)' > calc.py")
    trajectory = run_agent(hang, env="impatient-workspace")
    assert trajectory.turns[0].observation.strip() == "(no output)"  # the command itself was in time
    assert (trajectory.reward, trajectory.success) == (0.0, False)
    assert trajectory.error is None


@needs_sandbox
def test_an_episode_begins_with_its_own_files_only() -> None:
    clean = run_agent(call("shell", command="ls"), row={**BUG, "files": {"b.txt": "", "c.txt": None}})
    assert clean.turns[0].observation.strip() == "b.txt"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["calc.py"], "files is a list; give an object of path"),
        ({"calc.py": 3}, "files: 'calc.py' is a int; give its text"),
        ({"/etc/passwd": ""}, "files: '/etc/passwd' is no path in /work"),
        ({"a/../../b": ""}, "files: 'a/../../b' is no path in /work"),
    ],
)
def test_files_are_checked_where_data_is_read(
    files: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    Path("data/train.jsonl").write_text(json.dumps({**BUG, "files": files}) + "\n")
    Path("data/test.jsonl").write_text(json.dumps({"question": "?"}) + "\n")
    part = {"env": "workspace", "train": "data/train.jsonl", "test": "data/test.jsonl"}
    data = DataSettings.model_validate({"split_seed": 0, "parts": {"bugs": part}})
    with pytest.raises(ConfigError, match=r"train\.jsonl") as failure:
        read_parts(data)
    assert message in str(failure.value)
