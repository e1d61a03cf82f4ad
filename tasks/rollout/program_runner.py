"""Plays a pipeline's items by the program that it names, through a gateway in front of the sampler."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from agents.gateway.gateway import Gateway
from agents.gateway.limits import GatewayLimits
from agents.rewards.types import check_items
from agents.rollout.group import OnOpening, OnTurn
from agents.samplers.sampler import Sampler
from agents.types import Trajectory
from envs.runtime.metrics import PoolMetrics
from envs.types import Item, Message
from tasks.config.episodes import program_of, reward_of
from tasks.config.settings import Pipeline
from tasks.rollout.programs import run_program
from tasks.rollout.runner import RolloutRunner, RolloutSpec, TokenRunner, get_max_turns

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, ProcessorMixin


def make_runner(
    pipeline: Pipeline,
    *,
    sampler: Sampler,
    tokenizer: "PreTrainedTokenizerBase",
    processor: "ProcessorMixin | None",
) -> RolloutRunner:
    """Whoever plays `pipeline` by tokens: its agent, or its program.

    `processor`: of a model that sees. Raises `ConfigError`.
    """
    if pipeline.agent.program is not None:
        return ProgramRunner(pipeline, sampler=sampler, tokenizer=tokenizer, processor=processor)
    return TokenRunner(pipeline, sampler=sampler, tokenizer=tokenizer, processor=processor)


class ProgramRunner(RolloutRunner):
    """By somebody's program; it is handed the items, and no environment is made for them."""

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        sampler: Sampler,
        tokenizer: "PreTrainedTokenizerBase",
        processor: "ProcessorMixin | None" = None,
    ) -> None:
        """`processor`: of a model that sees. Raises `ConfigError` as `program_of`."""
        self._program = program_of(pipeline.agent)
        self._reward = reward_of(pipeline.agent)
        self._pipeline = pipeline
        self._sampler = sampler
        self._tokenizer = tokenizer
        self._processor = processor

    def check(self, items: Sequence[Item]) -> None:
        """See `RolloutRunner`."""
        if self._reward is not None:
            check_items(self._reward, items, with_env=False)

    async def run(
        self,
        items: Sequence[Item],
        spec: RolloutSpec,
        *,
        on_opening: OnOpening | None = None,
        on_turn: OnTurn | None = None,
        on_trajectory: Callable[[Trajectory], None] | None = None,
    ) -> list[list[Trajectory]]:
        """See `RolloutRunner`; an episode is shown when it has ended, its first prompt as the opening."""
        rollout = self._pipeline.rollout

        def open_with(item: Item, sample_index: int, prompt_ids: list[int]) -> None:
            if on_opening is not None:
                on_opening(item, sample_index, [Message("user", str(self._tokenizer.decode(prompt_ids)))])

        gateway = Gateway(  # one for each rollout: temperatures differ, and a free port costs milliseconds
            self._sampler,
            self._tokenizer,
            sampling=rollout.sampling(temperature=spec.temperature),
            context_length=rollout.context_length,
            limits=GatewayLimits(max_sessions=rollout.max_live_envs),
            processor=self._processor,
        )
        async with gateway.listening():
            return await run_program(
                self._program,
                items,
                gateway=gateway,
                name=spec.name,
                num_samples=spec.num_samples,
                concurrency=rollout.max_live_envs,
                timeout_s=rollout.episode_timeout_s,
                reward=self._reward,
                get_max_turns=partial(get_max_turns, pipeline=self._pipeline, spec=spec),
                max_attempts=rollout.max_attempts,
                on_prompt=open_with,
                on_turn=on_turn,
                on_trajectory=on_trajectory,
            )

    async def warm_up(self) -> None:
        """See `RolloutRunner`; there is nothing."""

    @property
    def environments(self) -> Mapping[str, PoolMetrics]:
        """See `RolloutRunner`; there are none."""
        return {}

    async def close(self) -> None:
        """See `RolloutRunner`; there is nothing."""
