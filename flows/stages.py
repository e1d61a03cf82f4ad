"""The stages of a pipeline in their order, and how one is run: timed, and on its own checkpoints.

What a stage reads and writes is in `dvc.yaml` (`flows/lineage.py`). Both ways to run one, the Prefect
flow and `wingspan stage` (which `dvc repro` calls), come through here.
"""

import json
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from envs.files import write_atomically
from flows.lineage import Stage, stage_key
from flows.progress import Display, StageState
from tasks.config.settings import Pipeline

if TYPE_CHECKING:
    from tasks.verl.actor import StepRecord

STAGES = ("prepare", "provision", "warmup", "train", "evaluate", "report")
"""Stage `x` is the function `x(pipeline, workspace)` of `tasks/stages/x.py`; imported when it runs."""

TIMING = "timing.json"
"""In the workspace: `{"stages": {name: seconds}, "run": {"wall", "orchestration"}}`. A stage's seconds
add up over the attempts since it last began anew, but for attempts that were killed."""
FINISHED = Path("train", "finished")
"""In the workspace: the key of the training that has come to its end there."""


def call_stage(name: str, *, pipeline: Pipeline, workspace: Path, display: Display) -> None:
    """Run the body of stage `name`, its steps shown on `display`."""
    body = import_module(f"tasks.stages.{name}").__dict__[name]
    if name == "train":
        body(
            pipeline,
            workspace,
            on_step=lambda record: show_training(record, display=display),
            on_phase=lambda text: display.phase(name, text),
        )
    elif name == "warmup":
        body(pipeline, workspace, on_step=lambda values: display.step(name, values))
    elif name == "evaluate":
        body(pipeline, workspace, on_episodes=lambda done, total: display.count(name, done, total=total))
    else:
        body(pipeline, workspace)


def show_training(record: "StepRecord", *, display: Display) -> None:
    """Show one training step."""
    display.step("train", {"step": record.step, **record.metrics})


def make_display(name: str, *, pipeline: Pipeline, stages: Sequence[str], workspace: Path) -> Display:
    """A display of `stages` of pipeline `name`."""
    steps = {"train": pipeline.train.steps}
    if pipeline.warmup is not None:
        steps["warmup"] = pipeline.warmup.steps
    return Display(
        f"{name} in {workspace}", stages=stages, steps=steps, steps_per_round=pipeline.train.steps_per_round
    )


@contextmanager
def running(stage: Stage, *, display: Display) -> Iterator[None]:
    """Around the body of `stage`: on its own checkpoints, timed and shown."""
    trains = stage.name == "train"
    key = stage_key(stage) if trains else ""
    resumed = trains and claim_checkpoints(stage)
    display.stage(stage.name, StageState.RUNNING)
    with _timed(stage.name, workspace=stage.workspace, resumed=resumed):
        yield
    if trains:
        write_atomically(stage.workspace / FINISHED, key)
    display.stage(stage.name, StageState.DONE)


@contextmanager
def _timed(stage: str, *, workspace: Path, resumed: bool) -> Iterator[None]:
    """Add the seconds of this block to the workspace's `timing.json`, also where it fails."""
    started = time.perf_counter()
    try:
        yield
    finally:
        seconds = time.perf_counter() - started
        timing = read_timing(workspace)
        before = timing["stages"].get(stage, 0.0) if resumed else 0.0
        timing["stages"][stage] = round(before + seconds, 3)
        write_timing(workspace, timing)


def read_timing(workspace: Path) -> dict[str, dict[str, float]]:
    """`timing.json`, or its empty form."""
    file = workspace / TIMING
    timing: dict[str, dict[str, float]] = json.loads(file.read_text()) if file.exists() else {"stages": {}}
    return timing


def write_timing(workspace: Path, timing: dict[str, dict[str, float]]) -> None:
    """Write `timing.json`."""
    write_atomically(workspace / TIMING, json.dumps(timing, indent=2) + "\n")


def claim_checkpoints(train: Stage) -> bool:
    """Make `train/` the training's own: keep what was made from the same inputs, clear all else.

    Code is not among these inputs, so that training that a bug has stopped goes on after the mend. Of one
    that came to its end it is: there is nothing to go on with, and other code would not have made it.
    Returns whether something to go on from was kept.
    """
    if would_resume(train):
        return True
    folder = train.workspace / "train"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(train.workspace / "policy", ignore_errors=True)
    write_atomically(folder / "key", stage_key(train, code=False))
    return False


def would_resume(train: Stage) -> bool:
    """Whether what `train/` holds was made from the same inputs and may be gone on with. Raises `ConfigError`
    for an input that is not there."""
    owner, finished = train.workspace / "train" / "key", train.workspace / FINISHED
    if not owner.exists() or owner.read_text() != stage_key(train, code=False):
        return False
    return not finished.exists() or finished.read_text() == stage_key(train)
