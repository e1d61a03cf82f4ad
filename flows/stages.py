"""The stages of a pipeline in their order, and what surrounds the work of one: timing, display, checkpoints.

What a stage reads and writes is declared in `dvc.yaml` (`flows/lineage.py`).
"""

import json
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

from envs.files import write_atomically
from flows.lineage import Stage, stage_key
from flows.progress import Display, StageState
from tasks.config.pipelines import Pipeline

STAGES = ("prepare", "provision", "warmup", "train", "evaluate", "report")
"""Stage `x` is in `tasks/stages/x.py`: a function `x(pipeline, workspace, progress)`, imported when it runs;
`train` alone is a session, whose rounds `flows/train_agent.py` drives."""

TIMING = "timing.json"
"""In the workspace: `{"stages": {name: seconds}, "run": {"wall", "orchestration"}}`. The seconds of a stage
include those of earlier attempts that it resumed, except attempts that were killed."""
FINISHED = Path("train", "finished")
"""In the workspace: the key of the training that was completed there."""


def run_body(stage: Stage, *, pipeline: Pipeline, display: Display) -> None:
    """Do the work of `stage`, its progress shown on `display`."""
    body = import_module(f"tasks.stages.{stage.name}").__dict__[stage.name]
    body(pipeline, stage.workspace, display.progress(stage.name))


def make_display(name: str, *, pipeline: Pipeline, stages: Sequence[str], workspace: Path) -> Display:
    """A display of `stages` of pipeline `name`."""
    steps = {"train": pipeline.train.steps}
    if pipeline.warmup is not None:
        steps["warmup"] = pipeline.warmup.steps
    return Display(
        f"{name} in {workspace}", stages=stages, steps=steps, steps_per_round=pipeline.train.steps_per_round
    )


@contextmanager
def show_stage(stage: Stage, *, display: Display, is_resumed: bool) -> Iterator[None]:
    """Show that `stage` runs, and write its seconds to `timing.json`, also if it fails.

    `is_resumed`: add them to those of earlier attempts.
    """
    display.stage(stage.name, StageState.RUNNING)
    start = time.perf_counter()
    try:
        yield
    finally:
        timing = read_timing(stage.workspace)
        before = timing["stages"].get(stage.name, 0.0) if is_resumed else 0.0
        timing["stages"][stage.name] = round(before + time.perf_counter() - start, 3)
        write_timing(stage.workspace, timing)
    display.stage(stage.name, StageState.DONE)


def read_timing(workspace: Path) -> dict[str, dict[str, float]]:
    """`timing.json`, or its empty form."""
    file = workspace / TIMING
    timing: dict[str, dict[str, float]] = json.loads(file.read_text()) if file.exists() else {"stages": {}}
    return timing


def write_timing(workspace: Path, timing: dict[str, dict[str, float]]) -> None:
    """Write `timing.json`."""
    write_atomically(workspace / TIMING, json.dumps(timing, indent=2) + "\n")


def claim_checkpoints(train: Stage) -> bool:
    """Clear `train/` unless it holds training from the same inputs; returns whether there is some to resume.

    Code is not among these inputs, so that training that a bug has stopped resumes after the fix. Training
    that was completed is an exception: there is nothing to resume, and other code would not have made it.
    """
    if would_resume(train):
        return True
    folder = train.workspace / "train"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(train.workspace / "policy", ignore_errors=True)
    write_atomically(folder / "key", stage_key(train, code=False))
    return False


def would_resume(train: Stage) -> bool:
    """Whether `train/` holds training from the same inputs. Raises `ConfigError` for a missing input."""
    owner, mark = train.workspace / "train" / "key", train.workspace / FINISHED
    if not owner.exists() or owner.read_text() != stage_key(train, code=False):
        return False
    return not mark.exists() or mark.read_text() == stage_key(train)


def mark_finished(train: Stage, key: str) -> None:
    """Note that the training with `key` is complete."""
    write_atomically(train.workspace / FINISHED, key)
