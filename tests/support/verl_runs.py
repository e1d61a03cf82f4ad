"""What tests of real training share: sessions in a Ray that knows the toy, what a kill must not change."""

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import psutil
import pytest
import torch

from tasks.cluster import session as ray_session
from tasks.data.items import write_items
from tasks.data.trajectories import read_trajectories
from tests.support.tiny_model import save_tiny_model
from tests.support.verl_toy import register, toy_items

ROOT = Path(__file__).parents[2]


def prepare_toy_run(monkeypatch: pytest.MonkeyPatch, workspace: Path) -> Path:
    """Let sessions start a Ray of the test's defaults, whose workers know the toy environment, and write its
    items to `workspace`; returns the folder of a tiny model there."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    for name in ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    hook = {"worker_process_setup_hook": "tests.support.verl_toy.register"}
    monkeypatch.setattr(
        ray_session, "start_local_ray", partial(ray_session.start_local_ray, runtime_env=hook)
    )
    register()
    write_items(workspace / "data" / "train.jsonl", toy_items(12))
    write_items(workspace / "data" / "test.jsonl", toy_items(4, first=100))
    return save_tiny_model(workspace / "model")


def sampled_tokens(file: Path) -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
    """Of each turn of a file of trajectories: its tokens and their log-probs."""
    turns = [turn.completion for trajectory in read_trajectories(file) for turn in trajectory.turns]
    return [(turn.token_ids, turn.logprobs) for turn in turns]


def are_equal(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    """Whether these are the same tensors, to the last bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


class Repeats:
    """Compares steps that are trained again with what they were, to the last bit."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._steps: dict[int, tuple[dict[str, float], list[tuple[tuple[int, ...], tuple[float, ...]]]]] = {}
        self.count = 0

    def compare(self, values: Mapping[str, float]) -> None:
        """`values`: the metrics of a step."""
        step = int(values["step"])
        metrics = reproducible_metrics(values)
        completions = sampled_tokens(self._folder / "trajectories" / f"step_{step:04d}.jsonl")
        if step in self._steps:
            self.count += 1
            assert (metrics, completions) == self._steps[step]
        self._steps[step] = metrics, completions


def reproducible_metrics(values: Mapping[str, float]) -> dict[str, float]:
    """The metrics of a step that neither measure time nor depend on what the watch is told to look for."""
    others = ("seconds", "tokens_per_s", "mfu", "idle_cores", "env", "alerts", "time")
    return {name: value for name, value in values.items() if not name.startswith(others)}


def checkpoint_tensors(checkpoint: Path) -> dict[str, torch.Tensor]:
    """Weights and moments of a checkpoint, by file and name."""
    tensors = {}
    for file in [*checkpoint.rglob("model_*.pt"), *checkpoint.rglob("optim_*.pt")]:
        leaves = torch.utils._pytree.tree_leaves(torch.load(file, weights_only=False))
        leaf_tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        assert leaf_tensors
        for number, tensor in enumerate(leaf_tensors):
            whole = tensor.to_local() if hasattr(tensor, "to_local") else tensor
            tensors[f"{file.name}/{number}"] = whole
    return tensors


def pid_of_trainer() -> int:
    children = psutil.Process().children(recursive=True)
    [trainer] = [p for p in children if p.cmdline()[:1] and p.cmdline()[0].startswith("ray::Trainer")]
    return int(trainer.pid)
