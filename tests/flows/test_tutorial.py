"""The tutorial of docs/tutorial.md, followed word for word in a copy of the checkout."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.prefect_database import add_database

ROOT = Path(__file__).parents[2]
TUTORIAL = ROOT / "docs" / "tutorial.md"
MAX_LINES = 40


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TUTORIAL.read_text(), re.DOTALL)


def test_the_tool_the_reward_and_the_agent_take_forty_lines() -> None:
    assert len(blocks("python")[0].splitlines()) <= MAX_LINES


@pytest.mark.slow
@pytest.mark.nightly
def test_the_tutorial_ends_with_a_policy_that_has_learnt(tmp_path: Path) -> None:
    [code, make_model], [settings, line] = blocks("python"), blocks("yaml")
    [set_up, make, questions, run] = blocks("bash")
    for folder in ("agents", "envs", "flows", "tasks"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    for file in ("constraints.txt", "pyproject.toml"):
        shutil.copy(ROOT / file, tmp_path)
    stages = (ROOT / "dvc.yaml").read_text()
    head, names, tail = stages.partition("    foreach: &pipelines\n")
    assert names
    (tmp_path / "dvc.yaml").write_text(f"{head}{names}      {line}{tail}")
    (tmp_path / "pipelines.yaml").write_text((ROOT / "pipelines.yaml").read_text() + settings)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "activate").touch()
    subprocess.run(["bash", "-ec", set_up], cwd=tmp_path, check=True)
    (tmp_path / "agents" / "custom" / "sums.py").write_text(code)
    (tmp_path / "agents" / "custom" / "sums_model.py").write_text(make_model)
    add_database(tmp_path / ".prefect")
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "wingspan").write_text(
        f"#!{sys.executable}\nfrom flows.cli.app import main\nif __name__ == '__main__':\n    main()\n"
    )
    (programs / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    for program in programs.iterdir():
        program.chmod(0o755)

    def shell(commands: str) -> str:
        done = subprocess.run(
            ["bash", "-ec", commands],
            env={
                **os.environ,
                "PYTHONPATH": str(tmp_path),
                "PATH": f"{programs}:{os.environ['PATH']}",
                "PREFECT_HOME": str(tmp_path / ".prefect"),
            },
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    shell("git init -q")
    shell(make)
    shell(questions)
    output = shell(run)
    assert "begins task: Tools: add. 1 + 9?" in output
    evaluation = json.loads((tmp_path / "runs" / "sums" / "evaluation.json").read_text())
    before, after = (evaluation[policy]["sampled"] for policy in ("before", "after"))
    assert before["success"] < 0.6
    assert after["success"] > 0.8
    assert after["tool_calls/add"] > before["tool_calls/add"]
    shell(f"{sys.executable} -m dvc init --quiet")
    stages_of_dvc = shell(f"{sys.executable} -m dvc stage list --name-only").split()
    assert "report@sums" in stages_of_dvc
