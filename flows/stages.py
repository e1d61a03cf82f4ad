"""The stages of a pipeline in their order, and how one is run: timed, and on its own checkpoints.

What a stage reads and writes is in `dvc.yaml` (`flows/lineage.py`). Both ways to run one, the Prefect
flow and `wingspan stage` (which `dvc repro` calls), come through here.
"""

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

from flows.lineage import Stage, stage_key
from tasks.files import write_atomically
from tasks.settings import Pipeline

STAGES = ("prepare", "provision", "warmup", "train", "evaluate", "report")
"""Stage `x` is the function `x(pipeline, workspace)` of `tasks/x.py`; imported when it runs."""

TIMING = "timing.json"
"""In the workspace: `{"stages": {name: seconds}}`, over all attempts since the stage last began anew."""


def call_stage(name: str, *, pipeline: Pipeline, workspace: Path) -> None:
    """Run the body of stage `name`."""
    import_module(f"tasks.{name}").__dict__[name](pipeline, workspace)


@contextmanager
def timed(stage: str, *, workspace: Path, resumed: bool = False) -> Iterator[None]:
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

    Code is not among these inputs, so that training that a bug has stopped goes on after the mend.
    Returns whether something to go on from was kept.
    """
    folder = train.workspace / "train"
    owner = folder / "key"
    key = stage_key(train, code=False)
    if owner.exists() and owner.read_text() == key:
        return True
    shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(train.workspace / "policy", ignore_errors=True)
    write_atomically(owner, key)
    return False
