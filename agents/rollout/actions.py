"""Carries out what a parsed turn says: steps the environment, calls tools, or ends the episode.

A failure that is not the policy's passes through as an `EpisodeFault`; everything else is an observation.
"""

import asyncio
import json
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from agents.formats.calls import ParsedTurn, ToolCall
from agents.tools.toolbox import Toolbox
from agents.tools.types import ToolResult, ToolStatus
from envs.base import Environment
from envs.errors import EnvCrashed, EpisodeTimeout, WingspanError, describe
from envs.runtime.concurrency import gather_or_cancel
from envs.runtime.instance import Instance, unwrap
from envs.types import Image, Item, Observation, StepResult

T = TypeVar("T")

_written = json.JSONEncoder(ensure_ascii=False).encode


@dataclass(frozen=True, slots=True)
class ActionResult:
    """What came of one turn."""

    observations: Sequence[str]
    """The environment's answer, or one for each call that was carried out, or the turn's problem; none
    after an answer."""
    step: StepResult
    """All steps of the environment in this turn as one; its observation and images are for reading."""
    images: Sequence[tuple[Image, ...]] = ()
    """Of each observation; empty where none has any."""
    summary: str | None = None
    """What the agent wants to go on with in the place of all that followed the opening."""
    answer: str | None = None
    """What a tool that ends the episode was given or found: the agent's answer. Empty for other calls, which
    are none."""


class ActionExecutor:
    """An episode's means to act: its environment, and its tools."""

    def __init__(self, env: Environment, item: Item, *, tools: Toolbox | None, step_timeout_s: float) -> None:
        """`step_timeout_s` is for one step of the environment, and for tools without a limit of their own."""
        self._env = env
        self._item = item
        self._tools = tools
        self._timeout_s = step_timeout_s
        self._turns = 0
        self._env_metrics: dict[str, float] = {}

    async def reset(self) -> Observation:
        """The environment's first observation; it has the whole episode's time."""
        try:
            return Observation.wrap(await self._env.reset(self._item))
        except Exception as error:
            self._env_failed("reset", error)

    async def execute(self, turn: ParsedTurn) -> ActionResult:
        """Raises `EnvCrashed`, `EpisodeTimeout`, and `WingspanError`s of the environment and the tools."""
        self._turns += 1
        if turn.action is not None:
            step = await self._in_time(self._step(turn.action))
            self._env_metrics |= step.metrics
            return ActionResult((step.observation,), step, (step.images,))
        if turn.calls:
            return await self._call(turn.calls)
        if turn.answer is not None:
            return ActionResult((), StepResult(observation="", terminated=True))
        assert turn.problem is not None
        return ActionResult((turn.problem,), StepResult(observation=turn.problem))

    @property
    def metrics(self) -> dict[str, float]:
        """The environment's own (`env_metrics/<name>`) and, where there are tools, `tool_calls/<name>`,
        `tool_failures/<name>` and `tool_seconds/<name>` of each, sums of what it measured itself
        (`tool_metrics/<name>/<metric>`), and `unknown_tools`."""
        metrics = {f"env_metrics/{name}": value for name, value in self._env_metrics.items()}
        if self._tools is None:
            return metrics
        metrics["unknown_tools"] = self._tools.unknown_calls
        for name, usage in self._tools.usage.items():
            metrics[f"tool_calls/{name}"] = usage.calls
            metrics[f"tool_failures/{name}"] = usage.failures
            metrics[f"tool_seconds/{name}"] = usage.seconds
            metrics |= {f"tool_metrics/{name}/{key}": value for key, value in usage.metrics.items()}
        return metrics

    async def _step(self, action: str) -> StepResult:
        try:
            return await self._env.step(action)
        except TimeoutError:
            raise  # `_in_time` says whose it is
        except Exception as error:
            self._env_failed("step", error)

    async def _call(self, calls: Sequence[ToolCall]) -> ActionResult:
        tools = self._tools
        if tools is None:
            tools = self._tools = Toolbox([])  # its answers are the ones for names that nothing has
        results: list[ToolResult] = []
        if len(calls) > 1 and not any(tools.is_stateful(call.name) for call in calls):
            results += await gather_or_cancel(self._one(tools, call) for call in calls)
        else:
            for call in calls:
                results.append(await self._one(tools, call))
                if results[-1].ends_episode:
                    break
        steps = [result.step for result in results if result.step is not None]
        for step in steps:
            self._env_metrics |= step.metrics
        observations = [result.observation for result in results]
        return ActionResult(
            observations,
            StepResult(
                observation="\n".join(observations),
                reward=sum(step.reward for step in steps),
                terminated=any(result.ends_episode for result in results)
                and not any(step.truncated for step in steps),
                truncated=any(step.truncated for step in steps),
                success=any(step.success for step in steps),
                images=tuple(image for result in results for image in result.images),
            ),
            [result.images for result in results],
            summary=_summary(results),
            answer=next((result.observation for result in results if result.ends_episode), ""),
        )

    async def _one(self, tools: Toolbox, call: ToolCall) -> ToolResult:
        calling = tools.call(call.name, call.arguments, env=unwrap(self._env))
        result = await (calling if tools.keeps_time(call.name) else self._in_time(calling))
        out_of_time = result.status is ToolStatus.TIMED_OUT and tools.is_stateful(call.name)
        if out_of_time and isinstance(self._env, Instance):
            # The tool may be at work on it still: this episode goes on, but no other shall have it.
            self._env.is_reusable = False
        return result

    async def _in_time(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            async with asyncio.timeout(self._timeout_s) as limit:
                return await work
        except TimeoutError as error:
            if limit.expired():
                raise EpisodeTimeout(
                    f"{self._item.item_id}: step {self._turns} took longer than {self._timeout_s:g} s; "
                    "raise rollout.step_timeout_s"
                ) from None
            self._env_failed("step", error)

    def _env_failed(self, where: str, error: Exception) -> NoReturn:
        if isinstance(error, WingspanError):
            raise error
        raise EnvCrashed(f"{self._item.item_id}: {where} raised {describe(error)}") from error


def _summary(results: Sequence[ToolResult]) -> str | None:
    """The last summary of a turn, and what its other calls answered, for that would be lost."""
    found = [result.summary for result in results if result.summary is not None]
    if not found:
        return None
    return "\n\n".join([found[-1], *(result.observation for result in results if result.summary is None)])


def format_action(turn: ParsedTurn) -> str:
    """What the turn does, in one line a call, for reading: `calculator({"expression": "6*7"})`."""
    if turn.action is not None:
        return turn.action
    if turn.answer is not None:
        return turn.answer
    return "\n".join(f"{call.name}({_written(call.arguments)})" for call in turn.calls)
