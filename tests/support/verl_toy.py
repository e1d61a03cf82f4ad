"""An environment that a random model gets uneven rewards from, and the pipeline that trains on it."""

import asyncio
import pickle
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agents.types import Trajectory
from envs.registry import EnvSpec, ExpertStep, Split, register_env
from envs.types import Item, StepResult
from tasks.config.pipelines import Pipeline
from tasks.rollout.history import History
from tasks.rollout.spec import make_training_spec
from tasks.rollout.step import StepSample

TURNS = 4


class ParityEnv:
    """Four turns; reward 1 if what was said in all of them has an even number of characters."""

    async def reset(self, item: Item) -> str:
        self._actions, self._turns = "", 0
        return f"Speak, {item.item_id}!"

    async def step(self, action: str) -> StepResult:
        # another order of arrival in every run, which nothing may depend on
        await asyncio.sleep(random.SystemRandom().uniform(0, 0.02))
        self._actions += action
        self._turns += 1
        done = self._turns == TURNS
        success = done and len(self._actions) % 2 == 0
        return StepResult("Go on.", reward=float(success), terminated=done, success=success)

    async def close(self) -> None: ...


def _split(seed: int) -> Split:
    return Split(train=toy_items(12), test=toy_items(4, first=100))


def _expert(item: Item) -> Sequence[ExpertStep]:
    return [
        ExpertStep(thought="", action="one"),
        ExpertStep(thought="two", action="two"),
        ExpertStep(thought="", action="even"),
        ExpertStep(thought="", action="done"),
    ]


SPEC = EnvSpec(
    name="parity", make=ParityEnv, split=_split, expert=_expert, instructions="Say anything.", packages=()
)


def write_sample_ahead(
    folder: Path, pipeline: Pipeline, *, step: int, groups: Sequence[list[Trajectory]]
) -> None:
    """Write what `RolloutManager.restore_ahead` reads in the checkpoint `folder`: a sample of `groups` for
    `step`, of which nothing was replaced."""
    sample = StepSample(
        step=step,
        seed=pipeline.seed,
        spec=make_training_spec(pipeline, step=step, evidence={}),
        groups=[*groups],
        batch=[*groups],
        num_replaced=0,
        added_groups=[],
        greedy_rewards=[None] * len(groups),
        raise_reason="",
        pools={},
        history=History(),
        seconds=1.0,
    )
    (folder / "ahead.pickle").write_bytes(pickle.dumps(sample))


def toy_items(count: int, *, first: int = 0) -> list[Item]:
    """Items of depth 1 and 2 by turns."""
    return [
        Item(item_id=f"parity_{i}", env="parity", metadata={"depth": 1 + i % 2})
        for i in range(first, first + count)
    ]


def register() -> None:
    """Make the environment known in this process; Ray calls it in every worker process."""
    register_env(SPEC)


def toy_pipeline(model: Path, **overrides: object) -> Pipeline:
    """A pipeline of seconds; `overrides` by dotted key."""
    values: dict[str, Any] = {
        "model": str(model),
        "data": {"parts": {"parity": {}}},
        "agent": {"instructions": False},
        "warmup": None,
        "rollout": {
            "items_per_step": 4,
            "group_size": 4,
            "temperature": 1.3,
            "final_temperature": 1.0,
            "max_tokens_per_turn": 8,
            "context_length": 160,
            "episode_timeout_s": 60,
            "step_timeout_s": 5,
            "max_live_envs": 64,
        },
        "train": {
            "algorithm": "grpo",
            "steps": 4,
            "steps_per_round": 2,
            "save_every": 2,
            "lr": 1e-3,
            "mini_batches": 2,
            "micro_batch_tokens": 1024,
        },
        "horizon": {"type": "fixed", "max_turns": [4]},
        "evaluate": {"max_turns": 4, "samples_per_item": 1, "quick_items": 4},
        "backend": {"device": "cpu", "rollout": "cpu"},
    }
    for key, value in overrides.items():
        block, _, name = key.partition("__")
        if name:
            values[block][name] = value
        else:
            values[block] = value
    return Pipeline.model_validate(values)
