"""Somebody's agents as rollouts: groups, retries, faults, horizons."""

import asyncio
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import openai
import pytest

from agents.rewards import reward
from agents.rollout.group import Callbacks, GroupSpec
from agents.rollout.packing import pack
from agents.samplers.sampler import Sampler, ScriptedSampler
from agents.types import Completion, StopReason, Trajectory
from envs.errors import ConfigError, SamplerFailed
from envs.types import Item
from tasks.config.episodes import AgentProgram
from tasks.data.trajectories import is_usable
from tasks.errors import SamplerDied
from tasks.rollout.programs import ProgramConfig, run_program
from tests.support.gateway_toy import QUESTION, ask, client_of, make_gateway, make_sampler, to_history
from tests.support.toy import encode, toy_item


def play(
    program: AgentProgram,
    *,
    items: int = 1,
    num_samples: int = 2,
    max_attempts: int = 2,
    on_trajectory: Callable[[Trajectory], None] | None = None,
    script: Any = None,
    sampler: Sampler | None = None,
    context_length: int = 2000,
    **options: Any,
) -> list[list[Trajectory]]:
    async def work() -> list[list[Trajectory]]:
        scripted = make_sampler(script or (lambda name, turn: f"Action: add {turn}"))
        gateway = make_gateway(sampler or scripted, context_length=context_length)
        config = ProgramConfig(program=program, **({"concurrency": 3, "timeout_s": 300.0} | options))
        spec = GroupSpec(
            name="test",
            num_samples=num_samples,
            max_attempts=max_attempts,
            callbacks=Callbacks(on_trajectory=on_trajectory),
        )
        async with gateway.listening():
            groups = await run_program(config, [toy_item(i) for i in range(items)], spec, gateway=gateway)
            assert gateway.sessions.live == 0
            return groups

    return asyncio.run(asyncio.wait_for(work(), 300))


async def talk(base_url: str, turns: int) -> None:
    async with client_of(base_url) as client:
        messages: list[Any] = [QUESTION]
        for _ in range(turns):
            messages += [to_history(await ask(client, messages)), QUESTION]


def test_groups_of_samples_with_rewards() -> None:
    async def program(base_url: str, api_key: str, item: Item) -> Mapping[str, Any]:
        async with client_of(base_url.partition("/sessions")[0] + "/v1", api_key=api_key) as client:
            says = to_history(await ask(client, [QUESTION]))
            await ask(client, [QUESTION, says, QUESTION])
        return {"reward": item.index, "success": True, "turn_rewards": [0.5, 0.0], "steps": 2}

    groups = play(program, items=3)
    assert [[(t.item.index, t.sample_index) for t in group] for group in groups] == [
        [(i, 0), (i, 1)] for i in range(3)
    ]
    for trajectory in (t for group in groups for t in group):
        assert trajectory.reward == trajectory.item.index + 0.5
        assert (trajectory.success, trajectory.stop_reason) == (True, StopReason.TERMINATED)
        assert trajectory.metrics["reward/steps"] == 2
        assert [turn.text for turn in trajectory.turns] == ["Action: add 0", "Action: add 1"]
        assert len(pack(trajectory)) == 1


def test_what_fails_once_is_tried_again_and_twice_is_an_error() -> None:
    tries: Counter[str] = Counter()

    async def program(base_url: str, api_key: str, item: Item) -> float:
        tries[item.item_id] += 1
        if item.index == 1:
            raise KeyError("a bug")
        if item.index == 2:
            return "good"  # type: ignore[return-value]
        await talk(base_url, 1)
        if tries[item.item_id] == 1:
            raise RuntimeError("once")
        return 1.0

    ((good,), (bug,), (odd,)) = play(program, items=3, num_samples=1)
    assert (good.reward, good.attempts, len(good.turns)) == (1.0, 2, 1)
    for trajectory, cause in (
        (bug, "ProgramFailed: toy_1: the program: KeyError: 'a bug'"),
        (odd, "ProgramFailed: toy_2: reading the program's result raised ValueError: the reward is a str"),
    ):
        assert (trajectory.stop_reason, trajectory.attempts) == (StopReason.ERROR, 2)
        assert (trajectory.error or "").startswith(cause)


def test_a_program_that_takes_too_long_is_an_error() -> None:
    async def program(base_url: str, api_key: str, item: Item) -> float:
        await asyncio.Event().wait()
        return 1.0

    ((trajectory,),) = play(program, num_samples=1, timeout_s=0.1, max_attempts=3)
    assert (trajectory.stop_reason, trajectory.attempts) == (StopReason.ERROR, 3)
    assert (
        trajectory.error
        == "EpisodeTimeout: toy_0: the program took longer than 0.1 s; raise rollout.episode_timeout_s"
    )


@pytest.mark.usefixtures("brief_end")
def test_a_program_that_will_not_be_ended_is_left_behind(caplog: pytest.LogCaptureFixture) -> None:
    async def clings(base_url: str, api_key: str, item: Item) -> float:
        while True:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)

    ((trajectory,),) = play(clings, num_samples=1, timeout_s=0.1, max_attempts=1)
    assert (trajectory.error or "").startswith("EpisodeTimeout: toy_0: the program took longer than 0.1 s")
    warnings = [text for text in caplog.messages if "is abandoned" in text]
    assert [text.partition(" runs on")[0] for text in warnings] == ["program 'clings' of toy_0"]


def test_a_program_that_cancels_itself_has_failed() -> None:
    async def program(base_url: str, api_key: str, item: Item) -> float:
        raise asyncio.CancelledError

    ((trajectory,),) = play(program, num_samples=1, max_attempts=1)
    assert trajectory.error == "ProgramFailed: toy_0: the program: WasCancelled: it was cancelled"


def test_an_answer_that_the_sampler_failed_to_give_is_no_bad_play() -> None:
    async def program(base_url: str, api_key: str, item: Item) -> float:
        await talk(base_url, 1)
        try:
            await talk(base_url, 2)
        except Exception:
            return 0.0
        return 1.0

    ((trajectory,),) = play(program, script=["Yes."], num_samples=1)
    assert trajectory.stop_reason is StopReason.ERROR
    assert "SamplerFailed" in (trajectory.error or "")


@pytest.mark.parametrize(
    ("options", "reason", "turns"),
    [
        ({"get_max_turns": lambda _: 3}, StopReason.MAX_TURNS, 3),
        ({"context_length": 80}, StopReason.MAX_CONTEXT, 2),
    ],
)
def test_out_of_turns_or_of_context_a_program_may_raise(
    options: dict[str, Any], reason: StopReason, turns: int
) -> None:
    async def program(base_url: str, api_key: str, item: Item) -> float:
        await talk(base_url, 99)
        return 1.0

    ((trajectory, _),) = play(program, **options)
    assert (trajectory.stop_reason, trajectory.reward, trajectory.success) == (reason, 0.0, False)
    assert len(trajectory.turns) == turns
    assert pack(trajectory)


def test_of_requests_at_once_the_one_that_failed_counts_whatever_others_get() -> None:
    """A request that began before another failed does not excuse it, even if it is answered after."""
    first_failed = asyncio.Event()

    async def program(base_url: str, api_key: str, item: Item) -> float:
        async with client_of(base_url) as client:
            await asyncio.gather(*(ask(client, [QUESTION]) for _ in range(2)), return_exceptions=True)
        return 1.0

    class OneFails(ScriptedSampler):
        """The first request fails when the second has come, which is answered after that."""

        num_requests = 0

        async def sample(self, prompt_ids: Sequence[int], **options: Any) -> Completion:
            self.num_requests += 1
            if self.num_requests == 1:
                while self.num_requests < 2:
                    await asyncio.sleep(0)
                first_failed.set()
                raise SamplerFailed("the GPU is gone")
            await first_failed.wait()
            for _ in range(100):  # until the gateway has taken note of it
                await asyncio.sleep(0)
            return await super().sample(prompt_ids, **options)

    ((trajectory,),) = play(
        program, num_samples=1, max_attempts=1, sampler=OneFails(lambda name, turn: "hello", encode=encode)
    )
    assert trajectory.stop_reason is StopReason.ERROR
    assert "the GPU is gone" in str(trajectory.error)


def test_a_mistake_in_the_set_up_ends_the_play() -> None:
    async def program(base_url: str, api_key: str, item: Item) -> float:
        raise ConfigError("no such tool")

    with pytest.raises(ConfigError, match="no such tool"):
        play(program)


def test_a_dead_sampler_ends_the_play_whatever_the_program_makes_of_it() -> None:
    def dead(name: str, turn: int) -> str:
        raise SamplerDied("the sampler died")

    async def program(base_url: str, api_key: str, item: Item) -> float:
        with suppress(openai.InternalServerError):
            await talk(base_url, 1)
        return 1.0

    with pytest.raises(SamplerDied):
        play(program, script=dead)


def test_a_program_that_is_not_async_has_a_thread_for_each_episode() -> None:
    together = threading.Barrier(3, timeout=100)

    def program(base_url: str, api_key: str, item: Item) -> float:
        together.wait()  # all three are here at once
        with openai.OpenAI(base_url=base_url, api_key=api_key, max_retries=0) as client:
            message: Any = QUESTION
            client.chat.completions.create(model="policy", messages=[message])
        return item.index

    groups = play(program, items=3, num_samples=1)
    assert [(t.reward, len(t.turns), t.attempts) for (t,) in groups] == [(i, 1, 1) for i in range(3)]


@pytest.mark.parametrize("blocks", [True, False])
def test_a_program_that_ends_the_interpreter_ends_its_episode_alone(blocks: bool) -> None:
    async def asynchronous(base_url: str, api_key: str, item: Item) -> float:
        sys.exit(3)

    def synchronous(base_url: str, api_key: str, item: Item) -> float:
        sys.exit(3)

    ((trajectory,),) = play(synchronous if blocks else asynchronous, num_samples=1)
    line = (synchronous if blocks else asynchronous).__code__.co_firstlineno + 1
    error = "ProgramFailed: toy_0: the program: RuntimeError: SystemExit: 3"
    place = rf"\((.*/)?{re.escape(Path(__file__).name)}:{line}\)"
    assert re.fullmatch(rf"{error} {place}", trajectory.error or "")


@reward
def last_digit(final_response: str, item: Item, fields: dict[str, Any]) -> dict[str, Any]:
    assert fields == item.fields
    return {"reward": int(final_response[-1]), "success": True, "length": len(final_response)}


def test_where_a_program_returns_none_the_reward_judges() -> None:
    async def program(base_url: str, api_key: str, item: Item) -> float | None:
        await talk(base_url, 3)
        return 9.0 if item.index else None

    groups = play(program, items=2, reward=last_digit)
    for trajectory in groups[0]:
        assert (trajectory.reward, trajectory.success) == (2, True)  # "Action: add 2"
        assert [turn.reward for turn in trajectory.turns] == [0, 0, 2]
        assert trajectory.metrics["reward/length"] == len("Action: add 2")
    assert [(t.reward, t.success) for t in groups[1]] == [(9, False)] * 2

    ((judged_episode, _),) = play(program, reward=last_digit, get_max_turns=lambda _: 2)
    assert (judged_episode.reward, judged_episode.stop_reason) == (
        1,
        StopReason.MAX_TURNS,
    )  # it raised for want of turns

    ((unjudged_episode, _),) = play(program)
    assert (unjudged_episode.error or "").endswith("have it return the reward, or name one as agent.reward")


def test_an_episode_without_a_turn_has_the_programs_reward_and_no_other() -> None:
    async def program(base_url: str, api_key: str, item: Item) -> Mapping[str, Any] | None:
        with suppress(openai.APIConnectionError):
            await talk("http://127.0.0.1:9/v1", 1)  # nothing listens there
        return {"reward": 0.75, "success": True} if item.index else None

    for judge in (last_digit, None):
        ((unreached,), (solved,)) = play(program, items=2, num_samples=1, reward=judge)
        assert (unreached.stop_reason, unreached.attempts) == (StopReason.ERROR, 2)
        assert "the policy has answered no request of it" in (unreached.error or "")
        assert (solved.stop_reason, solved.turns) == (StopReason.TERMINATED, ())
        assert (solved.reward, solved.success) == (0.75, True)
        assert not is_usable(solved)  # for training


def test_a_prompt_without_room_ends_the_episode_at_once() -> None:
    async def program(base_url: str, api_key: str, item: Item) -> None:
        await talk(base_url, 1)

    ((trajectory,),) = play(program, num_samples=1, context_length=4, reward=last_digit)
    assert (trajectory.stop_reason, trajectory.turns, trajectory.reward) == (StopReason.MAX_CONTEXT, (), 0.0)


def test_a_reward_that_fails_drops_the_episode_and_plays_it_no_more() -> None:
    episodes: list[Any] = []

    @reward(max_attempts=1)
    def fails_always() -> float:
        raise KeyError("a bug")

    async def program(base_url: str, api_key: str, item: Item) -> None:
        episodes.append(item)
        await talk(base_url, 1)

    ((trajectory,),) = play(program, num_samples=1, reward=fails_always, max_attempts=3)
    assert (trajectory.stop_reason, trajectory.attempts, len(episodes)) == (StopReason.ERROR, 1, 1)
    assert (trajectory.error or "").startswith("RewardFailed: ")


def test_episodes_are_reported_when_they_have_ended() -> None:
    async def program(base_url: str, api_key: str, item: Item) -> float:
        await talk(base_url, 2)
        return 1.0

    ended_trajectories: list[Trajectory] = []
    groups = play(program, num_samples=1, on_trajectory=ended_trajectories.append)
    assert [ended_trajectories] == groups
