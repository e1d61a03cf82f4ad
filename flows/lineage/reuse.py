"""Reuses what a stage has written in another workspace.

Runs with the same seed that differ only in their training have the same warm-up: the runs of a sweep, or
`wingspan run --set train.lr=…` after `wingspan run`. The stage has the same key in both workspaces, so it
would write the same files.
"""

from pathlib import Path

from envs.errors import ConfigError
from envs.files import copy_over
from flows.lineage.stages import Stage
from tasks.data.hashes import has_md5
from tasks.tracking.lineage_record import LINEAGE, read_lineage

REUSED = ("warmup",)
"""The stages that take minutes and whose outputs do not name their workspace."""


def copy_outputs(stage: Stage, key: str) -> Path | None:
    """Copy the outputs of `stage` from another workspace in the same folder, in which it had the same `key`.

    Returns that workspace; None if there is none whose outputs are still those that were recorded, or if the
    outputs of `stage` are not reused.
    """
    if stage.name not in REUSED:
        return None
    for file in sorted(stage.workspace.parent.glob(f"*/{LINEAGE}")):
        if file.parent.resolve() == stage.workspace.resolve():  # a copy deletes its target first
            continue
        try:
            record = read_lineage(file).stages.get(stage.name)
        except ConfigError:  # of another version, or being replaced
            continue
        if record and record.key == key and _copy(record.writes, file.parent, stage.workspace):
            return file.parent
    return None


def _copy(hashes: dict[str, str], source: Path, target: Path) -> bool:
    """Whether all outputs of `hashes` are now in `target`; a stage that has not finished has no hashes."""
    try:
        if not hashes or not all(has_md5(source / name, md5) for name, md5 in hashes.items()):
            return False
        for name in hashes:
            copy_over(source / name, target / name)
    except OSError:  # another command replaces or removes them, or they are another user's
        return False
    return all(has_md5(target / name, md5) for name, md5 in hashes.items())  # not changed meanwhile
