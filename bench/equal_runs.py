"""Runs that must be equal to the last bit: their command, their steps, their comparison."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from envs.files import read_json, read_json_lines
from tests.support.verl_runs import are_equal, checkpoint_tensors, reproducible_metrics, sampled_tokens


def command(pipeline: str, workspace: Path, *, settings: Sequence[str]) -> list[str]:
    """`wingspan run` in `workspace`; `settings`: as its `--set` takes them."""
    wingspan = Path(sys.executable).with_name("wingspan")
    line = [str(wingspan), "run", pipeline, "--workspace", str(workspace)]
    return [*line, *(part for setting in settings for part in ("--set", setting))]


def start(
    line: Sequence[str], *, log: Path, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a command that appends its output to `log`."""
    with log.open("ab") as output:
        return subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment)


def read_steps(workspace: Path) -> list[dict[str, float]]:
    """The metrics of the finished steps."""
    return read_json_lines(workspace / "train" / "metrics.jsonl")


def compare(one: Path, other: Path, *, steps: int) -> dict[str, Any]:
    """What is equal in two workspaces: each step's metrics (without times and counts of processes), the
    tokens and log-probs of steps and quick evaluations, what updates computed about them, the results of
    evaluations, and the tensors of the last checkpoint and of the policy."""
    from safetensors.torch import load_file

    folders = (one, other)
    metrics = [[reproducible_metrics(values) for values in read_steps(workspace)] for workspace in folders]
    evaluations = [_read_evaluations(workspace) for workspace in folders]
    checkpoints = [
        checkpoint_tensors(workspace / "train" / "checkpoints" / f"global_step_{steps}")
        for workspace in folders
    ]
    policies = [load_file(workspace / "policy" / "model.safetensors") for workspace in folders]
    samples = [
        [sampled_tokens(file) for kind in ("step", "round") for file in _find_files(workspace, kind)]
        for workspace in folders
    ]
    updates = [[read_json_lines(file) for file in _find_files(workspace, "update")] for workspace in folders]
    return {
        "steps": [len(lines) for lines in metrics],
        "tokens": sum(len(ids) for turns in samples[0] for ids, _ in turns),
        "metrics_equal": metrics[0] == metrics[1],
        "samples_equal": samples[0] == samples[1],
        "updates_equal": updates[0] == updates[1],
        "evaluations_equal": evaluations[0] == evaluations[1],
        "checkpoints_equal": are_equal(*checkpoints),
        "policies_equal": are_equal(*policies),
    }


def _find_files(workspace: Path, kind: str) -> list[Path]:
    return sorted((workspace / "train" / "trajectories").glob(f"{kind}_*.jsonl"))


def _read_evaluations(workspace: Path) -> list[Any]:
    """Of each round, then of the policies before and after training."""
    rounds = sorted((workspace / "train" / "rounds").glob("*.json"))
    evaluations = [read_json(file)["evaluation"] for file in rounds]
    return [*evaluations, read_json(workspace / "evaluation.json")]
