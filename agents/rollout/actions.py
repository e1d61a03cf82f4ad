"""Executes a parsed turn: steps the environment, calls tools, or ends the episode.

A failure that is not the policy's is raised as an `EpisodeFault`; all others are observations.
"""

import asyncio
import json
import re
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from agents.formats.calls import ParsedTurn, ToolCall
from agents.formats.json_values import dumps
from agents.tools.toolbox import Toolbox
from agents.tools.types import ToolResult, ToolStatus
from envs.base import Environment, read_state_key
from envs.errors import EnvCrashed, EpisodeTimeout, boundary, describe
from envs.runtime.concurrency import gather_or_cancel
from envs.runtime.pool import Instance, unwrap
from envs.types import Image, Item, Observation, StepResult

T = TypeVar("T")

_CALL = re.compile(r"(?P<name>[A-Za-z_][\w.-]*)\((?P<arguments>\{.*\})\)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ActionResult:
    """What one turn brought about."""

    observations: Sequence[str]
    """The environment's, or one for each executed call, or the turn's problem; empty after an answer."""
    step: StepResult
    """The environment's steps in this turn, merged; its observation and images are for reading."""
    images: Sequence[tuple[Image, ...]] = ()
    """Of each observation; empty if none has any."""
    summary: str | None = None
    """The text with which the agent replaces everything after the opening."""
    answer: str | None = None
    """The agent's answer: the result of a tool that ends the episode; empty after other calls."""


class ActionExecutor:
    """Acts in one episode: in its environment, and with its tools."""

    def __init__(self, env: Environment, item: Item, *, tools: Toolbox | None, step_timeout_s: float) -> None:
        """`step_timeout_s` is for one step of the environment, and for tools without a limit of their own."""
        self._env = env
        self._item = item
        self._tools = tools
        self._timeout_s = step_timeout_s
        self._turns = 0
        self._env_metrics: dict[str, float] = {}

    async def reset(self) -> Observation:
        """The environment's first observation; only the episode's time limits it."""
        with boundary(EnvCrashed, f"{self._item.item_id}: reset"):
            return Observation.wrap(await self._env.reset(self._item))

    def state_key(self) -> str | None:
        """Of the environment's state now, if it has any; raises `EnvCrashed`."""
        with boundary(EnvCrashed, f"{self._item.item_id}: state_key"):
            return read_state_key(self._env)

    async def execute(self, turn: ParsedTurn) -> ActionResult:
        """Raises `EnvCrashed`, `EpisodeTimeout`, and `WingspanError`s of the environment and the tools."""
        self._turns += 1
        if turn.action is not None:
            with boundary(EnvCrashed, f"{self._item.item_id}: step"):
                step = await self._in_time(self._env.step(turn.action))
            self._env_metrics |= step.metrics
            return ActionResult((step.observation,), step, (step.images,))
        if turn.calls:
            return await self._call_tools(turn.calls)
        if turn.answer is not None:
            return ActionResult((), StepResult(observation="", terminated=True))
        assert turn.problem is not None
        return ActionResult((turn.problem,), StepResult(observation=turn.problem))

    @property
    def metrics(self) -> dict[str, float]:
        """The environment's metrics (`env_metrics/<name>`) and, if there are tools, `unknown_tools` and for
        each tool `tool_calls/<name>`, `tool_failures/<name>`, `tool_seconds/<name>` and the sums of its own
        metrics (`tool_metrics/<name>/<metric>`)."""
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

    async def _call_tools(self, calls: Sequence[ToolCall]) -> ActionResult:
        if self._tools is None:
            self._tools = Toolbox([])  # it answers that there is no such tool
        tools = self._tools
        results: list[ToolResult] = []
        if len(calls) > 1 and not any(tools.is_stateful(call.name) for call in calls):
            results += await gather_or_cancel(self._call_tool(tools, call) for call in calls)
        else:
            for call in calls:
                results.append(await self._call_tool(tools, call))
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

    async def _call_tool(self, tools: Toolbox, call: ToolCall) -> ToolResult:
        work = tools.call(call.name, call.arguments, env=unwrap(self._env))
        result = await (work if tools.keeps_time(call.name) else self._in_time(work))
        has_timed_out = result.status is ToolStatus.TIMED_OUT and tools.is_stateful(call.name)
        if has_timed_out and isinstance(self._env, Instance):
            # The tool may still be working on it: this episode goes on, but no other may have it.
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
            raise EnvCrashed(f"{self._item.item_id}: step raised {describe(error)}") from error


def _summary(results: Sequence[ToolResult]) -> str | None:
    """The last summary of a turn, and the results of its other calls, which would be lost."""
    summaries = [result.summary for result in results if result.summary is not None]
    observations = [result.observation for result in results if result.summary is None]
    return "\n\n".join([summaries[-1], *observations]) if summaries else None


def format_action(turn: ParsedTurn) -> str:
    """The turn's action or answer, or one line for each call: `calculator({"expression": "6*7"})`."""
    text = turn.answer if turn.action is None else turn.action
    if text is not None:
        return text
    return "\n".join(f"{call.name}({dumps(call.arguments)})" for call in turn.calls)


def parse_calls(action: str) -> list[ToolCall]:
    """The calls of an action that `format_action` wrote; empty if it is anything else."""
    calls = []
    for line in action.splitlines():
        match = _CALL.fullmatch(line)
        try:
            arguments = json.loads(match["arguments"]) if match else None
        except ValueError:
            arguments = None
        if match is None or not isinstance(arguments, dict):
            return []
        calls.append(ToolCall(match["name"], arguments))
    return calls
