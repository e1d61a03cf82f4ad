"""Many episodes at once: every sample of every item, each with its own environment.

As many samples run at once as the environments' capacity; none waits for a sibling. An episode that fails
through no fault of the policy is retried on a fresh environment; after the last attempt its trajectory has
`StopReason.ERROR`: data to count, never to train on.
"""

import gc
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Lock

from agents.rollout.conversation import StartConversation
from agents.rollout.episode import EpisodeConfig, run_episode
from agents.types import StopReason, Trajectory, Turn
from envs.errors import EpisodeFault, RewardFailed
from envs.runtime.concurrency import gather_or_cancel
from envs.runtime.loop_watch import watch_loop
from envs.runtime.manager import EnvManager
from envs.types import Item, Message

_NO_FULL_COLLECTION = 1_000_000
"""Collections of the second generation before one of the third."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Callbacks:
    """Called while a rollout runs, to show it or to keep what has ended."""

    on_opening: Callable[[Item, int, Sequence[Message]], None] | None = None
    """Called with an item, the sample's index and the messages before its first turn, at each attempt."""
    on_turn: Callable[[Item, int, Sequence[Turn]], None] | None = None
    """Called with an item, the sample's index and all its turns so far; a retried sample begins anew."""
    on_trajectory: Callable[[Trajectory], None] | None = None
    """Called with each sample as it ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSpec:
    """How the groups of a rollout are sampled."""

    name: str
    """Unique among the rollouts with the same model. Episodes are called
    `<name>/<index of the item>/<sample>/<attempt>`, by which a sampler keeps their caches and seeds its
    random numbers: the same name gives the same completions."""
    num_samples: int
    """Episodes of each item."""
    max_attempts: int
    """Attempts at an episode that ends with an `EpisodeFault`, the first included."""
    finished_samples: Mapping[tuple[int, int], Trajectory] = field(default_factory=dict)
    """Samples that have ended in an interrupted rollout of the same name, by the index of the item and of the
    sample: they are returned and not run."""
    callbacks: Callbacks = Callbacks()


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt at an episode."""

    item: Item
    sample_index: int
    number: int
    """Counted from 1."""
    episode_id: str
    """Unique: each attempt has its own cache in the sampler."""


async def run_groups(
    items: Sequence[Item],
    spec: GroupSpec,
    *,
    envs: EnvManager,
    start_conversation: StartConversation,
    get_config: Callable[[Item], EpisodeConfig],
) -> list[list[Trajectory]]:
    """Run the episodes of each item; returns one group per item, in the order of `items`.

    `get_config` returns the configuration of an item's episodes: items may be of several environments.
    An `EpisodeFault` concerns its sample only; any other exception (a missing package, a bug) cancels all
    samples and is raised. When this returns, also by cancellation, every environment has been returned or
    closed.
    """
    on_opening, on_turn = spec.callbacks.on_opening, spec.callbacks.on_turn

    async def run_attempt(attempt: Attempt) -> Trajectory:
        item, sample_index = attempt.item, attempt.sample_index
        config = get_config(item)
        async with envs.lease(item.env, fresh=attempt.number > 1) as env:
            return await run_episode(
                env,
                item,
                sample_index=sample_index,
                conversation=start_conversation(attempt.episode_id, where=item.item_id, limits=config.limits),
                config=config,
                on_opening=on_opening and partial(on_opening, item, sample_index),
                on_turn=on_turn and partial(on_turn, item, sample_index),
            )

    return await gather_groups(items, spec, run_attempt=run_attempt)


async def gather_groups(
    items: Sequence[Item], spec: GroupSpec, *, run_attempt: Callable[[Attempt], Awaitable[Trajectory]]
) -> list[list[Trajectory]]:
    """Run the episodes of each item by `run_attempt`, all at once; the rest is as in `run_groups`."""

    async def run_sample(index: int, item: Item, sample_index: int) -> Trajectory:
        start = time.perf_counter()
        name, cause, number = f"{spec.name}/{index}/{sample_index}", "", 0
        for number in range(1, spec.max_attempts + 1):
            try:
                trajectory = await run_attempt(Attempt(item, sample_index, number, f"{name}/{number}"))
                return trajectory if number == 1 else replace(trajectory, attempts=number)
            except EpisodeFault as fault:
                cause = f"{type(fault).__name__}: {fault}"
                if isinstance(fault, RewardFailed):  # the reward has retried; another episode would not help
                    _log.warning("dropped, sample %d: %s", sample_index, cause)
                    break
                _log.warning(
                    "attempt %d of %d, sample %d: %s", number, spec.max_attempts, sample_index, cause
                )
        return Trajectory(
            item=item,
            sample_index=sample_index,
            prompt_ids=(),
            turns=(),
            stop_reason=StopReason.ERROR,
            reward=0.0,
            success=False,
            seconds=time.perf_counter() - start,
            attempts=number,
            error=cause,
        )

    async def run_and_show(index: int, item: Item, sample_index: int) -> Trajectory:
        if (finished_sample := spec.finished_samples.get((index, sample_index))) is not None:
            return finished_sample
        trajectory = await run_sample(index, item, sample_index)
        if spec.callbacks.on_trajectory is not None:
            spec.callbacks.on_trajectory(trajectory)
        return trajectory

    with _HEAP.frozen(), watch_loop():
        trajectories = await gather_or_cancel(
            run_and_show(index, item, sample_index)
            for index, item in enumerate(items)
            for sample_index in range(spec.num_samples)
        )
    size = spec.num_samples
    return [trajectories[start : start + size] for start in range(0, len(trajectories), size)]


class _Heap:
    """The process's garbage collector during rollouts; several may overlap, in several threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._num_rollouts = 0
        self._thresholds = gc.get_threshold()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Restrict the collector to young objects made inside.

        A full collection walks all of torch and its like, and all trajectories, which takes 150 ms and more
        in which no episode moves. What is old is collected when the last rollout has ended.
        """
        with self._lock:
            self._num_rollouts += 1
            if self._num_rollouts == 1:
                self._thresholds = gc.get_threshold()
                gc.freeze()
                gc.set_threshold(*self._thresholds[:2], _NO_FULL_COLLECTION)
        try:
            yield
        finally:
            with self._lock:
                self._num_rollouts -= 1
                if self._num_rollouts == 0:
                    gc.set_threshold(*self._thresholds)
                    gc.unfreeze()


_HEAP = _Heap()
