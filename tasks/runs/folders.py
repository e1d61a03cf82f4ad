"""Which folders are runs, and which files of trajectories a run has.

A run is a workspace (`runs/<pipeline>`), the folder of an evaluation (`wingspan evaluate`), or one file of
trajectories (`wingspan rollout --out`). Nothing is registered anywhere: the files say what there is.
"""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from envs.errors import ConfigError
from envs.types import replace_surrogates

RUNS = Path("runs")
"""The folder of runs, unless a command names another."""
MAX_DEPTH = 3
"""How far below a named folder runs are found: `runs/evaluations/<name>` is two below `runs`."""
LOCK = "lock"
"""The file that a command has locked in the folder in which it works: a workspace, or the folder of a sweep
or an evaluation."""
FLOW_RUN = "prefect.json"
"""The file beside it with the id of the last Prefect flow run that worked in the folder."""
STATE = "state.json"
"""The file in a workspace that says how its last command ended (`tasks/runs/state.py`)."""
STEPS = "train/metrics.jsonl"
"""The file in a workspace with the recorded training steps (`tasks/runs/steps.py`)."""
EVALUATION_TRAJECTORIES = "evaluation_trajectories.jsonl"
"""The file in a workspace with the trajectories of `episodes_to_keep` (`tasks/evaluation/outcomes.py`) of
every item, policy and mode."""
RECORD = "record.json"
"""The file in the folder of an evaluation with its record (`tasks/evaluation/record.py`)."""
TRAJECTORIES = "trajectories.jsonl"
"""Beside it: every episode, the failed ones included."""
UNRECORDED = "unrecorded"
"""Exists from the end of a tracked evaluation until MLflow has recorded it; holds the hash of the record's
inputs."""
ANNOTATIONS = "annotations.jsonl"
"""The file in a run's folder that `tasks/viewer/annotations.py` writes."""
QUICK_EVALUATION = "quick evaluation"
"""The phase of the episodes that are sampled after each round of training."""
FORKS = "forks.jsonl"
"""The file in a run's folder with the trajectories of `tasks/evaluation/forks`."""
_TRAINING_FILE = re.compile(r"(?P<kind>step|round)_(?P<number>\d+)\.jsonl")
_SIGNS = (EVALUATION_TRAJECTORIES, "train/trajectories", STEPS, "provision.json", "data/train.jsonl")
"""Any of these makes a folder a workspace, from its first stage on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryFile:
    """One file of trajectories."""

    key: str
    """Names it in addresses, unique in a run: the file's name without its suffix, a question mark for each
    byte that is not UTF-8."""
    path: Path
    phase: str
    """`train`, `quick evaluation`, `evaluation`, `rollout` or `fork`."""
    step: int | None = None
    """The training step that sampled it; for an offline algorithm, the first step of the round."""
    round: int | None = None
    """The round whose quick evaluation sampled it, from 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFolder:
    """A run, as it is found on disk."""

    name: str
    """Unique among the runs that are served; with a question mark for each byte that is not UTF-8."""
    folder: Path
    file: Path | None = None
    """The only file, if the run is a file."""

    @property
    def identity(self) -> Path:
        """What distinguishes it from every other run on this machine."""
        return self.file or self.folder

    @property
    def forks(self) -> Path:
        """The file to which forks of its trajectories are appended."""
        return self.folder / FORKS if self.file is None else self.file.with_suffix(f".{FORKS}")

    def files(self) -> list[TrajectoryFile]:
        """The files that exist now: training by step, then quick evaluations by round, evaluations, forks."""
        key = _name(self.forks)  # FILE.forks of a file, which may be called forks.jsonl itself
        forks = [TrajectoryFile(key=key, path=self.forks, phase="fork")] if self.forks.is_file() else []
        if self.file is not None:
            return [TrajectoryFile(key=_name(self.file), path=self.file, phase="rollout"), *forks]
        steps, rounds = list[TrajectoryFile](), list[TrajectoryFile]()
        for path in _children(self.folder / "train" / "trajectories"):
            match = _TRAINING_FILE.fullmatch(path.name)
            if match and match["kind"] == "step":
                step = int(match["number"])
                steps.append(TrajectoryFile(key=path.stem, path=path, phase="train", step=step))
            elif match:
                number = int(match["number"])
                rounds.append(TrajectoryFile(key=path.stem, path=path, phase=QUICK_EVALUATION, round=number))
        other_folders = [
            TrajectoryFile(key="evaluation", path=path, phase="evaluation")
            for name in (EVALUATION_TRAJECTORIES, TRAJECTORIES)
            if (path := self.folder / name).is_file()
        ][:1]
        steps.sort(key=lambda file: file.step or 0)
        rounds.sort(key=lambda file: file.round or 0)
        return [*steps, *rounds, *other_folders, *forks]


def is_workspace(folder: Path) -> bool:
    """Whether a run has begun in `folder`, or a sweep or DVC has made it for one."""
    files = ("output.log", "parameters.json", "lineage.json", "timing.json", "policy", "warmup", *_SIGNS)
    if any((folder / file).exists() for file in files):
        return True
    # A run that has written nothing else yet. Sweeps and evaluations lock their folders as well.
    names = {path.name for path in _children(folder)}
    return LOCK in names and names <= {LOCK, FLOW_RUN, STATE}


def find_runs(paths: Sequence[Path]) -> list[RunFolder]:
    """The runs in `paths`, by name: folders of runs, folders that hold such folders, and JSONL files.

    Raises `ConfigError` for a path that does not exist, and for a file that is not JSONL.
    """
    run_folders: dict[Path, RunFolder] = {}
    for path in paths:
        for run in _find(path):
            run_folders.setdefault(run.identity.resolve(), run)
    return sorted(_with_distinct_names(list(run_folders.values())), key=lambda run: run.name)


def _find(path: Path) -> Iterator[RunFolder]:
    if path.is_file():
        if path.suffix != ".jsonl":
            raise ConfigError(f"{path} is no file of trajectories; give a folder of runs, or a .jsonl file")
        yield RunFolder(name=path.stem, folder=path.parent, file=path)
    elif path.is_dir():
        yield from _walk(path, name=path.resolve().name, depth=0)
    else:
        raise ConfigError(f"there is no {path}; give a run's folder, a folder of runs, or a .jsonl file")


def _walk(folder: Path, *, name: str, depth: int) -> Iterator[RunFolder]:
    if any((folder / sign).exists() for sign in (*_SIGNS, RECORD)):
        yield RunFolder(name=name, folder=folder)
    elif depth < MAX_DEPTH:
        for child in _children(folder):
            if child.is_dir() and not child.name.startswith("."):
                child_name = child.name if depth == 0 else f"{name}/{child.name}"
                yield from _walk(child, name=child_name, depth=depth + 1)


def _children(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return sorted(Path(entry.path) for entry in entries)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []


def _with_distinct_names(runs: Sequence[RunFolder]) -> Iterator[RunFolder]:
    """A second run of a name gets the name of its parent folder before its own, or else a number."""
    names: set[str] = set()
    for run in runs:
        name, number = replace_surrogates(run.name, by="?"), 2
        if name in names:
            name = replace_surrogates(f"{run.folder.resolve().parent.name}/{run.name}", by="?")
        base = name
        while name in names:
            name, number = f"{base}-{number}", number + 1
        names.add(name)
        yield RunFolder(name=name, folder=run.folder, file=run.file)


def _name(file: Path) -> str:
    return replace_surrogates(file.stem, by="?")


def relative_within(path: Path, folder: Path) -> Path:
    """`path`, relative to `folder` if it is in it."""
    return path.relative_to(folder) if path.is_relative_to(folder) else path
