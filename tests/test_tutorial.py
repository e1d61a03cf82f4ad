"""The tutorial of docs/tutorial.md, followed word for word in a copy of the checkout."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TUTORIAL = ROOT / "docs" / "tutorial.md"
MAX_LINES = 40


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TUTORIAL.read_text(), re.DOTALL)


def test_from_an_empty_file_it_takes_forty_lines() -> None:
    [code], [settings] = blocks("python"), blocks("yaml")
    assert len((code + settings).splitlines()) <= MAX_LINES


@pytest.mark.slow
def test_the_tutorials_tool_reward_and_agent_are_played_and_trained(tmp_path: Path) -> None:
    [code], [settings], [questions, _] = blocks("python"), blocks("yaml"), blocks("bash")
    for folder in ("agents", "envs", "flows", "tasks", "models"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("dvc.yaml", "constraints.txt", "pyproject.toml"):
        shutil.copy(ROOT / file, tmp_path)
    head, deployments, tail = (ROOT / "pipelines.yaml").read_text().partition("\ndeployments:")
    assert deployments
    (tmp_path / "pipelines.yaml").write_text(f"{head.rstrip()}\n\n{settings}{deployments}{tail}")
    (tmp_path / "agents" / "custom").mkdir()
    (tmp_path / "agents" / "custom" / "sums.py").write_text(code)
    for command in (["git", "init", "-q"], ["bash", "-c", questions]):
        subprocess.run(command, cwd=tmp_path, check=True)

    def wingspan(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", "from flows.cli import main; main()", *arguments],
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    out = tmp_path / "played.jsonl"
    wingspan("rollout", "sums", "--items", "2", "--out", str(out))
    for line in out.read_text().splitlines():
        played = json.loads(line)
        assert played["item"]["fields"]["question"].endswith("+ 9?")
        assert played["metrics"]["tool_calls/add"] >= 0
    quick = {
        "train.steps": 1,
        "train.steps_per_round": 1,
        "rollout.items_per_step": 2,
        "train.mini_batches": 1,
    }
    quick |= {"rollout.group_size": 2, "evaluate.samples_per_item": 1, "evaluate.quick_items": 2}
    overrides = [part for key, value in quick.items() for part in ("--set", f"{key}={value}")]
    told = wingspan("run", "sums", *overrides)
    assert "success on the test split" in told
