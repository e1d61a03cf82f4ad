"""Many episodes at once: every sample of every item, each on an environment of its own.

Samples run side by side, as many as the environments' capacity; none waits for a sibling. An episode that
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

from agents.rollout.conversation import StartConversation
from agents.rollout.episode import EpisodeConfig, run_episode
from agents.types import StopReason, Trajectory, Turn
from envs.errors import EpisodeFault, RewardFailed
from envs.runtime.concurrency import gather_or_cancel
from envs.runtime.manager import EnvManager
from envs.types import Item, Message

_log = logging.getLogger(__name__)

OnOpening = Callable[[Item, int, Sequence[Message]], None]
"""Called with an item, the sample and the messages before its first turn, at each try."""
OnTurn = Callable[[Item, int, Sequence[Turn]], None]
"""Called with an item, the sample and all its turns so far; a sample that is tried again begins anew."""


async def run_groups(
    items: Sequence[Item],
    *,
    name: str,
    num_samples: int,
    envs: EnvManager,
    start_conversation: StartConversation,
    get_config: Callable[[Item], EpisodeConfig],
    max_attempts: int,
    on_opening: OnOpening | None = None,
    on_turn: OnTurn | None = None,
    on_trajectory: Callable[[Trajectory], None] | None = None,
) -> list[list[Trajectory]]:
    """Play `num_samples` episodes of each item; returns one group per item, in the order of `items`.

    `get_config` returns the configuration of an item's episodes: items may be of several environments.
    `name` is unique among the rollouts with the same model. Episodes are called
    `<name>/<place in items>/<sample>/<attempt>`, by which a sampler keeps their caches and seeds their
    draws: the same name gives the same draws.
    `on_opening` is called as each episode begins, `on_turn` as each turn is carried out, `on_trajectory` as
    each sample ends. A sample's `EpisodeFault`s stay its own; any other exception (a missing package, a bug)
    cancels all samples and is raised. On cancellation, too, every environment has gone back or been closed
    when this returns.
    """

    run_attempts = partial(
        _run_sample,
        envs=envs,
        start_conversation=start_conversation,
        max_attempts=max_attempts,
        on_opening=on_opening,
        on_turn=on_turn,
    )

    async def run_sample(place: int, item: Item, sample_index: int) -> Trajectory:
        trajectory = await run_attempts(
            item, sample_index=sample_index, name=f"{name}/{place}/{sample_index}", config=get_config(item)
        )
        if on_trajectory is not None:
            on_trajectory(trajectory)
        return trajectory

    return await gather_groups(items, num_samples=num_samples, run_sample=run_sample)


async def gather_groups(
    items: Sequence[Item],
    *,
    num_samples: int,
    run_sample: Callable[[int, Item, int], Coroutine[Any, Any, Trajectory]],
) -> list[list[Trajectory]]:
    """`run_sample(index, item, sample_index)` for every sample at once; one group per item, in order."""
    with _heap_set_aside():
        ended = await gather_or_cancel(
            run_sample(place, item, sample_index)
            for place, item in enumerate(items)
            for sample_index in range(num_samples)
        )
    return [ended[place * num_samples : (place + 1) * num_samples] for place in range(len(items))]


def failed_trajectory(
    item: Item, *, sample_index: int, cause: str, attempts: int, seconds: float
) -> Trajectory:
    """What is left of an episode that failed at its last attempt: data to count."""
    return Trajectory(
        item=item,
        sample_index=sample_index,
        prompt_ids=(),
        turns=(),
        stop_reason=StopReason.ERROR,
        reward=0.0,
        success=False,
        seconds=seconds,
        attempts=attempts,
        error=cause,
    )


async def _run_sample(
    item: Item,
    *,
    sample_index: int,
    name: str,
    envs: EnvManager,
    start_conversation: StartConversation,
    config: EpisodeConfig,
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
                    sample_index=sample_index,
                    conversation=start_conversation(
                        f"{name}/{attempt}",  # a cache of its own for every attempt
                        where=item.item_id,
                        limits=config.limits,
                    ),
                    config=config,
                    on_opening=None if on_opening is None else partial(on_opening, item, sample_index),
                    on_turn=None if on_turn is None else partial(on_turn, item, sample_index),
                )
        except RewardFailed as fault:  # the reward has tried again itself; the episode is not played anew
            cause, attempts = f"{type(fault).__name__}: {fault}", attempt
            _log.warning("sample %d: %s", sample_index, cause)
            break
        except EpisodeFault as fault:
            cause = f"{type(fault).__name__}: {fault}"
            _log.warning("attempt %d of %d, sample %d: %s", attempt, max_attempts, sample_index, cause)
        else:
            return trajectory if attempt == 1 else replace(trajectory, attempts=attempt)
    return failed_trajectory(
        item, sample_index=sample_index, cause=cause, attempts=attempts, seconds=time.perf_counter() - started
    )


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
