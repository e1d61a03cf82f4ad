"""Many episodes at once: groups in order, faults that stay where they happened, retries, clean ends."""

import asyncio
import gc
import itertools
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agents.agent import FormatAgent
from agents.prompting.renderer import Renderer
from agents.rollout.conversation import TokenConversation
from agents.rollout.episode import EpisodeConfig
from agents.rollout.group import Callbacks, GroupSpec, run_groups
from agents.rollout.packing import pack
from agents.samplers.sampler import Sampler, ScriptedSampler
from agents.types import Completion, EpisodeLimits, SamplingParams, StopReason, Trajectory
from envs.errors import MissingDependency
from envs.runtime.manager import EnvManager
from envs.types import Environment, Image, Item, StepResult
from tests.support.tiny_model import save_tiny_model
from tests.support.toy import ToyEnv, encode, toy_item, toy_tokenizer, toys
from tests.support.waiting import wait_until_async

TEXTS = ["Action: add 1", "Action: add 1", "Action: add 1"]


class Makes:
    """Makes the given environments first, then good ones; remembers all."""

    def __init__(self, *first: ToyEnv) -> None:
        self._first = list(first)
        self.envs: list[ToyEnv] = []

    def __call__(self) -> Environment:
        self.envs.append(self._first.pop(0) if self._first else ToyEnv())
        return self.envs[-1]


PLAYS = itertools.count()
LIMITS = EpisodeLimits(
    max_turns=5, max_tokens_per_turn=40, context_length=400, episode_timeout_s=5, step_timeout_s=5
)
RULES = EpisodeConfig(agent=FormatAgent("action"), limits=LIMITS)


async def play_groups(
    envs: EnvManager, items: Sequence[Item], *, sampler: Sampler | None = None, **changes: Any
) -> list[list[Trajectory]]:
    callbacks = Callbacks(on_trajectory=changes.pop("on_trajectory", None))
    get_config = changes.pop("get_config", lambda _: RULES)
    arguments: dict[str, Any] = {"name": f"play {next(PLAYS)}", "num_samples": 4, "max_attempts": 3}
    spec = GroupSpec(callbacks=callbacks, **(arguments | changes))
    start_conversation = partial(
        TokenConversation,
        sampler=sampler or ScriptedSampler(TEXTS, encode=encode),
        renderer=Renderer(toy_tokenizer()),
        sampling=SamplingParams(max_tokens=40),
    )
    return await run_groups(
        items, spec, envs=envs, start_conversation=start_conversation, get_config=get_config
    )


async def test_groups_come_in_the_order_of_their_items() -> None:
    items = [toy_item(i, target=3 + i % 2) for i in range(5)]
    trajectories: list[Trajectory] = []
    groups = await play_groups(
        toys(ToyEnv, capacity=3), items, on_trajectory=trajectories.append, max_attempts=1
    )
    assert [[(t.item.item_id, t.sample_index) for t in group] for group in groups] == [
        [(f"toy_{i}", sample_index) for sample_index in range(4)] for i in range(5)
    ]
    for index, group in enumerate(groups):
        solvable = index % 2 == 0
        # three turns reach 3; for a target of 4 the script has no fourth text
        reason = StopReason.TERMINATED if solvable else StopReason.ERROR
        assert {t.stop_reason for t in group} == {reason}
    assert sorted((t.item.item_id, t.sample_index) for t in trajectories) == sorted(
        (t.item.item_id, t.sample_index) for group in groups for t in group
    )


async def test_a_fault_is_retried_on_another_environment() -> None:
    make = Makes(ToyEnv(crash_at=2))
    [group] = await play_groups(toys(make, capacity=4), [toy_item()])
    assert sorted(t.attempts for t in group) == [1, 1, 1, 2]
    assert {(t.stop_reason, t.reward) for t in group} == {(StopReason.TERMINATED, 1.0)}
    assert make.envs[0].is_closed
    assert make.envs[0].resets == 1


async def test_a_retry_takes_no_warm_instance() -> None:
    """A server that died takes all its warm instances along; only a new one can help."""
    stale = [ToyEnv(), ToyEnv()]
    make = Makes(*stale)
    envs = toys(make, capacity=2)
    await play_groups(envs, [toy_item()], num_samples=2)
    for env in stale:
        env.crash_at = 1
    [group] = await play_groups(envs, [toy_item()], num_samples=2, max_attempts=2)
    assert [(t.attempts, t.stop_reason) for t in group] == [(2, StopReason.TERMINATED)] * 2


async def test_after_its_last_attempt_a_sample_is_data_with_its_cause() -> None:
    class CrashingEnv(ToyEnv):
        async def reset(self, item: Item) -> str:
            if item.item_id == "toy_1":
                raise OSError("no such port")
            return await super().reset(item)

    envs = toys(CrashingEnv, capacity=8)
    groups = await play_groups(envs, [toy_item(0), toy_item(1)])
    # A retry asks for a new instance, and may replace one that an episode of the other item has left.
    assert 4 * 3 <= envs.metrics["toy"].replaced <= 4 * 3 + 4
    good, bad = groups
    assert {t.stop_reason for t in good} == {StopReason.TERMINATED}
    for trajectory in bad:
        assert trajectory.stop_reason is StopReason.ERROR
        assert "EnvCrashed: toy_1: reset raised OSError: no such port (" in str(trajectory.error)
        assert (trajectory.attempts, trajectory.turns, trajectory.reward) == (3, (), 0.0)
        with pytest.raises(ValueError, match="no such port"):
            pack(trajectory)


class Recorder:
    """Hands every call on to a scripted sampler, and notes who called."""

    def __init__(self, *, fail_first: int = 0) -> None:
        self.inner = ScriptedSampler(TEXTS, encode=encode)
        self.calls: list[str] = []
        self.fail_first = fail_first

    async def sample(
        self,
        prompt_ids: Sequence[int],
        *,
        images: Sequence[Image] = (),
        params: SamplingParams,
        episode_id: str,
    ) -> Completion:
        self.calls.append(episode_id)
        if len(self.calls) <= self.fail_first:
            raise ConnectionError("not yet")
        return await self.inner.sample(prompt_ids, images=images, params=params, episode_id=episode_id)


async def test_no_two_attempts_share_an_episode_id() -> None:
    sampler = Recorder(fail_first=4)
    envs = toys(ToyEnv, capacity=4)
    for _ in range(2):  # the same items again, as in the next step
        groups = await play_groups(envs, [toy_item()], sampler=sampler)
        assert {t.stop_reason for t in groups[0]} == {StopReason.TERMINATED}
    turns_of = {episode_id: sampler.calls.count(episode_id) for episode_id in sampler.calls}
    assert sorted(turns_of.values()) == [1] * 4 + [3] * 8


@pytest.mark.heavy
def test_plays_of_one_name_draw_alike_and_others_do_not(tmp_path: Path) -> None:
    """With a real sampler at temperature 1, whichever order the episodes are served in."""
    from agents.samplers.cpu import CpuSampler

    model = save_tiny_model(tmp_path)
    items = [toy_item(i, target=9) for i in range(3)]

    def words(name: str, *, capacity: int) -> list[list[int]]:
        sampler = CpuSampler(model, context_length=400)

        async def main() -> list[list[Trajectory]]:
            return await play_groups(toys(ToyEnv, capacity=capacity), items, name=name, sampler=sampler)

        try:
            groups = asyncio.run(main())
        finally:
            sampler.close()
        return [[*turn.completion.token_ids] for group in groups for t in group for turn in t.turns]

    first = words("one", capacity=12)
    assert first == words("one", capacity=2)
    assert first != words("other", capacity=12)
    num_samples = len(first) // len(items)
    assert first[:num_samples] != first[num_samples : 2 * num_samples]


async def test_no_sample_waits_for_a_sibling() -> None:
    """One sample hangs in its first step; its siblings are done long before its time is up."""
    done: list[int] = []
    release = asyncio.Event()

    class GatedEnv(ToyEnv):
        async def _fail_if_due(self) -> None:
            if self._steps == self.hang_at:
                await release.wait()

    def note(trajectory: Trajectory) -> None:
        done.append(trajectory.sample_index)
        if len(done) == 3:
            release.set()

    make = Makes(GatedEnv(hang_at=1))
    [group] = await play_groups(toys(make, capacity=4), [toy_item()], on_trajectory=note)
    assert done == [1, 2, 3, 0]
    assert [t.success for t in group] == [True] * 4


async def test_cancelling_leaves_the_environments_usable() -> None:
    make = Makes()
    envs = toys(make, capacity=3)
    slow = ScriptedSampler(TEXTS, encode=encode, latency_s=30)
    task = asyncio.create_task(play_groups(envs, [toy_item(i) for i in range(4)], sampler=slow))
    await wait_until_async(lambda: envs.metrics["toy"].waiting == 13)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(asyncio.all_tasks()) <= 1 + 3  # this one, and environments that are being closed
    [group] = await play_groups(envs, [toy_item()], num_samples=3)
    assert all(t.success for t in group)
    assert [env.is_closed for env in make.envs] == [True] * 3 + [False] * 3
    metrics = envs.metrics["toy"]
    assert (metrics.live, metrics.idle, metrics.waiting) == (3, 3, 0)


async def test_what_is_no_fault_of_an_episode_ends_the_play() -> None:
    class SilentEnv(ToyEnv):
        async def step(self, action: str) -> StepResult:
            raise MissingDependency("install java")

    envs = toys(SilentEnv, capacity=2)
    with pytest.raises(MissingDependency, match="install java"):
        await play_groups(envs, [toy_item(i) for i in range(3)])
    assert envs.metrics["toy"].waiting == 0
    await envs.close()
    assert envs.metrics["toy"].live == 0


@pytest.mark.heavy
async def test_the_collector_leaves_what_was_there_before_alone() -> None:
    frozen: list[int] = []
    before = gc.get_freeze_count()
    await play_groups(
        toys(ToyEnv, capacity=4), [toy_item()], on_trajectory=lambda _: frozen.append(gc.get_freeze_count())
    )
    assert min(frozen) > before + 1000
    assert gc.get_freeze_count() == 0


async def test_full_collections_wait_for_the_last_of_overlapping_rollouts() -> None:
    thresholds = gc.get_threshold()
    during: list[tuple[int, int, int]] = []

    async def rollout() -> None:
        await play_groups(
            toys(ToyEnv, capacity=4), [toy_item()], on_trajectory=lambda _: during.append(gc.get_threshold())
        )
        during.append(gc.get_threshold())

    await asyncio.gather(rollout(), rollout())
    assert during[0][:2] == thresholds[:2]
    assert during[0][2] > 1000 * thresholds[2]
    assert gc.get_threshold() == thresholds
    assert gc.get_freeze_count() == 0


async def test_nothing_to_play() -> None:
    assert await play_groups(toys(ToyEnv, capacity=1), []) == []
