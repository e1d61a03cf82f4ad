"""What runs rollouts of a pipeline's items: its agent here, or the program that it names (`programs.py`)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from agents.clients.endpoint import ChatClient
from agents.prompting.renderer import Renderer
from agents.rollout.chat_conversation import ChatConversation
from agents.rollout.conversation import ContextPolicy, StartConversation, TokenConversation
from agents.rollout.env_checks import check_env
from agents.rollout.episode import EpisodeConfig
from agents.rollout.group import Callbacks, run_groups
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
from tasks.rollout.programs import ProgramRunner
from tasks.rollout.spec import RolloutRunner, RolloutSpec, get_max_turns, make_group_spec

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, ProcessorMixin


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
