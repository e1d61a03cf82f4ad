"""The training steps that a run has recorded: `train/metrics.jsonl`, one a line."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from envs.errors import DamagedFile
from envs.files import read_json_lines
from tasks.runs.folders import STEPS

_TEXTS = {"horizon_reason"}
"""The keys whose values are texts; all others are numbers."""


def read_steps(workspace: Path, *, is_growing: bool = False) -> list[dict[str, Any]]:
    """The steps of the run in `workspace`, ascending; none before the first.

    `is_growing`: the run may be writing a line, which is left out. Raises `DamagedFile` for a line that is no
    object, has no `step`, or has another value where a number or a text belongs.
    """
    file = workspace / STEPS
    steps = read_json_lines(file, is_growing=is_growing)
    for number, values in enumerate(steps, start=1):
        if reason := _find_mistake(values):
            raise DamagedFile(
                f"line {number} of {file} is damaged ({reason}); restore the file, or delete the line"
            )
    return steps


def _find_mistake(values: Mapping[str, object]) -> str:
    """What is wrong with a step; empty if nothing is."""
    if not isinstance(values.get("step"), int):
        return "its step is no integer"
    for key, value in values.items():
        if not isinstance(value, str if key in _TEXTS else int | float):
            return f"its {key} is no {'text' if key in _TEXTS else 'number'}"
    return ""
