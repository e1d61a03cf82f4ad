"""The folder of verl's checkpoints: which are whole, which is the last, which can go.

verl writes a checkpoint file by file and its tracker file at the end, neither atomically. A marker of
ours, put down once all is written, says that a checkpoint is whole; what has none is torn.
"""

import os
import shutil
from pathlib import Path

from envs.errors import WingspanError
from tasks.capacity import checkpoint_bytes, read_model_size

KEPT = 2
_MARKER = "complete"
_TRACKER = "latest_checkpointed_iteration.txt"
_PREFIX = "global_step_"


def make_room(folder: Path, *, model: str) -> None:
    """See that one more checkpoint of `model` fits on the disk of `folder`, before it is written.

    Where it does not fit, the older of the whole checkpoints go first: they would go when the new one is
    whole. Raises `WingspanError` if that is not enough.
    """
    needed = _checkpoint_size(folder, model)
    free = _free_bytes(folder)
    for old in complete_steps(folder)[:-1]:
        if free >= needed:
            break
        shutil.rmtree(_at(folder, old))
        free = _free_bytes(folder)
    if free < needed:
        raise WingspanError(
            f"the next checkpoint in {folder} needs {needed / 1e9:.3g} GB, and {free / 1e9:.3g} GB are free; "
            "free some and run again: training goes on from the last checkpoint"
        )


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


def policy_folder(folder: Path, *, step: int) -> Path:
    """The policy of a whole checkpoint, in Hugging Face format with its tokenizer."""
    return _at(folder, step) / "actor" / "huggingface"


def _checkpoint_size(folder: Path, model: str) -> int:
    """Bytes of the newest whole one; where there is none, by the model's size; 0 if that is unknown."""
    whole = complete_steps(folder)
    if whole:
        return sum(file.stat().st_size for file in _at(folder, whole[-1]).rglob("*") if file.is_file())
    size = read_model_size(model)
    return checkpoint_bytes(size) if size is not None else 0


def _free_bytes(folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    return shutil.disk_usage(folder).free


def _at(folder: Path, step: int) -> Path:
    return folder / f"{_PREFIX}{step}"
