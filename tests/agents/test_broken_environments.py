"""What an environment must not return is a fault of the environment: never a reward, never an observation."""

import asyncio
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from agents.agent import FormatAgent
from agents.samplers.sampler import ScriptedSampler
from agents.tools.episode import act
from agents.tools.toolbox import Toolbox
from agents.types import EpisodeLimits, Trajectory
from envs.errors import EnvCrashed, EpisodeTimeout
from envs.runtime.metrics import Clock
from envs.runtime.pool import Instance
from envs.sandbox.workspace import WithWorkspace, Workspace
from envs.types import Environment, Item, StepResult
from tests.support.toy import ToyEnv, encode
from tests.support.toy_episode import play_toy

LIMITS = EpisodeLimits(
    max_turns=2, max_tokens_per_turn=400, context_length=20_000, episode_timeout_s=20, step_timeout_s=5
)
HASTY, BRIEF = replace(LIMITS, step_timeout_s=0.1), replace(LIMITS, episode_timeout_s=0.1)
ACTION = "Action: add 1"
CALL = '{"name": "act", "arguments": {"action": "add 1"}}'


class Answering(ToyEnv):
    """Returns what it is made with."""

    def __init__(self, step: Callable[[], Any], reset: Callable[[], Any] = lambda: "Begin.") -> None:
        super().__init__()
        self._answer_step = step
        self._answer_reset = reset

    async def reset(self, item: Item) -> Any:
        return self._answer_reset()

    async def step(self, action: str) -> Any:
        return self._answer_step()


def exit_process() -> None:
    raise SystemExit(3)


def result(observation: Any = "", **values: Any) -> Callable[[], StepResult]:
    return lambda: StepResult(observation, **{"terminated": True, **values})


def play(env: Environment, *, by_tool: bool, limits: EpisodeLimits = LIMITS) -> Trajectory:
    tools = Toolbox([act]) if by_tool else None
    agent = FormatAgent("json", schemas=tools.schemas) if tools else FormatAgent("action")
    sampler = ScriptedSampler([CALL if by_tool else ACTION] * 2, encode=encode)
    return asyncio.run(play_toy(sampler, agent=agent, limits=limits, tools=tools, env=env))


@pytest.mark.parametrize("by_tool", [False, True], ids=["action", "act"])
@pytest.mark.parametrize(
    ("step", "cause"),
    [
        (lambda: None, "step returned a NoneType, None; return a StepResult"),
        (lambda: ("x", 1.0, True, False, {}), r"step returned a tuple, \('x', 1.0"),
        (result(None), "observation is a NoneType, None"),
        (result(5), "observation is a int, 5"),
        (result(reward=math.nan), "reward is nan; return a finite number"),
        (result(reward=-math.inf), "reward is -inf"),
        (result(reward="1"), "reward is a str, '1'; return a number"),
        (result(reward=None), "reward is a NoneType"),
        (result(success="no"), "success is a str, 'no'; return True or False"),
        (result(terminated=None), "terminated is a NoneType"),
        (result(truncated="yes"), "truncated is a str"),
        (result(metrics=None), "metrics are a NoneType"),
        (result(metrics={"f1": math.nan}), "metric 'f1' is nan"),
        (result(metrics={"f1": "high"}), "metric 'f1' is a str"),
        (result(images=b"png"), "images is a bytes"),
        (exit_process, "raised SystemExit: 3"),
    ],
)
def test_a_step_that_returns_no_result_is_a_crash(step: Callable[[], Any], cause: str, by_tool: bool) -> None:
    where = "act" if by_tool else "toy_0"
    with pytest.raises(EnvCrashed, match=f"^{where}: step .*{cause}"):
        play(Answering(step), by_tool=by_tool)


@pytest.mark.parametrize(
    ("reset", "cause"),
    [
        (lambda: None, "reset returned a NoneType, None; return text or an Observation"),
        (lambda: ("Begin.", {}), "reset returned a tuple"),
        (result("Begin."), "reset returned a StepResult"),
        (exit_process, "raised SystemExit: 3"),
    ],
)
def test_a_reset_that_returns_no_observation_is_a_crash(reset: Callable[[], Any], cause: str) -> None:
    with pytest.raises(EnvCrashed, match=f"^toy_0: reset .*{cause}"):
        play(Answering(result(), reset), by_tool=False)


class SyncReset(ToyEnv):
    def reset(self, item: Item) -> Any:
        return "Begin."


class SyncStep(ToyEnv):
    def step(self, action: str) -> Any:
        return StepResult("x")


def pooled(env: Environment) -> Environment:
    return Instance(env, resets=Clock(), steps=Clock())


def with_workspace(env: Environment) -> Environment:
    return WithWorkspace(env, Workspace())


@pytest.mark.parametrize("wrap", [lambda env: env, pooled, with_workspace])
@pytest.mark.parametrize(
    ("env", "cause"),
    [
        (SyncReset, r"reset .*returned a str, 'Begin\.', which cannot be awaited; write `async def reset`"),
        (SyncStep, r"step .*returned a StepResult, .*, which cannot be awaited; write `async def step`"),
    ],
)
def test_a_method_that_is_not_asynchronous_is_a_crash_with_a_remedy(
    env: Callable[[], ToyEnv], cause: str, wrap: Callable[[Environment], Environment]
) -> None:
    with pytest.raises(EnvCrashed, match=f"^toy_0: {cause}"):
        play(wrap(env()), by_tool=False)


def test_a_key_of_a_state_that_is_no_text_is_a_crash() -> None:
    class Numbered(ToyEnv):
        def state_key(self) -> Any:
            return 7

    with pytest.raises(EnvCrashed, match=r"toy_0: .*state_key is a int, 7; return a text"):
        play(Numbered(), by_tool=False)


@pytest.mark.parametrize("by_tool", [False, True], ids=["action", "act"])
def test_numbers_and_bools_of_numpy_are_as_good_as_pythons(by_tool: bool) -> None:
    step = result(
        reward=np.float32(0.5), success=np.True_, terminated=np.bool_(True), metrics={"f1": np.int64(1)}
    )
    trajectory = play(Answering(step), by_tool=by_tool)
    assert (trajectory.reward, trajectory.success, trajectory.metrics["env_metrics/f1"]) == (0.5, True, 1.0)
    assert (type(trajectory.reward), type(trajectory.success)) == (float, bool)


@pytest.mark.parametrize("by_tool", [False, True], ids=["action", "act"])
def test_half_a_surrogate_pair_is_shown_as_a_question_mark(by_tool: bool) -> None:
    step = result("see \ud83d", terminated=False)
    trajectory = play(Answering(step, lambda: "half \ud83d"), by_tool=by_tool)
    assert [turn.observation for turn in trajectory.turns] == ["see ?", "see ?"]


@pytest.mark.usefixtures("brief_end")
@pytest.mark.parametrize(
    ("by_tool", "cling_at", "limits", "cause", "name"),
    [
        (False, 1, HASTY, "step 1 took longer than 0.1 s", "toy_0: step 1"),
        (True, 1, HASTY, "step 1 took longer than 0.1 s", "tool 'act'"),
        (False, 0, BRIEF, "the episode took longer than 0.1 s, at turn 1", "toy_0: reset"),
        (False, 1, BRIEF, "the episode took longer than 0.1 s, at turn 1", "toy_0: step 1"),
    ],
    ids=["action", "act", "reset", "episode"],
)
def test_what_resists_its_cancellation_is_left_behind(
    by_tool: bool,
    cling_at: int,
    limits: EpisodeLimits,
    cause: str,
    name: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nobody waits for it: neither the episode nor the end of the event loop."""
    with pytest.raises(EpisodeTimeout, match=f"^toy_0: {cause}"):
        play(ToyEnv(cling_at=cling_at), by_tool=by_tool, limits=limits)
    (warning,) = caplog.messages
    assert warning.startswith(f"{name} runs on after it was cancelled")


def test_a_step_that_cancels_itself_is_a_crash() -> None:
    def cancel() -> None:
        raise asyncio.CancelledError

    with pytest.raises(EnvCrashed, match="toy_0: step 1: it was cancelled"):
        play(Answering(cancel), by_tool=False)
