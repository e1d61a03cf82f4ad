"""A pipeline's parameters as flat pairs, and the parameters that a run has changed.

`parameters.json` in a workspace names the pipeline of `pipelines.yaml` and the parameters that its run
changed.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from envs.files import read_json, write_json
from tasks.config.pipelines import Pipeline

T = TypeVar("T")

CHANGES = "parameters.json"
"""The file in the workspace: `{"pipeline": name, "changed": {key: [value in pipelines.yaml, value
here]}}`."""
MAX_LEVELS = 3
"""How deeply nested a mapping may be to form a group in lists of parameters."""


def flat(values: Mapping[str, object], *, sep: str, prefix: str = "") -> Iterable[tuple[str, object]]:
    """Leaves of nested mappings: `{"a": {"b": 1}}` → `("a.b", 1)`."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, sep=sep, prefix=f"{prefix}{key}{sep}")
        else:
            yield f"{prefix}{key}", value


def group_leaves(values: Mapping[str, object], *, path: str = "") -> dict[str, dict[str, object]]:
    """Leaves, grouped by the mapping that holds them: `{"data.parts.easy": {"env": "textcraft",
    "where.depth": [1]}}`.

    A mapping below `MAX_LEVELS` is part of the mapping above it; a mapping without leaves forms no group.
    """
    is_deep = path.count(".") + 1 == MAX_LEVELS
    leaves = dict(flat(values, sep=".")) if path and is_deep else _leaves(values)
    groups = {path: leaves} if leaves else {}
    if not (path and is_deep):
        for key, value in values.items():
            if isinstance(value, Mapping):
                groups |= group_leaves(value, path=f"{path}.{key}" if path else key)
    return groups


def _leaves(values: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in values.items() if not isinstance(value, Mapping)}


def parameters_of(pipeline: Pipeline) -> dict[str, object]:
    """All parameters of a pipeline by dotted key, as JSON has them."""
    return dict(flat(pipeline.model_dump(mode="json"), sep="."))


def differing_values(first: Mapping[str, T], second: Mapping[str, T]) -> dict[str, tuple[T | None, T | None]]:
    """The keys whose values are not equal: (value in `first`, in `second`), None if absent."""
    values = {key: (first.get(key), second.get(key)) for key in {**first, **second}}
    return {key: (before, after) for key, (before, after) in values.items() if before != after}


def changed_parameters(pipeline: Pipeline, *, default: Pipeline) -> dict[str, tuple[object, object]]:
    """The parameters that differ, by dotted key: (value in `default`, in `pipeline`), None if absent."""
    return differing_values(parameters_of(default), parameters_of(pipeline))


def write_changes(workspace: Path, *, name: str, changes: Mapping[str, tuple[object, object]]) -> None:
    """Write `parameters.json` of a run of pipeline `name`."""
    write_json(workspace / CHANGES, {"pipeline": name, "changed": changes})


def read_pipeline_name(workspace: Path) -> str | None:
    """The name of the pipeline that the run in `workspace` is of; None if it was not recorded."""
    return read_json(workspace / CHANGES).get("pipeline")


def read_changes(workspace: Path) -> dict[str, tuple[object, object]]:
    """The `changed_parameters` of the run in `workspace`; empty if they were not recorded."""
    changes = read_json(workspace / CHANGES).get("changed", {})
    return {key: (before, after) for key, (before, after) in changes.items()}
