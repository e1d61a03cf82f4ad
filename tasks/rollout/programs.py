"""Rollouts by agents that are written elsewhere: programs that speak to the policy through the gateway.

A program is anything that takes a URL and an item and comes back with a reward, or leaves that to one of
`agents/rewards`. What `agents/rollout/group.py` does for our own episodes is done here for programs:
samples side by
side, retries, faults as data.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from agents.gateway.gateway import Gateway
from agents.gateway.sessions import GatewaySession
from agents.rewards.assignment import PREFIX, assign_rewards
from agents.rewards.types import Reward, RewardInput, read_result
from agents.rollout.group import Attempt, gather_groups
from agents.tools.threads import run_in_thread
from agents.types import StopReason, Trajectory
from envs.errors import (
    EpisodeTimeout,
    ProgramFailed,
    WingspanError,
    describe,
)
from envs.types import Item

Returned = float | Mapping[str, Any] | None


class AgentProgram(Protocol):
    """Somebody's agent: a function, or an async function."""

    def __call__(self, base_url: str, api_key: str, item: Item, /) -> Returned | Awaitable[Returned]:
        """Play `item` with the model at `base_url`.

        Returns a reward, or a mapping with `reward` and, where wanted, `success`, `turn_rewards` (one for
        each of the model's answers, in their order) and metrics: `agents.rewards.types.read_result`. None
        leaves the judging to a reward. Whatever it raises voids the episode; but out of turns or of
        context, it may raise.

        An async one shares the event loop with the gateway, which cannot answer while it blocks; any other
        has a thread for each episode.
        """
        ...


async def run_program(
    program: AgentProgram,
    items: Sequence[Item],
    *,
    gateway: Gateway,
    name: str,
    num_samples: int,
    concurrency: int,
    timeout_s: float,
    reward: Reward | None = None,
    get_max_turns: Callable[[Item], int] | None = None,
    max_attempts: int = 2,
    on_trajectory: Callable[[Trajectory], None] | None = None,
) -> list[list[Trajectory]]:
    """Play `num_samples` episodes of each item; returns one group per item, in the order of `items`.

    `concurrency`: programs at once, at most as many as the gateway has sessions. `timeout_s`: of one of
    them. `reward` judges the episodes whose program returns None. `get_max_turns`: the model's answers in an
    episode; None leaves them to the gateway's limits. `name` is unique, as in
    `agents.rollout.group.run_groups`.
    `on_trajectory` is called as each sample ends.

    An episode whose program raises, takes too long or returns no reward is tried again and then given up
    with `StopReason.ERROR`; so is one that ended on an answer that the sampler failed to give. A program
    that raises because there was no turn or no room left has been played to its end, and is taken to have
    returned None; where there is no `reward`, that is 0. Where the reward itself fails, the episode is given
    up at once. A `WingspanError` other than an `EpisodeFault` cancels all samples and is raised.
    """
    slots = asyncio.Semaphore(concurrency)

    async def run_attempt(attempt: Attempt) -> Trajectory:
        item = attempt.item
        async with (
            slots,
            gateway.session(
                item,
                sample_index=attempt.sample_index,
                name=attempt.episode_id,
                max_turns=get_max_turns(item) if get_max_turns else None,
            ) as session,
        ):
            return await _run(program, item, session=session, timeout_s=timeout_s, reward=reward)

    return await gather_groups(
        items,
        name=name,
        num_samples=num_samples,
        max_attempts=max_attempts,
        run_attempt=run_attempt,
        on_trajectory=on_trajectory,
    )


async def _run(
    program: AgentProgram, item: Item, *, session: GatewaySession, timeout_s: float, reward: Reward | None
) -> Trajectory:
    returned = await _returned(program, item, session=session, timeout_s=timeout_s)
    if returned is None:
        return await _judged(session.trajectory(), reward=reward)
    try:
        result = read_result(returned, turns=session.turns)
    except Exception as error:  # it may be anything
        raise ProgramFailed(f"{item.item_id}: the program: {describe(error)}") from error
    return session.trajectory(
        reward=result.reward,
        success=bool(result.success),
        turn_rewards=result.turn_rewards,
        metrics={f"{PREFIX}{name}": value for name, value in result.metrics.items()},
    )


async def _returned(
    program: AgentProgram, item: Item, *, session: GatewaySession, timeout_s: float
) -> Returned:
    """What the program came back with; None, too, where it had no turn or no room left and raised."""
    try:
        async with asyncio.timeout(timeout_s) as deadline:
            returned = await _called(program, session.base_url, session.api_key, item)
    except WingspanError:
        raise
    except Exception as error:
        if deadline.expired():
            raise EpisodeTimeout(
                f"{item.item_id}: the program took longer than {timeout_s:g} s; raise "
                "rollout.episode_timeout_s"
            ) from None
        if session.fault is not None:
            raise session.fault from error
        if session.stop_reason is not StopReason.TERMINATED:
            return None
        raise ProgramFailed(f"{item.item_id}: the program: {describe(error)}") from error
    if session.fault is not None:  # the program went on without the answer that it did not get
        raise session.fault
    return returned


async def _judged(trajectory: Trajectory, *, reward: Reward | None) -> Trajectory:
    if reward is not None and trajectory.turns:
        given = RewardInput.from_trajectory(trajectory, fields=trajectory.item.fields)
        return assign_rewards(trajectory, await reward.score(given))
    if reward is None and trajectory.stop_reason is StopReason.TERMINATED:
        raise ProgramFailed(
            f"{trajectory.item.item_id}: the program returned None; have it return the reward, or name one "
            "as agent.reward"
        )
    return trajectory


async def _called(program: AgentProgram, base_url: str, api_key: str, item: Item) -> Returned:
    called = partial(program, base_url, api_key, item)
    try:
        if _is_async(program):
            returned = called()
        else:
            returned = await run_in_thread(called, name=f"program {item.item_id}")
        return await returned if inspect.isawaitable(returned) else returned
    except SystemExit as error:  # the program's end, not this one's
        raise RuntimeError(f"it raised {describe(error)}") from error


def _is_async(program: AgentProgram) -> bool:
    return inspect.iscoroutinefunction(program) or inspect.iscoroutinefunction(type(program).__call__)
