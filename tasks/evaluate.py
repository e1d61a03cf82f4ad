"""Stage `evaluate`: the test split, played by the policy before and after training.

Each plays every test item `samples_per_item` times at `evaluate.temperature` and once greedily, with
the same limits. On a CPU both policies play side by side, each with a sampler in a process of its own;
elsewhere verl's generation servers are brought up with one after the other, and nothing is trained.
"""

import asyncio
import json
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Protocol

from agents.types import Trajectory
from envs.errors import ConfigError, WingspanError
from envs.types import Item
from tasks.files import write_atomically
from tasks.items import read_items
from tasks.settings import Pipeline
from tasks.trajectories import summarise, write_trajectories


class Play(Protocol):
    """Plays groups with one policy."""

    def __call__(
        self, items: Sequence[Item], *, name: str, chains: int, temperature: float
    ) -> list[list[Trajectory]]:
        """`Player.play` with the evaluation's horizon."""
        ...


def evaluate(pipeline: Pipeline, workspace: Path) -> None:
    """Write `evaluation.json` and `evaluation_trajectories.jsonl`.

    The first: `{"before" | "after": {"sampled" | "greedy": <tasks.trajectories.summarise>}}`. The
    second: of every item, policy and mode the first trajectory, whose `metrics` say which they were.
    Policy versions are training steps: 0 before, the last one after. Raises `ConfigError` where a
    policy is missing.
    """
    items = read_items(workspace / "data" / "test.jsonl", env=pipeline.data.env)
    start = workspace / "warmup" if pipeline.warmup else pipeline.model
    policies = {
        "before": _Policy(name="before", model=start, version=0),
        "after": _Policy(name="after", model=workspace / "policy", version=pipeline.train.steps),
    }
    for policy in policies.values():
        if isinstance(policy.model, Path) and not (policy.model / "config.json").exists():
            raise ConfigError(
                f"no model in {policy.model}; run the stage that writes it, warmup or train, first"
            )
    work = partial(_evaluate_policy, pipeline, workspace, items)
    if pipeline.backend.rollout == "cpu":
        # One core each; of a fresh interpreter, for a fork of torch's threads would hang.
        with ProcessPoolExecutor(len(policies), mp_context=get_context("spawn")) as processes:
            try:
                results = list(processes.map(work, policies.values()))
            except BrokenProcessPool as error:
                raise WingspanError(
                    f"evaluation: a process died, for want of memory perhaps: {error}"
                ) from None
    else:
        results = [work(policy) for policy in policies.values()]
    summaries = {name: found for name, (found, _) in zip(policies, results, strict=True)}
    write_trajectories(workspace / "evaluation_trajectories.jsonl", [t for _, kept in results for t in kept])
    write_atomically(workspace / "evaluation.json", json.dumps(summaries, indent=2) + "\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Policy:
    name: str
    model: Path | str
    version: int


def _evaluate_policy(
    pipeline: Pipeline, workspace: Path, items: Sequence[Item], policy: _Policy
) -> tuple[dict[str, dict[str, float]], list[Trajectory]]:
    """Summaries by mode, and the trajectories to keep."""
    summaries: dict[str, dict[str, float]] = {}
    kept: list[Trajectory] = []
    with _player(pipeline, model=str(policy.model), workspace=workspace) as play:
        for mode, temperature in {"sampled": pipeline.evaluate.temperature, "greedy": 0.0}.items():
            chains = pipeline.evaluate.samples_per_item if mode == "sampled" else 1
            groups = play(items, name=mode, chains=chains, temperature=temperature)
            summaries[mode] = summarise([t for group in groups for t in group])
            kept += [
                _labelled(group[0], policy=policy.name, mode=mode, version=policy.version) for group in groups
            ]
    return summaries, kept


def _labelled(trajectory: Trajectory, *, policy: str, mode: str, version: int) -> Trajectory:
    # A sampler that was started with a policy's files counts its versions from there.
    turns = [
        replace(turn, completion=replace(turn.completion, policy_version=version))
        for turn in trajectory.turns
    ]
    return replace(trajectory, turns=turns, metrics={**trajectory.metrics, "policy": policy, "mode": mode})


@contextmanager
def _player(pipeline: Pipeline, *, model: str, workspace: Path) -> Iterator[Play]:
    on_servers = pipeline.backend.rollout == "vllm"
    with (_servers if on_servers else _sampler)(pipeline, model=model, workspace=workspace) as play:
        yield play


@contextmanager
def _sampler(pipeline: Pipeline, *, model: str, workspace: Path) -> Iterator[Play]:
    """Play with the CPU sampler, in this process."""
    from transformers import AutoTokenizer

    from agents.sampler_cpu import CpuSampler
    from tasks.player import Player

    tokenizer = AutoTokenizer.from_pretrained(model)
    sampler = CpuSampler(
        model,
        context_length=pipeline.rollout.context_length,
        max_sequences=pipeline.backend.max_sequences,
        seed=pipeline.seed,
    )

    async def gather(items: Sequence[Item], **how: Any) -> list[list[Trajectory]]:
        player = Player(pipeline, sampler=sampler, tokenizer=tokenizer)
        try:
            return await player.play(items, max_turns=pipeline.evaluate.max_turns, **how)
        finally:
            await player.close()

    def play(items: Sequence[Item], *, name: str, chains: int, temperature: float) -> list[list[Trajectory]]:
        return asyncio.run(gather(items, name=name, chains=chains, temperature=temperature))

    try:
        yield play
    finally:
        sampler.close()


@contextmanager
def _servers(pipeline: Pipeline, *, model: str, workspace: Path) -> Iterator[Play]:
    """Play with the generation servers that training would use, on a training process of its own."""
    import ray

    from tasks.ray_session import connect_ray
    from tasks.trainer import Trainer, environment_of

    owns_ray = connect_ray(pipeline)
    with tempfile.TemporaryDirectory() as no_checkpoints:
        trainer: Any = (
            ray.remote(Trainer)
            .options(num_cpus=0, runtime_env={"env_vars": environment_of(pipeline)})
            .remote(
                pipeline,
                model=model,
                items=str((workspace / "data" / "train.jsonl").resolve()),
                checkpoints=no_checkpoints,
            )
        )

        def play(
            items: Sequence[Item], *, name: str, chains: int, temperature: float
        ) -> list[list[Trajectory]]:
            turns = pipeline.evaluate.max_turns
            groups = trainer.play.remote(
                items, name=name, max_turns=turns, chains=chains, temperature=temperature
            )
            found: list[list[Trajectory]] = ray.get(groups)
            return found

        try:
            ray.get(trainer.start.remote())
            yield play
        finally:
            ray.kill(trainer)
            if owns_ray:
                ray.shutdown()
