"""`wingspan fork` as a command: a person at a pipe, what is printed, and what is written."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.data.trajectories import write_trajectories
from tests.flows.test_view import PROGRAM, ROOT
from tests.support.textcraft_episode import SOLUTION, run_actions


def run(folder: Path, *arguments: str, lines: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    command = [sys.executable, "-c", PROGRAM, "fork", *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, input=lines, capture_output=True, text=True, check=False
    )


@pytest.mark.heavy
def test_a_person_goes_on_by_the_lines_of_a_pipe(tmp_path: Path) -> None:
    write_trajectories(tmp_path / "played.jsonl", [run_actions(["look", *SOLUTION])])
    before = (tmp_path / "played.jsonl").read_bytes()
    settings = ["--human", "--set", "agent.format=action"]
    done = run(tmp_path, "played.jsonl:1@2", *settings, lines="\n".join(["get 1 moon", *SOLUTION]))
    assert (done.returncode, done.stderr) == (0, "")
    assert "played/played:1, textcraft_0: 1 turn repeated, then person" in done.stdout
    assert "> get 1 moon" in done.stdout
    assert "textcraft_0 #0 turn 1 (repeated) action: look\n" in done.stdout
    assert "textcraft_0 #0 turn 2 action: get 1 moon\n" in done.stdout
    assert "terminated, success, reward 1" in done.stdout
    (line,) = (tmp_path / "played.forks.jsonl").read_text().splitlines()
    fork = json.loads(line)
    assert [turn["action"] for turn in fork["turns"]] == ["look", "get 1 moon", *SOLUTION]
    assert fork["labels"].items() >= {"parent": "played:1", "turn": 2, "policy": "person"}.items()
    assert (tmp_path / "played.jsonl").read_bytes() == before
    left = run(tmp_path, "played.jsonl:1@2", *settings)
    assert (left.returncode, "nothing is recorded" in left.stdout) == (0, True)
    page = "http://127.0.0.1:8003/#/run/played/at/played:1?turn=2"  # of `wingspan view played.jsonl`
    named = run(tmp_path, page, *settings, "--runs", "played.jsonl")
    assert (named.returncode, "played/played:1, textcraft_0: 1 turn repeated" in named.stdout) == (0, True)
    lost = run(tmp_path, page, *settings)
    assert lost.stderr == (
        "error: there is no run 'played' in runs; give its folder instead of its name, or --runs with what "
        "`wingspan view` was given\n"
    )
    wrong = run(tmp_path, "played.jsonl:7@2", *settings)
    assert (wrong.returncode, wrong.stderr) == (
        2,
        "error: played.jsonl has no line 7; lines are counted from 1\n",
    )
