"""What `wingspan plan` says that a run would cost, against sums done by hand."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from flows.commands.costs import find_earlier_runs, list_costs
from flows.plan import Plan, find_disk_need
from tasks.config.parameters import write_changes
from tasks.config.pipelines import load_pipeline
from tests.support.report_toy import write_workspace

ROOT = Path(__file__).parents[2]
NAME = "textcraft-cpu"
STAGES = ["warmup", "train", "evaluate", "report"]


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pipelines.yaml", "models"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)


def finish(workspace: str, *, stages: Mapping[str, float], name: str = NAME, **overrides: Any) -> Path:
    """A finished run of four steps of 4 s, with these seconds by stage."""
    folder = Path("runs") / workspace
    write_workspace(folder)
    parameters = {"train.steps": 4} | {key.replace("__", "."): value for key, value in overrides.items()}
    pipeline = load_pipeline(NAME, overrides=parameters)
    (folder / "report").mkdir()
    (folder / "report" / "parameters.json").write_text(json.dumps(pipeline.model_dump(mode="json")))
    (folder / "timing.json").write_text(json.dumps({"stages": stages}))
    write_changes(folder, name=name, changes={})
    return folder


def plan(workspace: str = NAME, **overrides: Any) -> Plan:
    pipeline = load_pipeline(NAME, overrides={key.replace("__", "."): v for key, v in overrides.items()})
    return Plan(name=NAME, pipeline=pipeline, workspace=Path("runs") / workspace, stages={}, is_tracked=False)


def test_without_earlier_runs_the_time_is_unknown() -> None:
    (time, disk) = list_costs(plan(), STAGES)
    assert time == ("time", "unknown", f"no finished run of {NAME} in runs")
    assert disk[0] == "disk"


def test_training_is_scaled_by_its_steps_and_the_runs_are_named() -> None:
    # 26 s of training are four steps of 4 s and 10 s besides: of ten steps, 50 s.
    finish("a", stages={"warmup": 20.0, "train": 26.0, "evaluate": 5.0, "report": 0.5})
    (time, _) = list_costs(plan(train__steps=10), STAGES)
    assert time == (
        "time",
        "1 min 16 s",  # 75.5 s
        "train 50.0 s (10 steps of 4.0 s), warmup 20.0 s, evaluate 5.0 s; as in runs/a",
    )
    assert list_costs(plan(train__steps=10), ["evaluate", "report"])[0] == (
        "time", "5.5 s", "evaluate 5.0 s; as in runs/a"
    )  # fmt: skip


def test_the_runs_whose_parameters_differ_least_are_taken() -> None:
    stages = {"warmup": 1.0, "train": 26.0, "evaluate": 5.0}
    finish("first", stages=stages, train__lr=0.5, seed=1)
    finish("second", stages=stages | {"evaluate": 9.0}, train__lr=0.25, seed=2)
    finish("third", stages=stages | {"evaluate": 100.0}, train__lr=0.5, rollout__group_size=2)
    finish("other", stages=stages, name="babyai-cpu")
    unfinished_run = finish("unfinished", stages=stages)
    (unfinished_run / "evaluation.json").unlink()
    folders = [run.folder.name for run in find_earlier_runs(plan())]
    assert folders == ["first", "second"]
    time = list_costs(plan(train__steps=4), ["evaluate"])[0]
    assert time[1:] == ("7.0 s", "evaluate 7.0 s; as in runs/first, runs/second, with another train.lr")


def test_what_the_workspace_holds_already_is_not_needed_again() -> None:
    empty = find_disk_need(Path("runs") / NAME, plan().pipeline)
    assert empty.free_bytes == pytest.approx(os.statvfs(".").f_bavail * os.statvfs(".").f_frsize, rel=0.05)
    file = Path("runs") / NAME / "policy" / "model.safetensors"
    file.parent.mkdir(parents=True)
    file.write_bytes(bytes(1_000_000))
    assert empty.needed_bytes - find_disk_need(Path("runs") / NAME, plan().pipeline).needed_bytes == 1_000_000
    (_, (name, about, parts)) = list_costs(plan(), STAGES)
    assert (name, parts) == ("disk", empty.checkpoints)
    assert about.startswith(f"{empty.needed_bytes / 1e9:.1f} GB of ")
