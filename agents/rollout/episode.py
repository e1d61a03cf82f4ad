"""One episode: an environment, an item and a model become a `Trajectory`.

A turn is: the model speaks → what it said is parsed → it is carried out → the model hears what came of it.
What a turn does is `agents/rollout/actions.py`'s, what the model sees `agents/rollout/conversation.py`'s,
retries and concurrency
`agents/rollout/group.py`'s.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from agents.agent import Agent, with_images
from agents.limits import EpisodeLimits
from agents.rewards.assignment import assign_rewards
from agents.rewards.types import Reward, RewardInput
from agents.rollout.actions import ActionExecutor, format_action
from agents.rollout.conversation import Conversation
from agents.tools.toolbox import Toolbox
from agents.types import StopReason, Trajectory, Turn
from envs.base import Environment
from envs.errors import EpisodeTimeout
from envs.runtime.instance import unwrap
from envs.types import Item, Message, StepResult


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeConfig:
    """How an item is played, by whichever model."""

    agent: Agent
    limits: EpisodeLimits
    tools: Toolbox | None = None
    """Every episode has them with counts of its own."""
    reward: Reward | None = None
    """Judges the whole episode in the place of the environment; None leaves it to that."""


async def run_episode(
    env: Environment,
    item: Item,
    *,
    sample_index: int,
    conversation: Conversation,
    config: EpisodeConfig,
    on_opening: Callable[[Sequence[Message]], None] | None = None,
    on_turn: Callable[[Sequence[Turn]], None] | None = None,
) -> Trajectory:
    """Play `item` on `env` to its end. `on_opening` is called once with the messages before the first turn,
    `on_turn` with all turns so far as each is carried out.

    Turns that are not in the agent's format are counted in `metrics["parse_failures"]`, segments in
    `metrics["segments"]`; the tools' metrics are `ActionExecutor.metrics`. A prompt that leaves no room for a
    completion ends at once, `MAX_CONTEXT` with no turns and reward 0.

    Raises `EnvCrashed`, `EpisodeTimeout`, `SamplerFailed` or `RewardFailed`: the episode is then void, and
    `env` is not to be used again. Other `WingspanError`s of the environment pass through.
    """
    episode = _Episode(
        env, item, conversation=conversation, config=config, on_opening=on_opening, on_turn=on_turn
    )
    limit_s = config.limits.episode_timeout_s
    started = time.perf_counter()
    try:
        async with asyncio.timeout(limit_s) as deadline:
            stop_reason = await episode.run(deadline)
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
        turns=episode.turns,
        stop_reason=stop_reason,
        reward=sum(turn.reward for turn in episode.turns),
        success=episode.success,
        seconds=time.perf_counter() - started,
        metrics=episode.metrics,
    )
    if config.reward is None or not trajectory.turns:
        return trajectory
    given = RewardInput(
        final_response=episode.final_response, trajectory=trajectory, fields=item.fields, env=unwrap(env)
    )
    return assign_rewards(trajectory, await config.reward.score(given))


class _Episode:
    """The state of one episode while it is played."""

    def __init__(
        self,
        env: Environment,
        item: Item,
        *,
        conversation: Conversation,
        config: EpisodeConfig,
        on_opening: Callable[[Sequence[Message]], None] | None,
        on_turn: Callable[[Sequence[Turn]], None] | None,
    ) -> None:
        self._item = item
        self._conversation = conversation
        self._on_opening = on_opening
        self._on_turn = on_turn
        self._agent = config.agent
        self._max_turns = config.limits.max_turns
        self._executor = ActionExecutor(
            env,
            item,
            tools=None if config.tools is None else config.tools.fresh(),
            step_timeout_s=config.limits.step_timeout_s,
        )
        self.turns: list[Turn] = []
        self.success = False
        self.final_response = ""
        self._acted = 0
        self._parse_failures = 0

    @property
    def metrics(self) -> dict[str, float]:
        """Of the episode so far."""
        segments = 1 + sum(turn.prompt_ids is not None for turn in self.turns)
        return {"parse_failures": self._parse_failures, "segments": segments, **self._executor.metrics}

    async def run(self, deadline: asyncio.Timeout) -> StopReason:
        seen = await self._executor.reset()
        opening = self._agent.render(self._item, seen.text)
        if self._on_opening is not None:
            self._on_opening(opening.messages)
        if not self._conversation.open(
            replace(opening, messages=with_images(opening.messages, [seen.images]))
        ):
            return StopReason.MAX_CONTEXT
        while True:
            asked = time.perf_counter()
            output = await self._conversation.generate()
            if output is None:
                return StopReason.MAX_CONTEXT
            parsed = output.parsed or self._agent.parse(output.text)
            self._parse_failures += parsed.is_malformed
            spoke = time.perf_counter()
            result = await self._executor.execute(parsed)
            answered = time.perf_counter()
            if _is_past(deadline):
                raise TimeoutError  # neither side suspends, so the loop never got to say it
            answer = result.answer if parsed.calls else parsed.answer
            self.final_response = output.text if answer is None else answer
            self._acted += 1
            self.success |= result.step.success
            cut = result.summary is not None and self._conversation.restart(
                result.summary, result.step.images
            )
            turn = Turn(
                completion=output.completion,
                text=output.text,
                thought="\n".join(filter(None, (output.thought, parsed.thought))),
                action=format_action(parsed),
                failed=parsed.is_malformed,
                observation="" if cut else result.step.observation,
                reward=result.step.reward,
                observation_ids=[],
                prompt_ids=output.prompt_ids,
                prompt_images=output.prompt_images,
                images=[] if cut else list(result.step.images),
                sampling_s=spoke - asked,
                env_s=answered - spoke,
            )
            self.turns.append(turn)
            if self._on_turn is not None:
                self._on_turn(self.turns)
            stop_reason = self._stop_reason(result.step)
            if stop_reason is not None:
                return stop_reason
            if cut:
                continue
            continuation = await self._conversation.add_reply(
                self.turns,
                with_images(self._agent.reply(parsed, result.observations), result.images),
                turns_left=self._max_turns - self._acted,
            )
            if continuation.summary is not None:
                self.turns.append(continuation.summary)
            if not continuation.goes_on:
                return StopReason.MAX_CONTEXT

    def _stop_reason(self, result: StepResult) -> StopReason | None:
        if result.terminated:
            return StopReason.TERMINATED
        if result.truncated:
            return StopReason.TRUNCATED
        if self._acted == self._max_turns:
            return StopReason.MAX_TURNS
        return None


def _is_past(deadline: asyncio.Timeout) -> bool:
    at = deadline.when()
    return at is not None and asyncio.get_running_loop().time() >= at
