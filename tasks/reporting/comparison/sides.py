"""What a comparison compares: `Side`s with their episodes by item, and what two sides must have in common."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from envs.errors import ConfigError, list_names
from tasks.config.parameters import differing_values
from tasks.evaluation.outcomes import Samples
from tasks.evaluation.record import is_record
from tasks.runs.folders import RECORD, RunFolder, find_runs, is_workspace

SUCCESS = "success"
GREEDY = "greedy success"
RATES = (SUCCESS, GREEDY)
"""Measures that are shares; the others are plain numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A run or an evaluation, as the viewer has it."""

    name: str
    """Unique in a comparison."""
    lines: Mapping[str, int]
    """Item → line of its first sampled episode, of the trained policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One setting, with the runs of its seeds; or one evaluation."""

    name: str
    sources: Sequence[Source]
    samples: Mapping[str, Samples]
    """Measure → item → value of each sample, of all sources. The first measure is the main one."""
    by_seed: Mapping[object, float]
    """Seed → mean success; empty for an evaluation."""
    stops: Mapping[str, int]
    """Stop reason → sampled episodes that ended by it."""
    num_failed: int
    """Sampled episodes that failed; they are in no rate."""
    parameters: Mapping[str, object]
    """The parameters by dotted key; empty if they are not recorded."""
    costs: Mapping[str, Sequence[float]]
    """What → amount for each source that has recorded it."""


@dataclass(frozen=True, slots=True)
class ComparedItem:
    """An item that all sides were evaluated on."""

    item: str
    metadata: Mapping[str, object]


def find_folders(paths: Sequence[Path]) -> list[RunFolder]:
    """The runs and evaluations in `paths`, in their order; a folder that holds some stands for all of them.

    They have the names that the viewer gives them for the same `paths`. Raises `ConfigError`
    for a path that holds none, or that is given twice.
    """
    folders: list[RunFolder] = []
    for path in paths:
        if not path.is_dir():
            raise ConfigError(f"there is no folder {path}; give folders of finished runs, or of evaluations")
        path_runs = find_runs([path])
        of_training = [run for run in path_runs if not is_record(run.folder)]
        path_runs = of_training or path_runs  # of a folder that holds both
        if not path_runs and is_workspace(path):
            raise ConfigError(f"{path} was stopped before its first stage ended; leave it out, or finish it")
        if not path_runs:
            raise ConfigError(
                f"{path} is no run and no evaluation: it has neither train/metrics.jsonl nor {RECORD}; give "
                "folders of finished runs, or of evaluations"
            )
        folders += path_runs
    if not folders:
        raise ConfigError("nothing to compare; name at least one run, e.g. runs/textcraft-cpu")
    resolved_folders = [run.folder.resolve() for run in folders]
    for index, folder in enumerate(resolved_folders):
        if folder in resolved_folders[:index]:
            raise ConfigError(f"{folders[index].folder} is named twice; name each once")
    names = {run.folder.resolve(): run.name for run in find_runs(paths)}
    return [
        RunFolder(name=names[folder], folder=run.folder)
        for run, folder in zip(folders, resolved_folders, strict=True)
    ]


def check_same_items(
    first: Mapping[str, object], second: Mapping[str, object], *, names: tuple[object, object], remedy: str
) -> None:
    """Raise `ConfigError` unless both (item → its contents) are the same items; its text has `names`, those
    of the sides, and ends with `remedy`."""
    if first == second:
        return
    missing_item = next((item for item in first if item not in second), None)
    extra = next((item for item in second if item not in first), None)
    reason = (
        f"{missing_item} is only in the first"
        if missing_item is not None
        else f"{extra} is only in the second"
        if extra is not None
        else "items of one name have other contents, or another order"
    )
    raise ConfigError(
        f"{names[0]} and {names[1]} are of other items ({len(first)} and {len(second)}; {reason}); {remedy}"
    )


def same_data_remedy(first: Mapping[str, object], second: Mapping[str, object]) -> str:
    """What gives two runs with these parameters, by dotted key, the same test items."""
    keys = [key for key in differing_values(first, second) if key.startswith("data.")]
    return f"run both with the same {list_names(keys) if keys else 'data files'}"
