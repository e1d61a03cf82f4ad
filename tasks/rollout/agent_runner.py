"""Runs a pipeline's items with its agent: the one place where the settings become those of an episode."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from agents.rollout.conversation import StartConversation
from agents.rollout.episode import EpisodeConfig
from agents.rollout.group import Callbacks, run_groups
from agents.types import SamplingParams, Trajectory
from envs.runtime.manager import EnvManager
from envs.runtime.metrics import PoolMetrics
from envs.types import Item
from tasks.cluster.envs import find_cluster_host
from tasks.config.environments import environments
from tasks.config.episodes import check_reward, check_vision, make_episode_config
from tasks.config.pipelines import Pipeline
from tasks.rollout.runner import RolloutRunner, RolloutSpec, get_max_turns, make_group_spec

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


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
        specs = environments(pipeline)
        self._pipeline = pipeline
        self._converse = converse
        self._reads_images = reads_images
        self._configs = {
            spec.name: make_episode_config(spec, pipeline, tokenizer=tokenizer) for spec in specs
        }
        self._slow_to_start = [spec.name for spec in specs if spec.isolation != "none"]
        total = pipeline.rollout.max_live_envs
        self._envs = EnvManager(specs, capacity=total, total=total, remote_host=find_cluster_host())

    def check(self, items: Sequence[Item]) -> None:
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
