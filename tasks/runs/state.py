"""Whether a run is at work, or how its last command ended: `state.json` in its workspace.

MLflow records the same of recorded runs, and `wingspan runs` shows it; the viewer reads files alone.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from envs.files import is_locked, write_json
from tasks.runs.folders import LOCK, STATE
from tasks.runs.parameters import try_read_json

RUNNING, FAILED, STOPPED, KILLED = "running", "failed", "stopped", "killed"


@contextmanager
def recorded_state(folder: Path) -> Iterator[None]:
    """Record how the command that works in `folder` ends: nothing if it succeeds, `failed` after an error,
    `stopped` after an exception of a signal. If it cannot record anything, it was killed."""
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder, RUNNING)
    try:
        yield
    except Exception:
        _write(folder, FAILED)
        raise
    except BaseException:
        _write(folder, STOPPED)
        raise
    (folder / STATE).unlink(missing_ok=True)


def mark_stopped(folder: Path) -> None:
    """Record that a signal has stopped the command in `folder`, unless it has succeeded."""
    if (folder / STATE).exists():
        _write(folder, STOPPED)


def read_state(folder: Path) -> str:
    """`running`, or how the last command ended: `failed`, `stopped`, `killed`; empty if it succeeded, or if
    that is not recorded."""
    if is_locked(folder / LOCK):
        return RUNNING
    state = try_read_json(folder / STATE).get("state")
    return KILLED if state == RUNNING else state if state in (FAILED, STOPPED) else ""


def _write(folder: Path, state: str) -> None:
    write_json(folder / STATE, {"state": state})
