"""Plays a pipeline's items by its agent: the one place where its settings become an episode's.

Where the pipeline names a program, it is played by `tasks/rollout/program_runner.py`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from agents.clients.endpoint import ChatClient
from agents.horizon import anneal
from agents.prompting.renderer import Renderer
from agents.rewards.types import check_items
from agents.rollout import group
from agents.rollout.chat_conversation import ChatSpeakers
from agents.rollout.context import ContextPolicy
from agents.rollout.conversation import Speakers, TokenSpeakers
from agents.rollout.episode import Rules
from agents.rollout.group import OnOpening, OnTurn
from agents.samplers.sampler import Sampler
from agents.types import SamplingParams, Trajectory
from envs.errors import ConfigError
from envs.runtime.manager import EnvManager
from envs.runtime.metrics import PoolMetrics
from envs.types import Item
from tasks.cluster.envs import find_cluster_host
from tasks.config.environments import environments
from tasks.config.episodes import check_vision, rules_for
from tasks.config.settings import Pipeline
from tasks.data.mixture import training_turns

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, ProcessorMixin


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """How some items are played once; it goes unchanged to whoever holds the sampler."""

    name: str
    """This play's own: the sampler's draws depend on it (`agents/rollout/group.py`)."""
    max_turns: Mapping[str, int]
    """Of an episode, by part of the pipeline's data."""
    num_samples: int
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
        num_samples=rollout.group_size,
        temperature=anneal(step, first=rollout.temperature, last=last, steps=pipeline.train.steps),
    )


def max_turns_of(item: Item, pipeline: Pipeline, play: Play) -> int:
    """Turns that an episode of `item` may have in `play`."""
    part = pipeline.data.part_of(item)
    assert part is not None  # files of items are checked when they are read
    return play.max_turns[part]


class PipelinePlayer(ABC):
    """Plays items of a pipeline, in whichever event loop awaits it; one loop only."""

    @abstractmethod
    def check(self, items: Sequence[Item]) -> None:
        """Raise `ConfigError` or `MissingDependency` for rewards that cannot be computed for `items`."""

    @abstractmethod
    async def play(
        self,
        items: Sequence[Item],
        play: Play,
        *,
        on_opening: OnOpening | None = None,
        on_turn: OnTurn | None = None,
        on_trajectory: Callable[[Trajectory], None] | None = None,
    ) -> list[list[Trajectory]]:
        """One group per item, in order; the callbacks are those of `agents.rollout.group.play`."""

    @abstractmethod
    async def warm_up(self) -> None:
        """Start what a step of training will want and what takes long to start."""

    @property
    @abstractmethod
    def environments(self) -> Mapping[str, PoolMetrics]:
        """By name, what their pools have counted so far."""

    @abstractmethod
    async def close(self) -> None:
        """Give back what it holds."""


class AgentPlayer(PipelinePlayer):
    """By the pipeline's own agent, in its environments."""

    def __init__(self, pipeline: Pipeline, *, tokenizer: "PreTrainedTokenizerBase | None") -> None:
        """`tokenizer`: see `rules_for`."""
        specs = environments(pipeline)
        self._pipeline = pipeline
        self._rules = {spec.name: rules_for(spec, pipeline, tokenizer=tokenizer) for spec in specs}
        self._slow_to_start = [spec.name for spec in specs if spec.isolation != "none"]
        most = pipeline.rollout.max_live_envs
        self._envs = EnvManager(specs, capacity=most, total=most, remote_host=find_cluster_host())

    def check(self, items: Sequence[Item]) -> None:
        """See `PipelinePlayer`."""
        for env, rules in self._rules.items():
            if rules.reward is not None:
                check_items(rules.reward, (item for item in items if item.env == env))

    @abstractmethod
    def _speakers(self, sampling: SamplingParams) -> Speakers:
        """Of the model that plays."""

    async def play(
        self,
        items: Sequence[Item],
        play: Play,
        *,
        on_opening: OnOpening | None = None,
        on_turn: OnTurn | None = None,
        on_trajectory: Callable[[Trajectory], None] | None = None,
    ) -> list[list[Trajectory]]:
        """See `PipelinePlayer`."""

        def rules_of(item: Item) -> Rules:
            rules = self._rules[item.env]
            turns = max_turns_of(item, self._pipeline, play)
            return replace(rules, limits=replace(rules.limits, max_turns=turns))

        return await group.play(
            items,
            name=play.name,
            num_samples=play.num_samples,
            envs=self._envs,
            speakers=self._speakers(self._pipeline.rollout.sampling(temperature=play.temperature)),
            rules_of=rules_of,
            max_attempts=self._pipeline.rollout.max_attempts,
            on_opening=on_opening,
            on_turn=on_turn,
            on_trajectory=on_trajectory,
        )

    async def warm_up(self) -> None:
        """See `PipelinePlayer`: instances that are processes, also in the place of those that have ended."""
        rollout = self._pipeline.rollout
        num_samples = rollout.items_per_step * rollout.group_size
        for env in self._slow_to_start:
            await self._envs.warm_up(env, -(-num_samples // len(self._rules)))

    @property
    def environments(self) -> Mapping[str, PoolMetrics]:
        """See `PipelinePlayer`."""
        return self._envs.metrics

    async def close(self) -> None:
        """Close the environments."""
        await self._envs.close()


class Player(AgentPlayer):
    """With a sampler, by tokens: all that is trained on is played so."""

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        sampler: Sampler,
        tokenizer: "PreTrainedTokenizerBase",
        processor: "ProcessorMixin | None" = None,
    ) -> None:
        """`processor`: of a model that sees."""
        super().__init__(pipeline, tokenizer=tokenizer)
        self._sampler = sampler
        self._renderer = Renderer(tokenizer, processor)
        self._has_vision = processor is not None
        self._context = pipeline.agent.context

    def check(self, items: Sequence[Item]) -> None:
        """See `PipelinePlayer`; raises `ConfigError` for pictures, too, where the model reads text only."""
        super().check(items)
        check_vision(items, has_vision=self._has_vision)

    def _speakers(self, sampling: SamplingParams) -> TokenSpeakers:
        return TokenSpeakers(
            sampler=self._sampler, renderer=self._renderer, sampling=sampling, context=self._context
        )


class ChatPlayer(AgentPlayer):
    """With the model of an endpoint, by messages."""

    def __init__(self, pipeline: Pipeline, *, client: ChatClient) -> None:
        """Raises `ConfigError` for a program and for a context policy, which need the tokens."""
        if pipeline.agent.program is not None:
            raise ConfigError(
                f"agent.program {pipeline.agent.program!r} plays through the gateway, in front of a policy "
                "whose tokens are known; give --policy FOLDER in the place of --endpoint"
            )
        for key, value in pipeline.agent.context:
            if value != ContextPolicy.model_fields[key].default:
                raise ConfigError(
                    f"agent.context.{key}={value}: what an endpoint's model sees is the whole conversation; "
                    "leave agent.context out"
                )
        super().__init__(pipeline, tokenizer=None)
        self._client = client

    def _speakers(self, sampling: SamplingParams) -> ChatSpeakers:
        return ChatSpeakers(client=self._client, sampling=sampling)
