"""Somebody's agents as rollouts: groups, retries, faults, horizons."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from agents.packing import pack
from agents.types import StopReason, Trajectory
from envs.errors import ConfigError
from envs.types import Item
from tasks.programs import AgentProgram, play_program
from tests.gateway_toy import QUESTION, ask, client_of, make_gateway, scripted, told
from tests.toy import toy_item


def played(
    program: AgentProgram, *, items: int = 1, script: Any = None, context_length: int = 2000, **options: Any
) -> list[list[Trajectory]]:
    async def work() -> list[list[Trajectory]]:
        gateway = make_gateway(
            scripted(script or (lambda name, turn: f"Action: add {turn}")), context_length=context_length
        )
        settings: dict[str, Any] = {"name": "test", "chains": 2, "concurrency": 3, "timeout_s": 300.0}
        async with gateway.listening():
            groups = await play_program(
                program, [toy_item(i) for i in range(items)], gateway=gateway, **(settings | options)
            )
            assert gateway.sessions.live == 0
            return groups

    return asyncio.run(asyncio.wait_for(work(), 300))


async def talk(base_url: str, turns: int) -> None:
    async with client_of(base_url) as client:
        messages: list[Any] = [QUESTION]
        for _ in range(turns):
            messages += [told(await ask(client, messages)), QUESTION]


def test_groups_of_chains_with_rewards() -> None:
    async def program(base_url: str, api_key: str, item: Item) -> Mapping[str, Any]:
        async with client_of(base_url.partition("/sessions")[0] + "/v1", api_key=api_key) as client:
            says = told(await ask(client, [QUESTION]))
            await ask(client, [QUESTION, says, QUESTION])
        return {"reward": item.index, "success": True, "turn_rewards": [0.5, 0.0], "steps": 2}

    groups = played(program, items=3)
    assert [[(t.item.index, t.chain) for t in group] for group in groups] == [
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

    ((good,), (bug,), (odd,)) = played(program, items=3, chains=1)
    assert (good.reward, good.attempts, len(good.turns)) == (1.0, 2, 1)
    for trajectory, cause in (
        (bug, "ProgramFailed: toy_1: the program: KeyError: 'a bug'"),
        (odd, "ProgramFailed: toy_2: the program: ValueError: the reward is a str"),
    ):
        assert (trajectory.stop_reason, trajectory.attempts) == (StopReason.ERROR, 2)
        assert (trajectory.error or "").startswith(cause)


def test_a_program_that_takes_too_long_is_an_error() -> None:
    async def program(base_url: str, api_key: str, item: Item) -> float:
        await asyncio.Event().wait()
        return 1.0

    ((trajectory,),) = played(program, chains=1, timeout_s=0.1, max_attempts=3)
    assert (trajectory.stop_reason, trajectory.attempts) == (StopReason.ERROR, 3)
    assert trajectory.error == "EpisodeTimeout: toy_0: the program took longer than 0.1 s; raise timeout_s"


def test_an_answer_that_the_sampler_failed_to_give_is_no_bad_play() -> None:
    async def program(base_url: str, api_key: str, item: Item) -> float:
        await talk(base_url, 1)
        try:
            await talk(base_url, 2)
        except Exception:
            return 0.0
        return 1.0

    ((trajectory,),) = played(program, script=["Yes."], chains=1)
    assert trajectory.stop_reason is StopReason.ERROR
    assert "SamplerFailed" in (trajectory.error or "")


@pytest.mark.parametrize(
    ("options", "reason", "turns"),
    [({"max_turns": 3}, StopReason.MAX_TURNS, 3), ({"context_length": 80}, StopReason.MAX_CONTEXT, 2)],
)
def test_out_of_turns_or_of_context_a_program_may_raise(
    options: dict[str, Any], reason: StopReason, turns: int
) -> None:
    async def program(base_url: str, api_key: str, item: Item) -> float:
        await talk(base_url, 99)
        return 1.0

    ((trajectory, _),) = played(program, **options)
    assert (trajectory.stop_reason, trajectory.reward, trajectory.success) == (reason, 0.0, False)
    assert len(trajectory.turns) == turns
    assert pack(trajectory)


def test_a_mistake_in_the_set_up_ends_the_play() -> None:
    async def program(base_url: str, api_key: str, item: Item) -> float:
        raise ConfigError("no such tool")

    with pytest.raises(ConfigError, match="no such tool"):
        played(program)
