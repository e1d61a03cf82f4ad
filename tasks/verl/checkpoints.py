"""The folder of verl's checkpoints: which are complete, which is the last, which can be deleted.

verl writes a checkpoint file by file and its tracker file at the end, neither atomically. Our own record,
written once everything is there, names each file with its size and checksum. A checkpoint without a record is
torn; one whose files differ from its record is damaged. Training resumes from the last one that is neither.
"""

import json
import re
import shutil
import zlib
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from envs.errors import WingspanError
from envs.files import write_atomically
from tasks.config.capacity import checkpoint_bytes, read_model_size
from tasks.config.training import TrainSettings

MAX_CHECKPOINTS = 2
_RECORD = "complete"
"""JSON: path within the checkpoint → [bytes, CRC-32]."""
_TRACKER = "latest_checkpointed_iteration.txt"
_PREFIX = "global_step_"
_CHUNK = 4_000_000  # bytes

_Sum = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Resumption:
    """Where training resumes."""

    step: int
    """The step of the last whole checkpoint; 0 before the first one."""
    damage: tuple[str, ...] = ()
    """What was wrong with later checkpoints, which are deleted; one line each."""


def make_room(folder: Path, *, model: str, train: TrainSettings, steps_to_keep: Collection[int] = ()) -> None:
    """Ensure that one more checkpoint of `model`, trained as `train` says, fits on the disk of `folder`,
    before it is written.

    Where it does not fit, the older complete checkpoints are deleted now instead of after the new one, but
    for those of `steps_to_keep`. Raises `WingspanError` if that is not enough.
    """
    required_bytes = _checkpoint_size(folder, model, train)
    free_bytes = _free_bytes(folder)
    for old in complete_steps(folder)[:-1]:
        if free_bytes >= required_bytes:
            break
        if old in steps_to_keep:
            continue
        _delete(folder, step=old)
        free_bytes = _free_bytes(folder)
    if free_bytes < required_bytes:
        raise WingspanError(
            f"the next checkpoint in {folder} needs {required_bytes / 1e9:.3g} GB, and "
            f"{free_bytes / 1e9:.3g} GB are free; free some and run again: training goes on from the last "
            "checkpoint"
        )


def mark_complete(folder: Path, *, step: int, steps_to_keep: Collection[int] = ()) -> None:
    """Record the files of the checkpoint of `step`, all of which are written, and delete all but the newest
    `MAX_CHECKPOINTS` and those of `steps_to_keep`."""
    checkpoint = checkpoint_folder(folder, step=step)
    write_atomically(checkpoint / _RECORD, json.dumps(_sums(checkpoint)))
    for old in complete_steps(folder)[:-MAX_CHECKPOINTS]:
        if old not in steps_to_keep:
            _delete(folder, step=old)


def delete_after(folder: Path, *, step: int) -> None:
    """Delete the checkpoints of later steps than `step`, the last one first."""
    for late in reversed(complete_steps(folder)):
        if late > step:
            _delete(folder, step=late)


def _delete(folder: Path, *, step: int) -> None:
    """Delete a checkpoint, its record first: what a kill leaves of it is torn."""
    checkpoint = checkpoint_folder(folder, step=step)
    (checkpoint / _RECORD).unlink()
    shutil.rmtree(checkpoint)


def complete_steps(folder: Path) -> list[int]:
    """The steps of checkpoints that were written to their end, ascending; their files are not read."""
    names = (path.parent.name for path in folder.glob(f"{_PREFIX}*/{_RECORD}"))
    return sorted(int(name.removeprefix(_PREFIX)) for name in names)


def resume(folder: Path) -> Resumption:
    """Find the last whole checkpoint, delete those that are torn or come after it, and point verl's tracker
    at it.

    Reads every file of the checkpoints that it judges. Raises `WingspanError`, and deletes nothing, where
    there are checkpoints that were written to their end and every one is damaged.
    """
    whole_steps = complete_steps(folder)
    step, faults = 0, dict[int, str]()
    for candidate in reversed(whole_steps):
        fault = _fault(checkpoint_folder(folder, step=candidate))
        if fault is None:
            step = candidate
            break
        faults[candidate] = fault
    if faults and not step:
        raise WingspanError(
            f"no checkpoint in {folder} can be resumed: {'; '.join(faults.values())}; restore these files, "
            f"or delete {folder.parent} to train from the start"
        )
    for path in folder.glob(f"{_PREFIX}*"):
        if path.name not in {f"{_PREFIX}{whole_step}" for whole_step in whole_steps if whole_step <= step}:
            shutil.rmtree(path)
    tracker = folder / _TRACKER
    if step:
        write_atomically(tracker, str(step))
    else:
        tracker.unlink(missing_ok=True)
    return Resumption(step, tuple(faults.values()))


def step_of(checkpoint: Path) -> int | None:
    """The step of `checkpoint`, whole or not; None if the folder is not named as one."""
    match = re.fullmatch(rf"{_PREFIX}(\d+)", checkpoint.name)
    return int(match[1]) if match else None


def checkpoint_folder(folder: Path, *, step: int) -> Path:
    """The checkpoint of `step`, whole or not."""
    return folder / f"{_PREFIX}{step}"


def policy_folder(folder: Path, *, step: int) -> Path:
    """The policy of a whole checkpoint, in Hugging Face format with its tokenizer."""
    return checkpoint_folder(folder, step=step) / "actor" / "huggingface"


def _checkpoint_size(folder: Path, model: str, train: TrainSettings) -> int:
    """Bytes of the newest whole one; where there is none, by the model's size; 0 if that is unknown."""
    whole = complete_steps(folder)
    if whole:
        return sum(
            file.stat().st_size
            for file in checkpoint_folder(folder, step=whole[-1]).rglob("*")
            if file.is_file()
        )
    size = read_model_size(model)
    return checkpoint_bytes(size, train) if size is not None else 0


def _free_bytes(folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    return shutil.disk_usage(folder).free


def _fault(checkpoint: Path) -> str | None:
    """What is wrong with a checkpoint; None if it matches its record."""
    record = checkpoint / _RECORD
    try:
        checksums: Mapping[str, _Sum] = {
            name: (size, crc) for name, (size, crc) in json.loads(record.read_text()).items()
        }
    except (OSError, ValueError, AttributeError, TypeError):
        return f"{record} is no record of its files"
    files = [checkpoint / name for name in checksums]
    for file, (size, _) in zip(files, checksums.values(), strict=True):
        if not file.is_file():
            return f"{file} is not there"
        if (actual := file.stat().st_size) != size:
            return f"{file} has {actual:,} of {size:,} bytes"
    with ThreadPoolExecutor() as threads:
        for file, (_, recorded_crc), crc in zip(
            files, checksums.values(), threads.map(_crc, files), strict=True
        ):
            if crc != recorded_crc:
                return f"{file} is not what was written"
    return None


def _sums(checkpoint: Path) -> dict[str, _Sum]:
    files = sorted(path for path in checkpoint.rglob("*") if path.is_file() and path.name != _RECORD)
    with ThreadPoolExecutor() as threads:  # zlib lets go of Python's lock
        crcs = threads.map(_crc, files)
        return {
            str(file.relative_to(checkpoint)): (file.stat().st_size, crc)
            for file, crc in zip(files, crcs, strict=True)
        }


def _crc(file: Path) -> int:
    crc = 0
    buffer = memoryview(bytearray(_CHUNK))
    with file.open("rb", buffering=0) as source:
        while count := source.readinto(buffer):
            crc = zlib.crc32(buffer[:count], crc)
    return crc
