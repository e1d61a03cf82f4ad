"""Which stages `dvc.lock` shows as up to date: as many as DVC itself finds so.

The stages' outputs are written by a stand-in (`tests/support/dvc_toy.py`); `dvc repro` and `dvc status` are
DVC's.
"""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from flows.lineage.lock_file import find_locked_changes, locked_receipt
from flows.lineage.stages import Stage, declared_stages, default_workspace, find_difference
from tasks.config.pipelines import load_pipeline
from tests.support.dvc_toy import NAME, make_project
from tests.support.yaml_files import edit_yaml

RUN = Path("runs", NAME)
TARGET = f"report@{NAME}"


@pytest.fixture(scope="module")
def finished_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its stages have run once, by `dvc repro`."""
    folder = tmp_path_factory.mktemp("dvc") / "project"
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        make_project(folder)
        patch.setenv("PATH", f"{folder / '.git' / 'programs'}{os.pathsep}{os.environ['PATH']}")
        dvc("repro", "--quiet", TARGET)
    return folder


@pytest.fixture
def project(finished_project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, which is the working directory."""
    folder = tmp_path / "copy"
    shutil.copytree(finished_project, folder, symlinks=True)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("DVC_TEST", "1")  # else JSON goes around the captured stream
    return folder


def dvc(*arguments: str) -> None:
    from dvc.cli import main

    assert main(list(arguments)) == 0


def stages() -> dict[str, Stage]:
    return declared_stages(NAME, pipeline=load_pipeline(NAME), workspace=default_workspace(NAME))


def is_up_to_date(stage: Stage) -> bool:
    receipt = locked_receipt(stage, name=NAME)
    return receipt is not None and find_difference(stage, receipt) is None


def set_parameter(block: str, key: str, value: object) -> None:
    with edit_yaml(Path("pipelines.yaml")) as document:
        document["pipelines"][NAME][block][key] = value


def set_command() -> None:
    with edit_yaml(Path("dvc.yaml")) as document:
        document["stages"]["train"]["do"]["cmd"] = "nice wingspan stage train ${key}"


def add_dependency() -> None:
    Path("tasks/mine.py").write_text("mine\n")
    with edit_yaml(Path("dvc.yaml")) as document:
        document["stages"]["evaluate"]["do"]["deps"].append("tasks/mine.py")


def remove_entry() -> None:
    with edit_yaml(Path("dvc.lock")) as document:
        del document["stages"][f"warmup@{NAME}"]


def write_anew() -> None:
    with edit_yaml(Path("pipelines.yaml")):
        pass  # without comments and line breaks, as `dvc exp run -S` does


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("change", "changed_stages"),
    [
        (lambda: None, set()),
        (write_anew, set()),
        (lambda: Path("tasks/stages/evaluate.py").write_text("better\n"), {"evaluate"}),
        (lambda: Path("tasks/verl/new.py").write_text("new\n"), {"train", "evaluate"}),
        (lambda: set_parameter("evaluate", "samples_per_item", 7), {"evaluate", "report"}),
        (lambda: set_parameter("train", "lr", 1e-5), {"train", "report"}),
        (set_command, {"train"}),
        (add_dependency, {"evaluate"}),
        (remove_entry, {"warmup"}),
        (lambda: Path(RUN, "evaluation.json").write_text("{}"), {"evaluate", "report"}),
        (lambda: shutil.rmtree(RUN / "policy"), {"train", "evaluate", "report"}),
        (lambda: shutil.rmtree(RUN), {"prepare", "provision", "warmup", "train", "evaluate", "report"}),
    ],
)
def test_a_stage_is_up_to_date_where_dvc_finds_it_so(
    project: Path, capsys: pytest.CaptureFixture[str], change: Callable[[], object], changed_stages: set[str]
) -> None:
    change()
    capsys.readouterr()
    dvc("status", "--json", "--with-deps", TARGET)
    by_dvc = {name.partition("@")[0] for name in json.loads(capsys.readouterr().out) if "@" in name}
    ours = {name for name, stage in stages().items() if not is_up_to_date(stage)}
    assert ours == by_dvc == changed_stages


@pytest.mark.heavy
def test_a_parameter_that_dvc_does_not_record_is_not_taken_for_the_one_of_the_entry(project: Path) -> None:
    set_parameter("evaluate", "temperature", 0.5)
    assert list(find_locked_changes(stages()["train"], name=NAME)) == []
    set_parameter("train", "final_policy", "best")
    changes = {"train.final_policy", "evaluate.temperature"}
    assert set(find_locked_changes(stages()["train"], name=NAME)) == changes


@pytest.mark.heavy
def test_small_numbers_are_the_same_in_both_files(project: Path) -> None:
    """DVC writes 1.0e-5 as 1e-05, which is a text in YAML 1.1."""
    set_parameter("train", "lr", 1e-5)
    text = Path("pipelines.yaml").read_text()
    Path("pipelines.yaml").write_text(text.replace("lr: 1.0e-05", "lr: 1.0e-5"))
    dvc("commit", "--quiet", "--force", f"train@{NAME}")
    assert "lr: 1e-05" in Path("dvc.lock").read_text()
    assert is_up_to_date(stages()["train"])


@pytest.mark.heavy
def test_a_file_that_dvc_does_not_know_is_in_no_entry(project: Path) -> None:
    train = stages()["train"]
    prompt = Path("prompt.md")
    prompt.write_text("Be brief.\n")
    assert is_up_to_date(train)
    assert not is_up_to_date(replace(train, deps=(*train.deps, prompt)))
