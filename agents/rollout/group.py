"""Many episodes at once: every chain of every item, each on an environment of its own.

Chains run side by side, as many as the environments' capacity; none waits for a sibling. An episode that
fails through no fault of the policy is tried again on a fresh environment, then given up as a
trajectory with `StopReason.ERROR`: data to count, never to train on.
"""

import gc
import logging
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from agents.rollout.conversation import Speakers
from agents.rollout.episode import Rules, run_episode
from agents.types import StopReason, Trajectory, Turn
from envs.errors import EpisodeFault, RewardFailed
from envs.runtime.concurrency import together
from envs.runtime.manager import EnvManager
from envs.types import Item, Message

_log = logging.getLogger(__name__)

OnOpening = Callable[[Item, int, Sequence[Message]], None]
"""Called with an item, the chain and the messages before its first turn, at each try."""
OnTurn = Callable[[Item, int, Sequence[Turn]], None]
"""Called with an item, the chain and all its turns so far; a chain that is tried again begins anew."""


async def play(
    items: Sequence[Item],
    *,
    name: str,
    chains: int,
    envs: EnvManager,
    speakers: Speakers,
    rules_of: Callable[[Item], Rules],
    max_attempts: int,
    on_opening: OnOpening | None = None,
    on_turn: OnTurn | None = None,
    on_trajectory: Callable[[Trajectory], None] | None = None,
) -> list[list[Trajectory]]:
    """Play `chains` episodes of each item; returns one group per item, in the order of `items`.

    `rules_of` says how an item is played: items may be of several environments.
    `name` is this play's own among all of the same model. Episodes are called
    `<name>/<place in items>/<chain>/<attempt>`, by which a sampler keeps their caches and seeds their
    draws: the same names give the same draws, in another play they must differ.
    `on_opening` is called as each episode begins, `on_turn` as each turn is carried out, `on_trajectory` as
    each chain ends. A chain's `EpisodeFault`s stay its own; any other exception (a missing package, a bug)
    cancels all chains and is raised. On cancellation, too, every environment has gone back or been closed
    when this returns.
    """

    play_chain = partial(
        _play_chain,
        envs=envs,
        speakers=speakers,
        max_attempts=max_attempts,
        on_opening=on_opening,
        on_turn=on_turn,
    )

    async def chain_of(place: int, item: Item, chain: int) -> Trajectory:
        trajectory = await play_chain(item, chain=chain, name=f"{name}/{place}/{chain}", rules=rules_of(item))
        if on_trajectory is not None:
            on_trajectory(trajectory)
        return trajectory

    return await in_groups(items, chains=chains, chain_of=chain_of)


async def in_groups(
    items: Sequence[Item],
    *,
    chains: int,
    chain_of: Callable[[int, Item, int], Coroutine[Any, Any, Trajectory]],
) -> list[list[Trajectory]]:
    """`chain_of(place, item, chain)` for every chain of every item at once; one group per item, in order."""
    with _heap_set_aside():
        ended = await together(
            chain_of(place, item, chain) for place, item in enumerate(items) for chain in range(chains)
        )
    return [ended[place * chains : (place + 1) * chains] for place in range(len(items))]


def given_up(item: Item, *, chain: int, cause: str, attempts: int, seconds: float) -> Trajectory:
    """What is left of an episode that failed at its last attempt: data to count."""
    return Trajectory(
        item=item,
        chain=chain,
        prompt_ids=[],
        turns=[],
        stop_reason=StopReason.ERROR,
        reward=0.0,
        success=False,
        seconds=seconds,
        attempts=attempts,
        error=cause,
    )


async def _play_chain(
    item: Item,
    *,
    chain: int,
    name: str,
    envs: EnvManager,
    speakers: Speakers,
    rules: Rules,
    max_attempts: int,
    on_opening: OnOpening | None,
    on_turn: OnTurn | None,
) -> Trajectory:
    started = time.perf_counter()
    cause, attempts = "never tried", max_attempts
    for attempt in range(1, max_attempts + 1):
        try:
            async with envs.lease(item.env, fresh=attempt > 1) as env:
                trajectory = await run_episode(
                    env,
                    item,
                    chain=chain,
                    speaker=speakers.speaker(
                        f"{name}/{attempt}",  # a cache of its own for every attempt
                        where=item.item_id,
                        limits=rules.limits,
                    ),
                    rules=rules,
                    on_opening=None if on_opening is None else partial(on_opening, item, chain),
                    on_turn=None if on_turn is None else partial(on_turn, item, chain),
                )
        except RewardFailed as fault:  # the reward has tried again itself; the episode is not played anew
            cause, attempts = f"{type(fault).__name__}: {fault}", attempt
            _log.warning("chain %d: %s", chain, cause)
            break
        except EpisodeFault as fault:
            cause = f"{type(fault).__name__}: {fault}"
            _log.warning("attempt %d of %d, chain %d: %s", attempt, max_attempts, chain, cause)
        else:
            return trajectory if attempt == 1 else replace(trajectory, attempts=attempt)
    return given_up(item, chain=chain, cause=cause, attempts=attempts, seconds=time.perf_counter() - started)


@contextmanager
def _heap_set_aside() -> Iterator[None]:
    """Keep the garbage collector to what is made inside.

    One full collection walks all of torch and its friends: 150 ms and more in which no episode moves.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
