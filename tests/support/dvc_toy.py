"""A project of the real stages and two real pipelines, for tests of DVC's own commands.

DVC's commands resolve the stages of every pipeline, which takes half of their time where all are there. What
the stages read is a small file each; their command `wingspan` is a stand-in, which copies what an evaluated
run has left, without the report's page. Which run that is depends on the learning rate, so that DVC has
something to compare.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from flows.lineage.stages import declared_stages, default_workspace
from tasks.config.pipelines import load_pipeline
from tasks.evaluation.outcomes import MODES
from tasks.reporting.figure_files import write_figures
from tasks.reporting.results import groupings, read_results
from tasks.stages.report import change_of, main_figures
from tests.support.report_toy import SAMPLE_SUCCESSES, write_workspace
from tests.support.yaml_files import edit_yaml

ROOT = Path(__file__).parents[2]
NAME = "textcraft-cpu"
NAMES = (NAME, "babyai-cpu")
RATE = f"pipelines.{NAME}.train.lr"
OTHER_RATE = 0.25
OTHER_SUCCESSES = SAMPLE_SUCCESSES | {"after": [(1, 1), (1, 1), (1, 0), (1, 0)]}
"""Of the run with `OTHER_RATE`: 6 of 8 episodes are solved instead of 4."""
_PROGRAM = """#!{python}
import json, os, shutil, sys, yaml
_, _, stage, name = sys.argv
rate = yaml.safe_load(open("pipelines.yaml"))["pipelines"][name]["train"]["lr"]
source = os.path.join({results!r}, "other" if rate == {other} else "first")
for path in json.load(open(os.path.join({results!r}, "outs.json")))[stage]:
    target = os.path.join("runs", name, path)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    copy = shutil.copytree if os.path.isdir(os.path.join(source, path)) else shutil.copy
    shutil.rmtree(target, ignore_errors=True)
    copy(os.path.join(source, path), target)
"""
_DVC = """#!{python}
import sys
from dvc.cli import main
sys.exit(main())
"""


def make_project(folder: Path) -> None:
    """Make `folder` a Git and DVC repository of one commit, in which no stage has run."""
    for name in ("dvc.yaml", "pipelines.yaml", ".dvcignore", ".gitignore", ".dvc/config", ".dvc/.gitignore"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    shutil.copytree(ROOT / ".dvc" / "plots", folder / ".dvc" / "plots")
    with edit_yaml(folder / "pipelines.yaml") as document:
        document["pipelines"] = {name: document["pipelines"][name] for name in NAMES}
    with edit_yaml(folder / "dvc.yaml") as document:
        for stage in document["stages"].values():
            if "foreach" in stage:
                stage["foreach"] = {name: f"${{pipelines.{name}}}" for name in NAMES}
    git("init", "-q", "-b", "main", cwd=folder)
    for key, value in {"user.name": "t", "user.email": "t@t"}.items():
        git("config", key, value, cwd=folder)
    workspace = default_workspace(NAME)
    os.chdir(folder)
    stages = declared_stages(NAME, pipeline=load_pipeline(NAME), workspace=workspace)
    inputs = [path for stage in stages.values() for path in stage.deps]
    for path in (
        *inputs,
        Path("envs/builtin/textcraft"),
        Path("tasks/base_model"),
    ):  # of the frozen stage `base`
        if not path.is_relative_to(workspace):
            _write_if_missing(path)
    outs = {name: [str(out.relative_to(workspace)) for out in stage.outs] for name, stage in stages.items()}
    results = folder / ".git" / "results"
    for name, successes in {"first": SAMPLE_SUCCESSES, "other": OTHER_SUCCESSES}.items():
        _write_run(
            results / name, successes=successes, outs=[out for paths in outs.values() for out in paths]
        )
    (results / "outs.json").write_text(json.dumps(outs))
    stand_in = _PROGRAM.format(python=sys.executable, results=str(results.resolve()), other=OTHER_RATE)
    # DVC's queue starts its worker by its command, which the PATH of a test need not have.
    for name, code in {"wingspan": stand_in, "dvc": _DVC.format(python=sys.executable)}.items():
        program = folder / ".git" / "programs" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(code)
        program.chmod(0o755)
    commit(folder, "the code")


def commit(folder: Path, message: str) -> None:
    """Commit all files that Git does not ignore."""
    git("add", "-A", cwd=folder)
    git("commit", "-qm", message, cwd=folder)


def git(*arguments: str, cwd: Path) -> None:
    subprocess.run(["git", *arguments], cwd=cwd, check=True)


def _write_run(folder: Path, *, successes: object, outs: Sequence[str]) -> None:
    write_workspace(folder, successes=successes)
    results = read_results(folder)
    changes = {mode: change_of(results, mode=mode) for mode in MODES}
    metrics = main_figures(results, changes=changes)
    write_figures(folder, metrics=metrics, results=results, groupings=groupings(results))
    for out in outs:  # what no report needs
        _write_if_missing(folder / out)


def _write_if_missing(path: Path) -> None:
    """Make a small file, or a folder with one."""
    if not path.exists():
        file = path if path.suffix else path / "a.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{path.name}\n")
