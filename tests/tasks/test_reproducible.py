"""Rollouts and updates by turns, twice, with environments that answer in another order each time."""

import asyncio
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from agents.samplers.cpu import CpuSampler
from agents.types import Trajectory
from tasks.rollout.runner import make_runner
from tasks.rollout.spec import make_training_spec
from tests.support.tiny_model import save_tiny_model
from tests.support.verl_toy import register, toy_items, toy_pipeline
from tests.support.verl_update import policy_worker, update

torch = pytest.importorskip("torch")

Turns = list[tuple[tuple[int, ...], tuple[float, ...]]]  # tokens and log-probs of each
Run = tuple[list[Turns], list[dict[str, list[float]]], dict[str, Any]]


@pytest.mark.heavy
def test_two_runs_of_one_seed_are_the_same_to_the_last_bit(verl: ModuleType, tmp_path: Path) -> None:
    model = save_tiny_model(tmp_path / "model")
    register()
    (all_turns, metrics, weights), (played_again, metrics_again, weights_again) = (
        train(model) for _ in range(2)
    )
    assert all_turns == played_again
    assert metrics == metrics_again
    assert all(metric["grad_norm"][0] > 0 for metric in metrics)
    assert all(torch.equal(weights[name], weights_again[name]) for name in weights)


def train(model: Path, *, steps: int = 3) -> Run:
    """What was sampled, verl's metrics of each step, and the weights at the end."""
    from transformers import AutoTokenizer

    pipeline = toy_pipeline(
        model,
        agent__context={"when_full": "drop"},
        rollout__context_length=136,
        train__mini_batches=1,
        train__micro_batch_tokens=256,
    )
    tokenizer = AutoTokenizer.from_pretrained(model)
    all_turns: list[Turns] = []
    metrics = []

    async def play(sampler: CpuSampler, step: int) -> list[list[Trajectory]]:
        runner = make_runner(pipeline, sampler=sampler, tokenizer=tokenizer)
        spec = make_training_spec(pipeline, step=step, evidence={})
        groups = await runner.run(toy_items(4, first=4 * step), spec)
        await runner.close()
        return groups

    with policy_worker(pipeline, model) as worker, closing(CpuSampler(model, context_length=136)) as sampler:
        for step in range(1, steps + 1):
            groups = asyncio.run(play(sampler, step))
            turns = [turn.completion for group in groups for t in group for turn in t.turns]
            all_turns.append([(turn.token_ids, turn.logprobs) for turn in turns])
            update_metrics = update(worker, pipeline, groups)
            metrics.append(
                {name: update_metrics[name] for name in ("actor/pg_loss", "actor/ppo_kl", "grad_norm")}
            )
            parameters, _ = worker.actor.engine.get_per_tensor_param()
            weights = {name: tensor.detach().clone() for name, tensor in parameters}
            asyncio.run(sampler.load_weights(weights, policy_version=step))
    return all_turns, metrics, weights
