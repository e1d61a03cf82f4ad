"""Stage `evaluate`: the test split, played by the policy before and after training.

Each plays every test item `samples_per_item` times at the training temperature and once greedily, with
the same limits. On a CPU the sampler runs in this process; elsewhere verl's generation servers are
brought up with the policy as their model, and nothing is trained.
"""

import asyncio
import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from agents.types import Trajectory
from envs.errors import ConfigError
from envs.types import Item
from tasks.files import write_atomically
from tasks.items import read_items
from tasks.settings import Pipeline
from tasks.trajectories import summarise, write_trajectories

MODES = {"sampled": None, "greedy": 0.0}
"""How the policy plays → temperature; None is the training temperature."""


class Play(Protocol):
    """Plays groups with one policy."""

    def __call__(
        self, items: Sequence[Item], *, chains: int, temperature: float | None
    ) -> list[list[Trajectory]]:
        """One group of `chains` trajectories per item, in order."""
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
    summaries: dict[str, dict[str, dict[str, float]]] = {}
    kept: list[Trajectory] = []
    for policy, model in {"before": start, "after": workspace / "policy"}.items():
        if isinstance(model, Path) and not (model / "config.json").exists():
            raise ConfigError(f"no model in {model}; run the stage that writes it, warmup or train, first")
        summaries[policy] = {}
        with _player(pipeline, model=str(model), workspace=workspace) as play:
            for mode, temperature in MODES.items():
                chains = pipeline.evaluate.samples_per_item if mode == "sampled" else 1
                groups = play(items, chains=chains, temperature=temperature)
                summaries[policy][mode] = summarise([t for group in groups for t in group])
                version = pipeline.train.steps if policy == "after" else 0
                kept += [_labelled(group[0], policy=policy, mode=mode, version=version) for group in groups]
    write_trajectories(workspace / "evaluation_trajectories.jsonl", kept)
    write_atomically(workspace / "evaluation.json", json.dumps(summaries, indent=2) + "\n")


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

    from agents.episode import Agent, EpisodeLimits
    from agents.group import play as play_groups
    from agents.parser import PARSERS
    from agents.renderer import Renderer
    from agents.sampler_cpu import CpuSampler
    from agents.types import SamplingParams
    from envs.pool import EnvPool
    from envs.registry import get_env

    spec, rollout = get_env(pipeline.data.env), pipeline.rollout
    agent = Agent(
        renderer=Renderer(AutoTokenizer.from_pretrained(model)),
        parse=PARSERS[pipeline.agent.parser],
        instructions=spec.instructions if pipeline.agent.instructions else None,
    )
    sampler = CpuSampler(
        model,
        context_length=rollout.context_length,
        max_sequences=pipeline.backend.max_sequences,
        seed=pipeline.seed,
    )
    limits = EpisodeLimits(
        max_turns=pipeline.evaluate.max_turns,
        max_tokens_per_turn=rollout.max_tokens_per_turn,
        context_length=rollout.context_length,
        episode_timeout_s=rollout.episode_timeout_s,
        step_timeout_s=rollout.step_timeout_s,
    )

    async def gather(items: Sequence[Item], chains: int, temperature: float) -> list[list[Trajectory]]:
        pool = EnvPool(spec.make, capacity=rollout.max_live_envs)
        try:
            return await play_groups(
                items,
                chains=chains,
                pool=pool,
                sampler=sampler,
                agent=agent,
                limits=limits,
                sampling=SamplingParams(
                    max_tokens=rollout.max_tokens_per_turn,
                    temperature=temperature,
                    top_p=rollout.top_p,
                    top_k=rollout.top_k,
                ),
                max_attempts=rollout.max_attempts,
            )
        finally:
            await pool.close()

    def play(items: Sequence[Item], *, chains: int, temperature: float | None) -> list[list[Trajectory]]:
        return asyncio.run(gather(items, chains, rollout.temperature if temperature is None else temperature))

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

        def play(items: Sequence[Item], *, chains: int, temperature: float | None) -> list[list[Trajectory]]:
            turns = pipeline.evaluate.max_turns
            groups = trainer.play.remote(items, max_turns=turns, chains=chains, temperature=temperature)
            found: list[list[Trajectory]] = ray.get(groups)
            return found

        try:
            ray.get(trainer.start.remote())
            yield play
        finally:
            ray.kill(trainer)
            if owns_ray:
                ray.shutdown()
