"""Finds the recorded trajectory and the turn to fork, by the names that the viewer has for them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, unquote

from agents.types import Trajectory
from envs.errors import ConfigError, describe, list_names, suggest
from tasks.data.trajectories import trajectory_from_dict
from tasks.runs.folders import RUNS, RunFolder, find_runs
from tasks.runs.lines import digest_of

EXAMPLE = "textcraft-cpu/step_0003:5@2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parent:
    """A recorded trajectory."""

    run: RunFolder
    address: str
    """`FILE:LINE`, as in the viewer."""
    digest: str
    """The digest of its line, as in the viewer's index."""
    trajectory: Trajectory

    @property
    def name(self) -> str:
        """The name that people read: `RUN/FILE:LINE`."""
        return f"{self.run.name}/{self.address}"


def find_parent(text: str, *, paths: Sequence[Path] = (RUNS,)) -> tuple[Parent, int]:
    """The trajectory and the turn (from 1) that `text` names: `RUN/FILE:LINE@TURN`, `FILE.jsonl:LINE@TURN`,
    or the address of its page or of that of its forks.

    RUN is a folder, or the viewer's name of a run in `paths`. Raises `ConfigError`.
    """
    run, address, turn = _parse(text)
    return read_parent(_find_run(run, paths), address), turn


def read_parent(run: RunFolder, address: str) -> Parent:
    """The trajectory `address` of `run`. Raises `ConfigError`."""
    key, _, number = address.rpartition(":")
    files = {file.key: file for file in run.files()}
    if key not in files:
        raise ConfigError(
            f"run {run.name} has no file {key!r}; {suggest(key, files)}it has: {list_names(list(files))}"
        )
    line = _read_line(files[key].path, int(number) if number.isdecimal() else 0)
    if line is None:
        raise ConfigError(f"{files[key].path} has no line {number}; lines are counted from 1")
    try:
        trajectory = trajectory_from_dict(json.loads(line))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"{address} is no trajectory of this version: {describe(error)[:200]}") from None
    return Parent(run=run, address=address, digest=digest_of(line), trajectory=trajectory)


def _parse(text: str) -> tuple[str, str, int]:
    """Run, address and turn."""
    if "#/run/" in text:
        path, _, query = text.partition("#/run/")[2].partition("?")
        page = "/at/" if "/at/" in path else "/fork/"
        run, separator, address = path.partition(page)
        turn = parse_qs(query).get("turn", [""])[0]
        run, address = unquote(run), unquote(address)
    else:
        place, separator, turn = text.rpartition("@")
        file, colon, line = place.rpartition(":")
        if file.endswith(".jsonl"):
            run, address = file, f"{Path(file).stem}{colon}{line}"
        else:
            run, _, address = place.rpartition("/")
    if not (run and separator and ":" in address and turn.isdecimal() and int(turn) > 0):
        raise ConfigError(
            f"{text!r} names no turn of a trajectory; give RUN/FILE:LINE@TURN, e.g. {EXAMPLE}, or the "
            "address of its page in the viewer, with turn=TURN"
        )
    return run, address, int(turn)


def _find_run(name: str, paths: Sequence[Path]) -> RunFolder:
    path = Path(name)
    if path.is_file() or path.is_dir():
        runs = find_runs([path])
        if len(runs) == 1:
            return runs[0]
        raise ConfigError(f"{name} holds {len(runs)} runs, not one; name one of them")
    runs_by_name = {run.name: run for run in find_runs([path for path in paths if path.exists()])}
    if name not in runs_by_name:
        names = f": {list_names(list(runs_by_name))}" if runs_by_name else ""
        raise ConfigError(
            f"there is no run {name!r} in {list_names([str(path) for path in paths])}{names}; "
            f"{suggest(name, runs_by_name)}give its folder instead of its name, or --runs with what "
            "`wingspan view` was given"
        )
    return runs_by_name[name]


def _read_line(path: Path, number: int) -> bytes | None:
    """Line `number`, from 1, without its end."""
    try:
        with path.open("rb") as file:
            for index, line in enumerate(file, start=1):
                if index == number:
                    return line.rstrip(b"\r\n") if line.strip() else None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror or error})") from None
    return None
