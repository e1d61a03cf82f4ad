"""Runs a pipeline's items with its program, through a gateway in front of the sampler."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from agents.gateway.gateway import Gateway
from agents.gateway.limits import GatewayLimits
from agents.rollout.group import Callbacks
from agents.samplers.sampler import Sampler
from agents.types import Trajectory
from envs.types import Item, Message
from tasks.config.episodes import check_reward, program_of, reward_of
from tasks.config.pipelines import Pipeline
from tasks.rollout.programs import ProgramConfig, run_program
from tasks.rollout.runner import RolloutRunner, RolloutSpec, get_max_turns, make_group_spec

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, ProcessorMixin


class ProgramRunner(RolloutRunner):
    """Runs a user's program, which gets the items; there are no environments."""

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        sampler: Sampler,
        tokenizer: "PreTrainedTokenizerBase",
        processor: "ProcessorMixin | None" = None,
    ) -> None:
        """`processor` is that of a vision-language model. Raises `ConfigError` as `program_of`."""
        self._program = program_of(pipeline.agent)
        self._reward = reward_of(pipeline.agent)
        self._pipeline = pipeline
        self._sampler = sampler
        self._tokenizer = tokenizer
        self._processor = processor

    def check(self, items: Sequence[Item]) -> None:
        check_reward(self._pipeline.agent, items)

    async def run(
        self, items: Sequence[Item], spec: RolloutSpec, callbacks: Callbacks = Callbacks()
    ) -> list[list[Trajectory]]:
        """The callbacks are called when an episode has ended, with its first prompt as the opening."""
        rollout = self._pipeline.rollout

        def replay(trajectory: Trajectory) -> None:
            item, sample_index, turns = trajectory.item, trajectory.sample_index, trajectory.turns
            if callbacks.on_opening is not None and turns:
                prompt = str(self._tokenizer.decode(trajectory.prompt_ids))
                callbacks.on_opening(item, sample_index, [Message("user", prompt)])
            if callbacks.on_turn is not None:
                for count in range(1, len(turns) + 1):
                    callbacks.on_turn(item, sample_index, turns[:count])
            if callbacks.on_trajectory is not None:
                callbacks.on_trajectory(trajectory)

        gateway = Gateway(  # one for each rollout: temperatures differ, and a free port costs milliseconds
            self._sampler,
            self._tokenizer,
            sampling=rollout.sampling(temperature=spec.temperature),
            context_length=rollout.context_length,
            limits=GatewayLimits(max_sessions=rollout.max_live_envs),
            processor=self._processor,
        )
        config = ProgramConfig(
            program=self._program,
            timeout_s=rollout.episode_timeout_s,
            concurrency=rollout.max_live_envs,
            reward=self._reward,
            get_max_turns=partial(get_max_turns, pipeline=self._pipeline, spec=spec),
        )
        group_spec = make_group_spec(self._pipeline, spec, Callbacks(on_trajectory=replay))
        async with gateway.listening():
            return await run_program(config, items, group_spec, gateway=gateway)
