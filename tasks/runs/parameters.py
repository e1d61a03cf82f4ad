"""Reads the small files of a run, even while the run writes them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agents.huggingface.files import find_tokenizer
from envs.files import read_json
from tasks.config.parameters import flat
from tasks.runs.folders import RunFolder
from tasks.runs.lines import parse_json

ALL_PARAMETERS = "parameters.json"
"""The file in the folder of the report with all parameters of the run."""


def recorded_parameters(folder: Path) -> dict[str, Any]:
    """All parameters, as far as they are recorded: while training runs, its own; in the end, all."""
    interrupted_params = try_read_json(folder / "train" / "inputs.json").get("params")
    return {
        **(interrupted_params if isinstance(interrupted_params, dict) else {}),
        **try_read_json(folder / "report" / ALL_PARAMETERS),
    }


def read_parameters(workspace: Path) -> Mapping[str, Any]:
    """The parameters of the run of `workspace` by dotted key; empty where its report did not record them."""
    return dict(flat(read_json(workspace / "report" / ALL_PARAMETERS), sep="."))


def find_run_tokenizer(run: RunFolder) -> Path | None:
    """The tokenizer of the run's policy: of the trained one, or of what training begins with."""
    if run.file is not None:
        return None
    model = recorded_parameters(run.folder).get("model")
    folders = [run.folder / name for name in ("policy", "train/best", "warmup")]
    return find_tokenizer(*folders, *([model] if isinstance(model, str) else []))


def try_read_json(path: Path) -> dict[str, Any]:
    """The object of a JSON file; empty if there is none, or if it is not complete yet."""
    try:
        values = parse_json(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}


def try_read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSONL file; lines that are not complete yet are left out."""
    lines = []
    try:
        content = path.read_bytes()
    except OSError:
        return []
    for line in content.splitlines():
        try:
            values = parse_json(line)
        except ValueError:
            continue
        if isinstance(values, dict):
            lines.append(values)
    return lines
