"""DVC's own commands on this project: what they rewrite must still mean the same."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.lineage.versioning import commit_to_dvc
from flows.run import STAGES
from tasks.config.pipelines import load_pipeline, read_yaml
from tests.support.project import TRACKED_PIPELINES

ROOT = Path(__file__).parents[2]
FILE = ROOT / "pipelines.yaml"
USER_PIPELINE = """
  mine:
    description: Without a warm-up.
    seed: 0
    model: models/textcraft-base
    data: {parts: {textcraft: {where: {depth: [1]}}}}
    agent: {instructions: false}
    warmup: null
    rollout:
      {items_per_step: 2, group_size: 2, max_tokens_per_turn: 8, context_length: 896, episode_timeout_s: 60,
      step_timeout_s: 5, max_live_envs: 8}
    train:
      {algorithm: grpo, steps: 1, steps_per_round: 1, save_every: 1, lr: 1.0e-3, mini_batches: 1,
      micro_batch_tokens: 8192}
    horizon: {type: fixed, max_turns: [3]}
    evaluate: {max_turns: 3, samples_per_item: 1, quick_items: 8}
    backend: {device: cpu, rollout: cpu}
"""


def changes(before: Any, after: Any, location: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(before, dict) and isinstance(after, dict):
        for key in before.keys() | after.keys():
            yield from changes(before.get(key), after.get(key), f"{location}.{key}".lstrip("."))
    elif before != after:
        yield location, after


@pytest.mark.heavy
def test_what_dvc_writes_differs_in_the_keys_that_were_set_and_in_nothing_else(tmp_path: Path) -> None:
    """`apply_overrides` is what `dvc exp run -S` calls."""
    from dvc.utils.hydra import apply_overrides

    file = Path(shutil.copy(FILE, tmp_path))
    # Each pipeline's value is another: one that was written to two of them would be found.
    rates = {f"pipelines.{name}.train.lr": 0.25 + n for n, name in enumerate(TRACKED_PIPELINES)}
    turns = {f"pipelines.{name}.evaluate.max_turns": 77 + n for n, name in enumerate(TRACKED_PIPELINES)}
    for keys in (rates, turns):  # the second reads what the first has written
        apply_overrides(file, [f"{key}={value}" for key, value in keys.items()])
    assert dict(changes(read_yaml(FILE), read_yaml(file))) == rates | turns


def test_no_pipeline_shares_a_block_with_another() -> None:
    """DVC writes through anchors: setting one pipeline's parameter would set the other's."""
    aliases = [token for token in yaml.scan(FILE.read_text()) if isinstance(token, yaml.AliasToken)]
    assert aliases == []


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The project as a Git repository with one commit, and one more pipeline."""
    listing = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in listing.stdout.splitlines():
        if name.startswith(("docs/", "tests/", "bench/")):
            continue
        path = Path(name)
        # Bytecode comes along, and the times by which Python knows it: compiling takes seconds.
        bytecode = path.parent / "__pycache__" / f"{path.stem}.{sys.implementation.cache_tag}.pyc"
        for file in (path, bytecode):
            if (ROOT / file).exists():
                (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / file, tmp_path / file)
    (tmp_path / "pipelines.yaml").write_text(FILE.read_text() + USER_PIPELINE)
    stages = (tmp_path / "dvc.yaml").read_text()
    first = f"      {TRACKED_PIPELINES[0]}: ${{pipelines.{TRACKED_PIPELINES[0]}}}\n"
    assert stages.count(first) == 1
    (tmp_path / "dvc.yaml").write_text(stages.replace(first, f"{first}      mine: ${{pipelines.mine}}\n"))
    programs = tmp_path / ".git" / "programs"
    for command in (
        ["git", "init", "-q", "-b", "main"],
        ["git", "add", "-A"],
        ["git", "-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "one"],
    ):
        subprocess.run(command, cwd=tmp_path, check=True)
    programs.mkdir()
    program = programs / "wingspan"
    program.write_text(f"#!{sys.executable}\nfrom flows.cli.app import main\nmain()\n")
    program.chmod(0o755)
    return tmp_path


def dvc(*arguments: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "dvc", *arguments],
        cwd=cwd,
        env={
            **os.environ,
            "PYTHONPATH": str(cwd),
            "PATH": f"{cwd / '.git' / 'programs'}:{os.environ['PATH']}",
            "GIT_AUTHOR_NAME": "t",
            "GIT_AUTHOR_EMAIL": "t@t",
            "GIT_COMMITTER_NAME": "t",
            "GIT_COMMITTER_EMAIL": "t@t",
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.heavy
def test_an_experiment_with_another_parameter_runs(clone: Path) -> None:
    setting = "pipelines.yaml:pipelines.textcraft-cpu.data.split_seed=1"
    before = read_yaml(clone / "pipelines.yaml")
    dvc("exp", "run", "-S", setting, "prepare@textcraft-cpu", cwd=clone)
    differences = dict(changes(before, read_yaml(clone / "pipelines.yaml")))
    assert differences == {"pipelines.textcraft-cpu.data.split_seed": 1}
    lock_entry = read_yaml(clone / "dvc.lock")["stages"]["prepare@textcraft-cpu"]
    assert lock_entry["params"]["pipelines.yaml"]["pipelines.textcraft-cpu.data"]["split_seed"] == 1
    assert len((clone / "runs" / "textcraft-cpu" / "data" / "test.jsonl").read_text().splitlines()) == 100


@pytest.mark.heavy
def test_a_pipeline_of_ones_own_is_dvcs_by_one_line_also_without_a_warmup(
    clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage_names = dvc("stage", "list", "--name-only", cwd=clone).split()
    assert {f"{stage}@mine" for stage in STAGES} <= set(stage_names)
    dvc("repro", "warmup@mine", cwd=clone)
    marker, lock = clone / "runs" / "mine" / "warmup" / "none.txt", clone / "dvc.lock"
    assert "training starts from models/textcraft-base" in marker.read_text()
    by_repro = read_yaml(lock)["stages"]

    # A run of the flow, which has no such stage, records the same.
    marker.unlink()
    subprocess.run(["git", "checkout", "-q", "dvc.lock"], cwd=clone, check=True)
    monkeypatch.chdir(clone)
    commit_to_dvc(["prepare"], name="mine", pipeline=load_pipeline("mine"), workspace=Path("runs/mine"))
    by_flow = read_yaml(lock)["stages"]
    for stage in ("prepare@mine", "warmup@mine"):
        assert by_flow[stage] == by_repro[stage]


def test_a_copy_of_the_project_runs_its_own_code(tmp_path: Path) -> None:
    """As `dvc exp run --queue` makes one, whose code is what DVC hashes."""
    program = tmp_path / "flows" / "cli" / "app.py"
    program.parent.mkdir(parents=True)
    for folder in (program.parent, program.parent.parent):
        (folder / "__init__.py").touch()
    program.write_text("import sys\ndef main(): print('the copy', *sys.argv[1:])\n")
    done = subprocess.run(
        [sys.executable, "-c", "from flows.cli.app import main; main()", "stage", "prepare", "babyai-cpu"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "the copy stage prepare babyai-cpu\n", done.stderr
