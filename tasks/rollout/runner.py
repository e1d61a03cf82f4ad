"""What runs rollouts of a pipeline's items: its agent here, or the program that it names (`programs.py`).

The one place where the settings of a pipeline become those of an episode.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from agents.clients.endpoint import ChatClient
from agents.horizon import HorizonEvidence, anneal
from agents.prompting.renderer import Renderer
from agents.rollout.chat_conversation import ChatConversation
from agents.rollout.conversation import ContextPolicy, StartConversation, TokenConversation
from agents.rollout.env_checks import check_env
from agents.rollout.episode import EpisodeConfig
from agents.rollout.group import Callbacks, GroupSpec, run_groups
from agents.samplers.sampler import Sampler
from agents.types import SamplingParams, Trajectory
from envs.errors import ConfigError
from envs.runtime.manager import EnvManager
from envs.runtime.metrics import PoolMetrics
from envs.types import Item
from tasks.cluster.envs import find_cluster_host
from tasks.config.environments import environments
from tasks.config.episodes import check_reward, check_vision, make_episode_config
from tasks.config.pipelines import Pipeline
from tasks.data.items import training_turns

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, ProcessorMixin


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSpec:
    """One rollout of some items; passed unchanged to the process that has the sampler."""

    name: str
    """Unique per rollout, as in `GroupSpec`."""
    max_turns: Mapping[str, int]
    """Turns per episode, by part of the pipeline's data."""
    num_samples: int
    """Episodes per item."""
    temperature: float
    """0 is greedy."""
    finished_samples: Mapping[tuple[int, int], Trajectory] = field(default_factory=dict)
    """As in `GroupSpec`."""


def make_training_spec(
    pipeline: Pipeline, *, step: int, evidence: Mapping[str, Sequence[HorizonEvidence]]
) -> RolloutSpec:
    """The rollout of training step `step` (from 1); `evidence`: by part, of the steps before it."""
    return RolloutSpec(
        name=f"train {step}",
        max_turns=training_turns(pipeline, step=step, evidence=evidence),
        num_samples=pipeline.rollout.group_size,
        temperature=training_temperature(pipeline, step=step),
    )


def horizon_metrics(pipeline: Pipeline, turns: Mapping[str, int]) -> dict[str, int]:
    """The record of a training step's horizon, `turns` by part: `horizon`, the longest, and `horizon_<part>`
    of each where several parts have horizons that may differ."""
    parts = pipeline.data.parts.values()
    may_differ = len(turns) > 1 and any(
        part.horizon is not None or pipeline.horizon.type == "adaptive" for part in parts
    )
    by_part = {f"horizon_{name}": count for name, count in turns.items()} if may_differ else {}
    return {"horizon": max(turns.values()), **by_part}


def training_temperature(pipeline: Pipeline, *, step: int) -> float:
    """The temperature of training step `step` (from 1)."""
    rollout = pipeline.rollout
    last = rollout.temperature if rollout.final_temperature is None else rollout.final_temperature
    return anneal(step, first=rollout.temperature, last=last, steps=pipeline.train.steps)


def make_group_spec(pipeline: Pipeline, spec: RolloutSpec, callbacks: Callbacks) -> GroupSpec:
    """The groups of a rollout of `pipeline`."""
    return GroupSpec(
        name=spec.name,
        num_samples=spec.num_samples,
        max_attempts=pipeline.rollout.max_attempts,
        finished_samples=spec.finished_samples,
        callbacks=callbacks,
    )


def get_max_turns(item: Item, pipeline: Pipeline, spec: RolloutSpec) -> int:
    """Turns that `spec` allows an episode of `item`."""
    part = pipeline.data.part_of(item)
    assert part is not None  # files of items are checked when they are read
    return spec.max_turns[part]


class RolloutRunner(ABC):
    """Runs episodes of a pipeline's items, in one event loop."""

    @abstractmethod
    def check(self, items: Sequence[Item]) -> None:
        """Raise `ConfigError` or `MissingDependency` for rewards that cannot be computed for `items`, and for
        tools that cannot work on their environments."""

    @abstractmethod
    async def run(
        self, items: Sequence[Item], spec: RolloutSpec, callbacks: Callbacks = Callbacks()
    ) -> list[list[Trajectory]]:
        """One group per item, in order."""

    async def warm_up(self) -> None:  # noqa: B027  # most need none
        """Start the environments of a training step that are slow to start."""

    @property
    def environments(self) -> Mapping[str, PoolMetrics]:
        """The metrics of the environments' pools so far, by name."""
        return {}

    async def close(self) -> None:  # noqa: B027  # most hold nothing
        """Free all resources."""


class AgentRunner(RolloutRunner):
    """Runs the pipeline's agent in its environments."""

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        converse: Callable[[SamplingParams], StartConversation],
        tokenizer: "PreTrainedTokenizerBase | None",
        reads_images: bool,
    ) -> None:
        """`converse` makes conversations with the model for given sampling parameters; `tokenizer` is as in
        `make_episode_config`. Raises `ConfigError` and `MissingDependency` as that does."""
        self._specs = specs = environments(pipeline)
        self._pipeline = pipeline
        self._converse = converse
        self._reads_images = reads_images
        self._configs = {
            spec.name: make_episode_config(spec, pipeline, tokenizer=tokenizer) for spec in specs
        }
        self._slow_to_start = [spec.name for spec in specs if spec.isolation != "none"]
        total = pipeline.rollout.max_live_envs
        self._remote_host = find_cluster_host()
        self._envs = EnvManager(specs, capacity=total, total=total, remote_host=self._remote_host)

    def check(self, items: Sequence[Item]) -> None:
        for spec in self._specs:
            config = self._configs[spec.name]
            check_env(spec, tools=config.tools, reward=config.reward, remote_host=self._remote_host)
        check_reward(self._pipeline.agent, items)
        check_vision(items, has_vision=self._reads_images)

    async def run(
        self, items: Sequence[Item], spec: RolloutSpec, callbacks: Callbacks = Callbacks()
    ) -> list[list[Trajectory]]:
        def get_config(item: Item) -> EpisodeConfig:
            config = self._configs[item.env]
            turns = get_max_turns(item, self._pipeline, spec)
            return replace(config, limits=replace(config.limits, max_turns=turns))

        return await run_groups(
            items,
            make_group_spec(self._pipeline, spec, callbacks),
            envs=self._envs,
            start_conversation=self._converse(self._pipeline.rollout.sampling(temperature=spec.temperature)),
            get_config=get_config,
        )

    async def warm_up(self) -> None:
        rollout = self._pipeline.rollout
        num_samples = rollout.items_per_step * rollout.group_size
        for env in self._slow_to_start:
            await self._envs.warm_up(env, -(-num_samples // len(self._configs)))

    @property
    def environments(self) -> Mapping[str, PoolMetrics]:
        return self._envs.metrics

    async def close(self) -> None:
        await self._envs.close()


def make_runner(
    pipeline: Pipeline,
    *,
    sampler: Sampler,
    tokenizer: "PreTrainedTokenizerBase",
    processor: "ProcessorMixin | None" = None,
) -> RolloutRunner:
    """A runner of `pipeline`'s agent or program with `sampler`, by tokens: training uses no other.

    `processor` is that of a vision-language model. Raises `ConfigError`.
    """
    if pipeline.agent.program is not None:
        from tasks.rollout.programs import ProgramRunner

        return ProgramRunner(pipeline, sampler=sampler, tokenizer=tokenizer, processor=processor)
    renderer, context = Renderer(tokenizer, processor), pipeline.agent.context
    start = partial(TokenConversation, sampler=sampler, renderer=renderer, context=context)
    return AgentRunner(
        pipeline,
        converse=lambda sampling: partial(start, sampling=sampling),
        tokenizer=tokenizer,
        reads_images=processor is not None,
    )


def make_endpoint_runner(pipeline: Pipeline, *, client: ChatClient) -> RolloutRunner:
    """A runner of `pipeline`'s agent with the model of an endpoint, by messages.

    Raises `ConfigError` as `check_endpoint_agent`.
    """
    check_endpoint_agent(pipeline)
    return AgentRunner(
        pipeline,
        converse=lambda sampling: partial(ChatConversation, client=client, sampling=sampling),
        tokenizer=None,
        reads_images=True,
    )


def check_endpoint_agent(pipeline: Pipeline) -> None:
    """Raise `ConfigError` for a program and for a context policy, which need the tokens."""
    if pipeline.agent.program is not None:
        raise ConfigError(
            f"agent.program {pipeline.agent.program!r} runs through the gateway, in front of a policy "
            "whose tokens are known; give --policy FOLDER in place of --endpoint"
        )
    for key, value in pipeline.agent.context:
        if value != ContextPolicy.model_fields[key].default:
            raise ConfigError(
                f"agent.context.{key}={value}: an endpoint's model sees the whole conversation; leave "
                "agent.context out"
            )
