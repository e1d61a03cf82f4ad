"""One episode: an environment, an item and a model become a `Trajectory`.

In each turn the model generates, the agent parses the text, the action executor steps the environment or
calls tools, and the model sees the observations. A failure that is not the policy's is raised as an
`EpisodeFault`, all others are observations. `conversation.py` is the model's side, and `group.py` retries and
runs episodes concurrently.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from agents.agent import Agent, with_images
from agents.agent_results import open_conversation, parse_turn, reply_to
from agents.formats.calls import ParsedTurn, ToolCall
from agents.formats.json_values import format_action
from agents.rewards.types import Reward, RewardInput, assign_rewards
from agents.rollout.conversation import Continuation, Conversation, ModelTurn
from agents.tools.toolbox import Toolbox
from agents.tools.types import ToolResult, ToolStatus
from agents.types import EpisodeLimits, StopReason, Trajectory, Turn
from envs.errors import EnvCrashed, EpisodeTimeout, boundary
from envs.runtime.concurrency import gather_or_cancel, take_turn
from envs.runtime.pool import Instance, unwrap
from envs.runtime.time_limits import TooSlow, WasCancelled, run_in_time
from envs.types import (
    Environment,
    Image,
    Item,
    Message,
    Observation,
    StepResult,
    read_state_key,
    reset_env,
    step_env,
)

T = TypeVar("T")

_NO_REPLY = Continuation(has_room=True)
"""After the last turn, and after a restart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeConfig:
    """How an item's episodes are run, with any model."""

    agent: Agent
    limits: EpisodeLimits
    tools: Toolbox | None = None
    """Each episode gets a copy with its own counts."""
    reward: Reward | None = None
    """Judges the episode; if None, the environment does."""


@dataclass(frozen=True, slots=True)
class ActionResult:
    """What one turn brought about."""

    observations: Sequence[str]
    """The environment's, or one for each executed call, or the turn's problem; empty after an answer."""
    step: StepResult
    """The environment's steps in this turn, merged; its observation and images are for reading."""
    images: Sequence[tuple[Image, ...]] = ()
    """The images of each observation; empty if none has any."""
    summary: str | None = None
    """The text with which the agent replaces everything after the opening."""
    answer: str | None = None
    """The agent's answer: the result of a tool that ends the episode; empty after other calls."""


async def run_episode(
    env: Environment,
    item: Item,
    *,
    sample_index: int,
    conversation: Conversation,
    config: EpisodeConfig,
    on_opening: Callable[[Sequence[Message]], None] | None = None,
    on_turn: Callable[[Sequence[Turn]], None] | None = None,
    edit_result: Callable[[ActionResult], ActionResult] | None = None,
) -> Trajectory:
    """Run `item` on `env` to its end. `on_opening` is called once with the messages before the first turn,
    `on_turn` with all turns so far after each one. `edit_result` maps the result of each turn to the one that
    the model sees.

    The metrics are `parse_failures` (turns that are not in the agent's format), `segments` and those of
    `ActionExecutor`. A prompt that leaves no room for a completion ends the episode at once: `MAX_CONTEXT`,
    with no turns and reward 0.

    Raises `EnvCrashed`, `EpisodeTimeout`, `SamplerFailed` or `RewardFailed`: the episode is then void, and
    `env` must not be used again. Other `WingspanError`s of the environment pass through.
    """
    tools = None if config.tools is None else config.tools.fresh()
    episode = _Episode(
        item,
        conversation,
        config,
        ActionExecutor(env, item, tools=tools, step_timeout_s=config.limits.step_timeout_s),
        on_opening,
        on_turn,
        edit_result,
    )
    limit_s = config.limits.episode_timeout_s
    start = time.perf_counter()
    deadline_s = asyncio.get_running_loop().time() + limit_s
    try:
        async with asyncio.timeout_at(deadline_s):
            stop_reason = await episode.run(deadline_s)
    except TimeoutError:
        raise EpisodeTimeout(
            f"{item.item_id}: the episode took longer than {limit_s:g} s, at turn "
            f"{len(episode.turns) + 1}; raise rollout.episode_timeout_s"
        ) from None
    trajectory = Trajectory(
        item=item,
        sample_index=sample_index,
        prompt_ids=conversation.prompt_ids,
        prompt_images=conversation.prompt_images,
        turns=tuple(episode.turns),
        stop_reason=stop_reason,
        reward=sum(turn.reward for turn in episode.turns),
        success=episode.success,
        seconds=time.perf_counter() - start,
        final_state=episode.state,
        metrics=episode.metrics,
    )
    if config.reward is None or not trajectory.turns:
        return trajectory
    reward_input = RewardInput(
        final_response=episode.final_response, trajectory=trajectory, fields=item.fields, env=unwrap(env)
    )
    return assign_rewards(trajectory, await config.reward.score(reward_input))


@dataclass(slots=True)
class _Episode:
    """The state of an episode while it runs."""

    item: Item
    conversation: Conversation
    config: EpisodeConfig
    executor: "ActionExecutor"
    on_opening: Callable[[Sequence[Message]], None] | None
    on_turn: Callable[[Sequence[Turn]], None] | None
    edit_result: Callable[[ActionResult], ActionResult] | None
    turns: list[Turn] = field(default_factory=list)
    success: bool = False
    state: str | None = None
    """The key of the environment's state after the turns so far."""
    final_response: str = ""
    turn_count: int = 0  # without summaries
    parse_failures: int = 0

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics of the episode so far."""
        segments = 1 + sum(turn.prompt_ids is not None for turn in self.turns)
        return {"parse_failures": self.parse_failures, "segments": segments, **self.executor.metrics}

    async def run(self, deadline_s: float) -> StopReason:
        """`deadline_s` is a time of the event loop's clock."""
        agent, max_turns = self.config.agent, self.config.limits.max_turns
        loop = asyncio.get_running_loop()
        observation = await self.executor.reset()
        self.state = self.executor.state_key()
        opening = open_conversation(agent, self.item, observation.text)
        messages = with_images(opening.messages, [observation.images])
        if self.on_opening is not None:
            self.on_opening(messages)
        if not self.conversation.open(replace(opening, messages=messages)):
            return StopReason.MAX_CONTEXT
        while True:
            generation_start = time.perf_counter()
            output = await self.conversation.generate()
            if output is None:
                return StopReason.MAX_CONTEXT
            await take_turn()
            parsed = output.parsed or parse_turn(agent, output.text)
            execution_start = time.perf_counter()
            result = await self.executor.execute(parsed)
            if self.edit_result is not None:
                result = self.edit_result(result)
            has_next_state = not result.step.terminated  # an answer ends the episode, and not the environment
            state, self.state = self.state, self.executor.state_key() if has_next_state else None
            execution_end = time.perf_counter()
            if loop.time() >= deadline_s:
                raise TimeoutError  # the event loop has not looked at its timers since
            self.parse_failures += parsed.is_malformed
            answer = result.answer if parsed.calls else parsed.answer
            self.final_response = output.text if answer is None else answer
            self.turn_count += 1
            self.success |= result.step.success
            is_restarted = result.summary is not None and self.conversation.restart(
                result.summary, result.step.images
            )
            stop_reason = self._stop_reason(result.step)
            continuation = _NO_REPLY
            images = () if is_restarted else result.step.images
            if stop_reason is None and not is_restarted:
                continuation = await self.conversation.add_reply(
                    with_images(reply_to(agent, parsed, result.observations), result.images),
                    turns_left=max_turns - self.turn_count,
                )
                images = continuation.images
            self.turns.append(
                Turn(
                    completion=output.completion,
                    text=output.text,
                    thought="\n".join(filter(None, (output.thought, parsed.thought))),
                    action=format_action(parsed),
                    is_malformed=parsed.is_malformed,
                    observation="" if is_restarted else result.step.observation,
                    reward=result.step.reward,
                    observation_ids=continuation.observation_ids,
                    observation_spans=continuation.observation_spans,
                    prompt_ids=output.prompt_ids,
                    prompt_images=output.prompt_images,
                    images=images,
                    state=state,
                    sampling_s=execution_start - generation_start,
                    env_s=execution_end - execution_start,
                )
            )
            if continuation.summary is not None:
                self.turns.append(_summary_turn(continuation.summary))
            if self.on_turn is not None:
                self.on_turn(self.turns)
            if stop_reason is not None:
                return stop_reason
            if not continuation.has_room:
                return StopReason.MAX_CONTEXT

    def _stop_reason(self, result: StepResult) -> StopReason | None:
        if result.terminated:
            return StopReason.TERMINATED
        if result.truncated:
            return StopReason.TRUNCATED
        if self.turn_count == self.config.limits.max_turns:
            return StopReason.MAX_TURNS
        return None


def _summary_turn(output: ModelTurn) -> Turn:
    return Turn(
        completion=output.completion,
        text=output.text,
        action="",
        observation="",
        reward=0.0,
        prompt_ids=output.prompt_ids,
        prompt_images=output.prompt_images,
    )


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
        return await self._in_time(self._reset(), timeout_s=None, name="reset")

    def state_key(self) -> str | None:
        """The key of the environment's present state, if it has any; raises `EnvCrashed`."""
        with boundary(EnvCrashed, f"{self._item.item_id}: state_key"):
            return read_state_key(self._env)

    async def execute(self, turn: ParsedTurn) -> ActionResult:
        """Raises `EnvCrashed`, `EpisodeTimeout`, and `WingspanError`s of the environment and the tools."""
        self._turns += 1
        if turn.action is not None:
            step = await self._in_time(
                self._step(turn.action), timeout_s=self._timeout_s, name=f"step {self._turns}"
            )
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
        timeout_s = None if tools.keeps_time(call.name) else self._timeout_s
        try:
            async with asyncio.timeout(timeout_s):  # a tool ends when it is cancelled
                result = await tools.call(call.name, call.arguments, env=unwrap(self._env))
        except TimeoutError:
            raise self._too_slow(f"step {self._turns}") from None
        has_timed_out = result.status is ToolStatus.TIMED_OUT and tools.is_stateful(call.name)
        if has_timed_out and isinstance(self._env, Instance):
            # The tool may still be working on it: this episode goes on, but no other may have it.
            self._env.is_reusable = False
        return result

    async def _reset(self) -> Observation:
        await take_turn()
        with boundary(EnvCrashed, f"{self._item.item_id}: reset"):
            return await reset_env(self._env, self._item)

    async def _step(self, action: str) -> StepResult:
        await take_turn()
        with boundary(EnvCrashed, f"{self._item.item_id}: step"):
            return await step_env(self._env, action)

    async def _in_time(self, work: Coroutine[Any, Any, T], *, timeout_s: float | None, name: str) -> T:
        where = f"{self._item.item_id}: {name}"
        try:
            return await run_in_time(work, timeout_s=timeout_s, name=where)
        except TooSlow:
            raise self._too_slow(name) from None
        except WasCancelled as error:
            raise EnvCrashed(f"{where}: {error}") from None

    def _too_slow(self, name: str) -> EpisodeTimeout:
        return EpisodeTimeout(
            f"{self._item.item_id}: {name} took longer than {self._timeout_s:g} s; "
            "raise rollout.step_timeout_s"
        )


def _summary(results: Sequence[ToolResult]) -> str | None:
    """The last summary of a turn, and the results of its other calls, which would be lost."""
    summaries = [result.summary for result in results if result.summary is not None]
    observations = [result.observation for result in results if result.summary is None]
    return "\n\n".join([summaries[-1], *observations]) if summaries else None
