"""The folder of verl's checkpoints: which are whole, which is the last, which can go.

verl writes a checkpoint file by file and its tracker file at the end, neither atomically. A marker of
ours, put down once all is written, says that a checkpoint is whole; what has none is torn.
"""

import os
import shutil
from pathlib import Path

KEPT = 2
_MARKER = "complete"
_TRACKER = "latest_checkpointed_iteration.txt"
_PREFIX = "global_step_"


def mark_complete(folder: Path, *, step: int) -> None:
    """Say that the checkpoint of `step` is whole, and delete all but the newest `KEPT`."""
    (_at(folder, step) / _MARKER).touch()
    for old in complete_steps(folder)[:-KEPT]:
        shutil.rmtree(_at(folder, old))


def complete_steps(folder: Path) -> list[int]:
    """The steps of whole checkpoints, ascending."""
    marked = (path.parent.name for path in folder.glob(f"{_PREFIX}*/{_MARKER}"))
    return sorted(int(name.removeprefix(_PREFIX)) for name in marked)


def repair(folder: Path) -> int:
    """Delete torn checkpoints and point verl's tracker at the last whole one; its step, 0 for none."""
    whole = complete_steps(folder)
    for path in folder.glob(f"{_PREFIX}*"):
        if not (path / _MARKER).exists():
            shutil.rmtree(path)
    tracker = folder / _TRACKER
    if not whole:
        tracker.unlink(missing_ok=True)
        return 0
    fresh = tracker.with_suffix(".new")
    fresh.write_text(str(whole[-1]))
    os.replace(fresh, tracker)
    return whole[-1]


def checkpoint_folder(folder: Path, *, step: int) -> Path:
    """The checkpoint of `step`, whole or not."""
    return _at(folder, step)


def policy_folder(folder: Path, *, step: int) -> Path:
    """The policy of a whole checkpoint, in Hugging Face format with its tokenizer."""
    return _at(folder, step) / "actor" / "huggingface"


def _at(folder: Path, step: int) -> Path:
    return folder / f"{_PREFIX}{step}"
