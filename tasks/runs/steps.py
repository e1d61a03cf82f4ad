"""The training steps that a run has recorded: `train/metrics.jsonl`, one a line."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from envs.files import damaged_line, read_json_lines
from tasks.runs.folders import STEPS

_TEXTS = {"horizon_reason"}
"""The keys whose values are texts; all others are numbers."""


def read_steps(
    workspace: Path, *, keys: Collection[str] = (), is_growing: bool = False
) -> list[dict[str, Any]]:
    """The steps of the run in `workspace`, ascending; none before the first.

    `keys`: the caller needs these in each. `is_growing`: the run may be writing a line, which is left out.
    Raises `DamagedFile` for a line that is no object, lacks `step` or one of `keys`, or has another value
    where a number or a text belongs.
    """
    file = workspace / STEPS
    steps = read_step_lines(file, is_growing=is_growing)
    for number, values in enumerate(steps, start=1):
        if reason := _find_mistake(values, keys):
            raise damaged_line(number, file, reason)
    return steps


def read_step_lines(file: Path, *, is_growing: bool = False) -> list[dict[str, Any]]:
    """The objects of a file that has one a line, each of a `step`. Raises `DamagedFile`."""
    lines = read_json_lines(file, is_growing=is_growing)
    for number, values in enumerate(lines, start=1):
        if not isinstance(values.get("step"), int):
            raise damaged_line(number, file, "its step is no integer")
    return lines


def _find_mistake(values: Mapping[str, object], keys: Collection[str]) -> str:
    """What is wrong with a step; empty if nothing is."""
    for key in keys:
        if key not in values:
            return f"it has no {key}"
    for key, value in values.items():
        if not isinstance(value, str if key in _TEXTS else int | float):
            return f"its {key} is no {'text' if key in _TEXTS else 'number'}"
    return ""
