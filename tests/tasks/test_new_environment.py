"""docs/new-environment.md, followed word for word in a copy of the checkout."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TUTORIAL = ROOT / "docs" / "new-environment.md"
FOLDERS = ("envs", "agents", "tasks")

PREPARE = """
from pathlib import Path
from tasks.stages.prepare import prepare
from tasks.stages.provision import provision
from tasks.config.pipelines import load_pipeline

pipeline = load_pipeline("guess", file=Path("pipelines.yaml"))
prepare(pipeline, Path("run"))
provision(pipeline, Path("run"))
"""


@pytest.mark.heavy
def test_the_tutorial_adds_an_environment_that_a_pipeline_can_play(tmp_path: Path) -> None:
    file, script = re.findall(r"```python\n(.*?)```", TUTORIAL.read_text(), re.DOTALL)
    [settings] = re.findall(r"```yaml\n(.*?)```", TUTORIAL.read_text(), re.DOTALL)
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "pipelines.yaml").write_text((ROOT / "pipelines.yaml").read_text() + settings)
    (tmp_path / "agents" / "custom").mkdir()
    (tmp_path / "agents" / "custom" / "guess.py").write_text(file)

    def run(code: str) -> str:
        return subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            cwd=tmp_path,
            check=True,
            capture_output=True,
            text=True,
        ).stdout

    lines = run(script).splitlines()
    assert lines[0] == "The number is one of 1 to 100. You have 8 guesses."
    assert lines[1] == "> 50"
    assert lines[-2:] == ["You found it.", "success: True"]

    run(PREPARE)
    items = [
        [json.loads(row)["item_id"] for row in (tmp_path / "run" / "data" / name).read_text().splitlines()]
        for name in ("train.jsonl", "test.jsonl")
    ]
    assert [len(split_items) for split_items in items] == [80, 20]
    assert sorted([*items[0], *items[1]]) == sorted(
        f"agents.custom.guess:SPEC_{index}" for index in range(100)
    )
    receipt = json.loads((tmp_path / "run" / "provision.json").read_text())
    assert receipt["envs"]["agents.custom.guess:SPEC"]["episodes"] == 64


def test_the_tutorials_code_is_written_as_ours_is(tmp_path: Path) -> None:
    file = re.findall(r"```python\n(.*?)```", TUTORIAL.read_text(), re.DOTALL)[0]
    for command in (["check"], ["format", "--check"]):
        subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--config", str(ROOT / "pyproject.toml"), "-"],
            input=file,
            check=True,
            capture_output=True,
            text=True,
        )
