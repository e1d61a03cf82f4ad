"""Reuses what a stage has written in another workspace from the same inputs.

Runs that differ in the training alone share their warm-up: those of a sweep, and one with `--set
train.lr=…` beside that with the parameters of `pipelines.yaml`. Their warm-ups have the same key, so that
they would write the same.
"""

import shutil
from pathlib import Path

from envs.errors import ConfigError
from flows.lineage.stages import Stage
from tasks.data.hashes import path_md5
from tasks.tracking.lineage_record import LINEAGE, read_lineage

REUSED = ("warmup",)
"""Of the stages that take minutes, those whose outputs do not name their workspace."""


def copy_outputs(stage: Stage, key: str) -> Path | None:
    """Copy the outputs of `stage` from a workspace beside its own in which it had the same `key`.

    Returns that workspace; None if there is none whose outputs are still those that were recorded, or if the
    outputs of `stage` are not reused.
    """
    if stage.name not in REUSED:
        return None
    for file in sorted(stage.workspace.parent.glob(f"*/{LINEAGE}")):
        try:
            record = read_lineage(file).stages.get(stage.name)
        except ConfigError:  # of another version, or being replaced
            continue
        if record and record.key == key and _copy(record.writes, file.parent, stage.workspace):
            return file.parent
    return None


def _copy(hashes: dict[str, str], source: Path, target: Path) -> bool:
    """Whether all outputs of `hashes` were there, and are now in `target`."""
    if not hashes or source.samefile(target):
        return False
    for name, md5 in hashes.items():
        if not (source / name).exists():
            return False
        path = target / name
        if path.is_dir():
            shutil.rmtree(path)
        (shutil.copytree if (source / name).is_dir() else shutil.copy2)(source / name, path)
        if path_md5(path) != md5:  # it was changed, or is being written anew
            return False
    return True
