"""Plays a pipeline's items by its agent: the one place where its settings become an episode's.

Where the pipeline names a program, it is played by `tasks/rollout/program_runner.py`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from agents.clients.endpoint import ChatClient
from agents.horizon import anneal
from agents.prompting.renderer import Renderer
from agents.rewards.types import check_items
from agents.rollout import group
from agents.rollout.chat_conversation import ChatConversation
from agents.rollout.context import ContextPolicy
from agents.rollout.conversation import StartConversation, TokenConversation
from agents.rollout.episode import EpisodeConfig
from agents.rollout.group import OnOpening, OnTurn
from agents.samplers.sampler import Sampler
from agents.types import SamplingParams, Trajectory
from envs.errors import ConfigError
from envs.runtime.manager import EnvManager
from envs.runtime.metrics import PoolMetrics
from envs.types import Item
from tasks.cluster.envs import find_cluster_host
from tasks.config.environments import environments
from tasks.config.episodes import check_vision, make_episode_config
from tasks.config.settings import Pipeline
from tasks.data.mixture import training_turns

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, ProcessorMixin


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSpec:
    """How some items are played once; it goes unchanged to whoever holds the sampler."""

    name: str
    """Unique per rollout: the sampler's draws depend on it (`agents/rollout/group.py`)."""
    max_turns: Mapping[str, int]
    """Of an episode, by part of the pipeline's data."""
    num_samples: int
    """Episodes per item."""
    temperature: float
    """0 is greedy."""


def make_training_spec(pipeline: Pipeline, *, step: int) -> RolloutSpec:
    """How the items of training step `step` (from 1) are played."""
    rollout = pipeline.rollout
    last = rollout.temperature if rollout.final_temperature is None else rollout.final_temperature
    return RolloutSpec(
        name=f"train {step}",
        max_turns=training_turns(pipeline, step=step),
        num_samples=rollout.group_size,
        temperature=anneal(step, first=rollout.temperature, last=last, steps=pipeline.train.steps),
    )


def get_max_turns(item: Item, pipeline: Pipeline, spec: RolloutSpec) -> int:
    """Turns that an episode of `item` may have in `spec`."""
    part = pipeline.data.part_of(item)
    assert part is not None  # files of items are checked when they are read
    return spec.max_turns[part]


class RolloutRunner(ABC):
    """Plays items of a pipeline, in whichever event loop awaits it; one loop only."""

    @abstractmethod
    def check(self, items: Sequence[Item]) -> None:
        """Raise `ConfigError` or `MissingDependency` for rewards that cannot be computed for `items`."""

    @abstractmethod
    async def run(
        self,
        items: Sequence[Item],
        spec: RolloutSpec,
        *,
        on_opening: OnOpening | None = None,
        on_turn: OnTurn | None = None,
        on_trajectory: Callable[[Trajectory], None] | None = None,
    ) -> list[list[Trajectory]]:
        """One group per item, in order; the callbacks are those of `agents.rollout.group.run_groups`."""

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


class AgentRunner(RolloutRunner):
    """By the pipeline's own agent, in its environments."""

    def __init__(self, pipeline: Pipeline, *, tokenizer: "PreTrainedTokenizerBase | None") -> None:
        """`tokenizer`: see `make_episode_config`."""
        specs = environments(pipeline)
        self._pipeline = pipeline
        self._configs = {
            spec.name: make_episode_config(spec, pipeline, tokenizer=tokenizer) for spec in specs
        }
        self._slow_to_start = [spec.name for spec in specs if spec.isolation != "none"]
        most = pipeline.rollout.max_live_envs
        self._envs = EnvManager(specs, capacity=most, total=most, remote_host=find_cluster_host())

    def check(self, items: Sequence[Item]) -> None:
        """See `RolloutRunner`."""
        for env, config in self._configs.items():
            if config.reward is not None:
                check_items(config.reward, (item for item in items if item.env == env))

    @abstractmethod
    def _start_conversation(self, sampling: SamplingParams) -> StartConversation:
        """Of the model that plays."""

    async def run(
        self,
        items: Sequence[Item],
        spec: RolloutSpec,
        *,
        on_opening: OnOpening | None = None,
        on_turn: OnTurn | None = None,
        on_trajectory: Callable[[Trajectory], None] | None = None,
    ) -> list[list[Trajectory]]:
        """See `RolloutRunner`."""

        def get_config(item: Item) -> EpisodeConfig:
            config = self._configs[item.env]
            turns = get_max_turns(item, self._pipeline, spec)
            return replace(config, limits=replace(config.limits, max_turns=turns))

        return await group.run_groups(
            items,
            name=spec.name,
            num_samples=spec.num_samples,
            envs=self._envs,
            start_conversation=self._start_conversation(
                self._pipeline.rollout.sampling(temperature=spec.temperature)
            ),
            get_config=get_config,
            max_attempts=self._pipeline.rollout.max_attempts,
            on_opening=on_opening,
            on_turn=on_turn,
            on_trajectory=on_trajectory,
        )

    async def warm_up(self) -> None:
        """See `RolloutRunner`: instances that are processes, also in the place of those that have ended."""
        rollout = self._pipeline.rollout
        num_samples = rollout.items_per_step * rollout.group_size
        for env in self._slow_to_start:
            await self._envs.warm_up(env, -(-num_samples // len(self._configs)))

    @property
    def environments(self) -> Mapping[str, PoolMetrics]:
        """See `RolloutRunner`."""
        return self._envs.metrics

    async def close(self) -> None:
        """Close the environments."""
        await self._envs.close()


class TokenRunner(AgentRunner):
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
        """See `RolloutRunner`; raises `ConfigError` for pictures, too, where the model reads text only."""
        super().check(items)
        check_vision(items, has_vision=self._has_vision)

    def _start_conversation(self, sampling: SamplingParams) -> StartConversation:
        return partial(
            TokenConversation,
            sampler=self._sampler,
            renderer=self._renderer,
            sampling=sampling,
            context=self._context,
        )


class EndpointRunner(AgentRunner):
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

    def _start_conversation(self, sampling: SamplingParams) -> StartConversation:
        return partial(ChatConversation, client=self._client, sampling=sampling)
