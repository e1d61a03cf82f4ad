"""Rollouts by users' programs, which speak to the policy through a gateway in front of the sampler.

A program takes a URL and an item and returns a reward, or leaves that to one of `agents/rewards`. Samples run
side by side, with retries and with faults as data, as in `agents/rollout/group.py`.
"""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING

from agents.gateway.gateway import Gateway
from agents.gateway.limits import GatewayLimits
from agents.gateway.sessions import GatewaySession
from agents.rewards.types import PREFIX, Reward, RewardInput, assign_rewards, read_result
from agents.rollout.group import Attempt, Callbacks, GroupSpec, gather_groups
from agents.samplers.sampler import Sampler
from agents.tools.functions import call_function, is_async, name_of
from agents.types import StopReason, Trajectory
from envs.errors import EpisodeTimeout, ProgramFailed, WingspanError, boundary, describe_with_place
from envs.runtime.time_limits import TooSlow, run_in_time
from envs.types import Item, Message
from tasks.config.episodes import AgentProgram, ProgramResponse, check_reward, program_of, reward_of
from tasks.config.pipelines import Pipeline
from tasks.rollout.spec import RolloutRunner, RolloutSpec, get_max_turns, make_group_spec

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, ProcessorMixin


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramConfig:
    """How a program runs episodes."""

    program: AgentProgram
    timeout_s: float
    """The time limit of one episode."""
    concurrency: int
    """Programs at once, at most as many as the gateway has sessions."""
    reward: Reward | None = None
    """Judges the episodes whose program returns None."""
    get_max_turns: Callable[[Item], int] | None = None
    """The model's answers in an episode; None leaves them to the gateway's limits."""


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
            token=_make_token(),
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


@cache
def _make_token() -> str:
    """The gateway's token, which nobody gets: programs have the keys of their sessions. One for this process,
    because every secret is looked for in every text."""
    return secrets.token_urlsafe(32)


async def run_program(
    config: ProgramConfig, items: Sequence[Item], spec: GroupSpec, *, gateway: Gateway
) -> list[list[Trajectory]]:
    """Run the episodes of each item; returns one group per item, in the order of `items`.

    An episode whose program raises, takes too long or returns no reward is tried again and then given up
    with `StopReason.ERROR`; so is one that ended on an answer that the sampler failed to give, and one that
    got no answer at all and returned None. A program that raises because there was no turn or no room left
    has been run to its end, and is taken to have returned None; where there is no `reward`, that is 0. Where
    the reward itself fails, the episode is given up at once. A `WingspanError` other than an `EpisodeFault`
    cancels all samples and is raised.
    """
    slots = asyncio.Semaphore(config.concurrency)

    async def run_attempt(attempt: Attempt) -> Trajectory:
        item = attempt.item
        max_turns = config.get_max_turns(item) if config.get_max_turns else None
        async with (
            slots,
            gateway.session(
                item, sample_index=attempt.sample_index, name=attempt.episode_id, max_turns=max_turns
            ) as session,
        ):
            return await _run_episode(config, item, session=session)

    return await gather_groups(items, spec, run_attempt=run_attempt)


async def _run_episode(config: ProgramConfig, item: Item, *, session: GatewaySession) -> Trajectory:
    response = await _run_in_time(config, item, session=session)
    if response is None:
        return await _judge(session.trajectory(), reward=config.reward)
    with boundary(ProgramFailed, f"{item.item_id}: reading the program's result"):
        result = read_result(response, turns=session.turns)
    return session.trajectory(
        reward=result.reward,
        success=bool(result.success),
        turn_rewards=result.turn_rewards,
        metrics={f"{PREFIX}{name}": value for name, value in result.metrics.items()},
    )


async def _run_in_time(config: ProgramConfig, item: Item, *, session: GatewaySession) -> ProgramResponse:
    """The program's return value; None as well where it raised because no turn or no room was left."""
    name = f"program {name_of(config.program)!r} of {item.item_id}"
    call = partial(config.program, session.base_url, session.api_key, item)
    work = call_function(call, in_thread=not is_async(config.program), name=name)
    try:
        response: ProgramResponse = await run_in_time(work, timeout_s=config.timeout_s, name=name)
    except WingspanError:
        raise
    except TooSlow:
        raise EpisodeTimeout(
            f"{item.item_id}: the program took longer than {config.timeout_s:g} s; raise "
            "rollout.episode_timeout_s"
        ) from None
    except Exception as error:
        if session.fault is not None:
            raise session.fault from error
        if session.stop_reason is not StopReason.TERMINATED:
            return None
        raise ProgramFailed(f"{item.item_id}: the program: {describe_with_place(error)}") from error
    if session.fault is not None:  # the program went on without the answer that it did not get
        raise session.fault
    return response


async def _judge(trajectory: Trajectory, *, reward: Reward | None) -> Trajectory:
    where, has_ended = trajectory.item.item_id, trajectory.stop_reason is StopReason.TERMINATED
    if has_ended and not trajectory.turns:
        raise ProgramFailed(
            f"{where}: the program returned None, and the policy has answered no request of it; have it ask "
            "the model at its base_url, and raise what goes wrong"
        )
    if reward is not None and trajectory.turns:
        reward_input = RewardInput(
            final_response=trajectory.turns[-1].text, trajectory=trajectory, fields=trajectory.item.fields
        )
        return assign_rewards(trajectory, await reward.score(reward_input))
    if reward is None and has_ended:
        raise ProgramFailed(
            f"{where}: the program returned None; have it return the reward, or name one as agent.reward"
        )
    return trajectory
