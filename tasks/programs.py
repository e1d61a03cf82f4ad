"""Rollouts by agents that are written elsewhere: programs that speak to the policy through the gateway.

A program is anything that takes a URL and an item and comes back with a reward. What `agents/group.py` does
for our own episodes is done here for programs: chains side by side, retries, faults as data.
"""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from agents.gateway.gateway import Gateway
from agents.gateway.sessions import Session
from agents.group import given_up, in_groups
from agents.rewards.placing import PREFIX
from agents.rewards.types import read_result
from agents.types import StopReason, Trajectory
from envs.errors import EpisodeFault, EpisodeTimeout, ProgramFailed, WingspanError, described
from envs.types import Item

_log = logging.getLogger(__name__)


class AgentProgram(Protocol):
    """Somebody's agent. It must not block the event loop, in which the gateway answers it: a synchronous
    one is to be called by `asyncio.to_thread`."""

    async def __call__(self, base_url: str, api_key: str, item: Item) -> float | Mapping[str, Any]:
        """Play `item` with the model at `base_url`.

        Returns a reward, or a mapping with `reward` and, where wanted, `success`, `turn_rewards` (one for
        each of the model's answers, in their order) and metrics: `agents.rewards.types.read_result`.
        Whatever it raises voids the episode; but out of turns or of context, it may raise.
        """
        ...


async def play_program(
    program: AgentProgram,
    items: Sequence[Item],
    *,
    gateway: Gateway,
    name: str,
    chains: int,
    concurrency: int,
    timeout_s: float,
    max_turns: int | None = None,
    max_attempts: int = 2,
) -> list[list[Trajectory]]:
    """Play `chains` episodes of each item; returns one group per item, in the order of `items`.

    `concurrency`: programs at once, at most as many as the gateway has sessions. `timeout_s`: of one of
    them. `max_turns`: the model's answers in an episode; None leaves it to the gateway's limits. `name` is
    this play's own, as in `agents.group.play`.

    An episode whose program raises, takes too long or returns no reward is tried again and then given up
    with `StopReason.ERROR`; so is one that ended on an answer that the sampler failed to give. A program
    that raises because there was no turn or no room left has been played to its end: its reward is 0. A
    `WingspanError` other than an `EpisodeFault` cancels all chains and is raised.
    """
    places = asyncio.Semaphore(concurrency)

    async def chain_of(place: int, item: Item, chain: int) -> Trajectory:
        started = time.perf_counter()
        cause = "never tried"
        for attempt in range(1, max_attempts + 1):
            called = f"{name}/{place}/{chain}/{attempt}"
            try:
                async with (
                    places,
                    gateway.session(item, chain=chain, name=called, max_turns=max_turns) as one,
                ):
                    trajectory = await _play(program, item, session=one, timeout_s=timeout_s)
            except EpisodeFault as fault:
                cause = f"{type(fault).__name__}: {fault}"
                _log.warning("attempt %d of %d, chain %d: %s", attempt, max_attempts, chain, cause)
            else:
                return replace(trajectory, attempts=attempt)
        return given_up(
            item, chain=chain, cause=cause, attempts=max_attempts, seconds=time.perf_counter() - started
        )

    return await in_groups(items, chains=chains, chain_of=chain_of)


async def _play(program: AgentProgram, item: Item, *, session: Session, timeout_s: float) -> Trajectory:
    try:
        async with asyncio.timeout(timeout_s) as deadline:
            returned = await program(session.base_url, session.api_key, item)
        result = read_result(returned, turns=session.turns)
    except WingspanError:
        raise
    except Exception as error:
        if deadline.expired():
            raise EpisodeTimeout(
                f"{item.item_id}: the program took longer than {timeout_s:g} s; raise timeout_s"
            ) from None
        if session.fault is not None:
            raise session.fault from error
        if session.stop_reason is not StopReason.TERMINATED:
            return session.trajectory()
        raise ProgramFailed(f"{item.item_id}: the program: {described(error)}") from error
    if session.fault is not None:  # the program went on without the answer that it did not get
        raise session.fault
    return session.trajectory(
        reward=result.reward,
        success=bool(result.success),
        turn_rewards=result.turn_rewards,
        metrics={f"{PREFIX}{name}": value for name, value in result.metrics.items()},
    )
