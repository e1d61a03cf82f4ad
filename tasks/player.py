"""Plays a pipeline's environments with some sampler: the one place where its settings become an episode's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from agents import group
from agents.context import ContextPolicy
from agents.episode import Rules
from agents.renderer import Renderer
from agents.sampler import Sampler
from agents.schedule import annealed
from agents.speaker import TokenSpeakers
from agents.types import SamplingParams, Trajectory
from envs.manager import EnvManager
from envs.types import Item
from tasks.environments import environments
from tasks.mixture import training_turns
from tasks.ray_envs import over_cluster
from tasks.rules import rules_for
from tasks.settings import Pipeline

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """How some items are played once; it goes unchanged to whoever holds the sampler."""

    name: str
    """This play's own: the sampler's draws depend on it (`agents/group.py`)."""
    max_turns: Mapping[str, int]
    """Of an episode, by part of the pipeline's data."""
    chains: int
    """Episodes per item."""
    temperature: float
    """0 is greedy."""


def training_play(pipeline: Pipeline, *, step: int) -> Play:
    """How the items of training step `step` (from 1) are played."""
    rollout = pipeline.rollout
    last = rollout.temperature if rollout.final_temperature is None else rollout.final_temperature
    return Play(
        name=f"train {step}",
        max_turns=training_turns(pipeline, step=step),
        chains=rollout.group_size,
        temperature=annealed(step, first=rollout.temperature, last=last, steps=pipeline.train.steps),
    )


class Player:
    """Episodes of `pipeline`, in whichever event loop awaits them; one loop only."""

    def __init__(self, pipeline: Pipeline, *, sampler: Sampler, tokenizer: "PreTrainedTokenizerBase") -> None:
        specs = environments(pipeline)
        self._data = pipeline.data
        self._rollout = pipeline.rollout
        self._sampler = sampler
        self._renderer = Renderer(tokenizer)
        self._context = ContextPolicy(**dict(pipeline.agent.context))
        self._rules = {spec.name: rules_for(spec, pipeline, tokenizer=tokenizer) for spec in specs}
        self._envs = EnvManager(specs, capacity=pipeline.rollout.max_live_envs, spread=over_cluster())

    async def play(self, items: Sequence[Item], play: Play) -> list[list[Trajectory]]:
        """One group per item, in order."""
        rollout = self._rollout

        def rules_of(item: Item) -> Rules:
            part = self._data.part_of(item)
            assert part is not None  # files of items are checked when they are read
            rules = self._rules[item.env]
            return replace(rules, limits=replace(rules.limits, max_turns=play.max_turns[part]))

        return await group.play(
            items,
            name=play.name,
            chains=play.chains,
            envs=self._envs,
            speakers=TokenSpeakers(
                sampler=self._sampler,
                renderer=self._renderer,
                sampling=SamplingParams(
                    max_tokens=rollout.max_tokens_per_turn,
                    temperature=play.temperature,
                    top_p=rollout.top_p,
                    top_k=rollout.top_k,
                ),
                context=self._context,
            ),
            rules_of=rules_of,
            max_attempts=rollout.max_attempts,
        )

    async def close(self) -> None:
        """Close the environments."""
        await self._envs.close()
