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
from agents.rollout.actions import Hands, said
from agents.rollout.conversation import Speaker
from agents.tools.toolbox import Toolbox
from agents.types import StopReason, Trajectory, Turn
from envs.base import Environment
from envs.errors import EpisodeTimeout
from envs.types import Item, Message, StepResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
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
    speaker: Speaker,
    rules: Rules,
    on_opening: Callable[[Sequence[Message]], None] | None = None,
    on_turn: Callable[[Sequence[Turn]], None] | None = None,
) -> Trajectory:
    """Play `item` on `env` to its end. `on_opening` is called once with the messages before the first turn,
    `on_turn` with all turns so far as each is carried out.

    Turns that are not in the agent's format are counted in `metrics["parse_failures"]`, segments in
    `metrics["segments"]`; the tools' metrics are `Hands.metrics`. A prompt that leaves no room for a
    completion ends at once, `MAX_CONTEXT` with no turns and reward 0.

    Raises `EnvCrashed`, `EpisodeTimeout`, `SamplerFailed` or `RewardFailed`: the episode is then void, and
    `env` is not to be used again. Other `WingspanError`s of the environment pass through.
    """
    episode = _Episode(env, item, speaker=speaker, rules=rules, on_opening=on_opening, on_turn=on_turn)
    limit_s = rules.limits.episode_timeout_s
    started = time.perf_counter()
    try:
        async with asyncio.timeout(limit_s) as deadline:
            stop_reason = await episode.play(deadline)
    except TimeoutError:
        raise EpisodeTimeout(
            f"{item.item_id}: the episode took longer than {limit_s:g} s, at turn "
            f"{len(episode.turns) + 1}; raise rollout.episode_timeout_s"
        ) from None
    trajectory = Trajectory(
        item=item,
        sample_index=sample_index,
        prompt_ids=speaker.prompt_ids,
        prompt_images=speaker.prompt_images,
        turns=episode.turns,
        stop_reason=stop_reason,
        reward=sum(turn.reward for turn in episode.turns),
        success=episode.success,
        seconds=time.perf_counter() - started,
        metrics=episode.metrics,
    )
    if rules.reward is None or not trajectory.turns:
        return trajectory
    given = RewardInput(
        final_response=episode.final_response, trajectory=trajectory, fields=item.fields, env=env
    )
    return assign_rewards(trajectory, await rules.reward.score(given))


class _Episode:
    """The state of one episode while it is played."""

    def __init__(
        self,
        env: Environment,
        item: Item,
        *,
        speaker: Speaker,
        rules: Rules,
        on_opening: Callable[[Sequence[Message]], None] | None,
        on_turn: Callable[[Sequence[Turn]], None] | None,
    ) -> None:
        self._item = item
        self._speaker = speaker
        self._on_opening = on_opening
        self._on_turn = on_turn
        self._agent = rules.agent
        self._max_turns = rules.limits.max_turns
        self._hands = Hands(
            env,
            item,
            tools=None if rules.tools is None else rules.tools.fresh(),
            step_timeout_s=rules.limits.step_timeout_s,
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
        return {"parse_failures": self._parse_failures, "segments": segments, **self._hands.metrics}

    async def play(self, deadline: asyncio.Timeout) -> StopReason:
        seen = await self._hands.reset()
        opening = self._agent.render(self._item, seen.text)
        if self._on_opening is not None:
            self._on_opening(opening.messages)
        if not self._speaker.open(replace(opening, messages=with_images(opening.messages, [seen.images]))):
            return StopReason.MAX_CONTEXT
        while True:
            asked = time.perf_counter()
            spoken = await self._speaker.speak()
            if spoken is None:
                return StopReason.MAX_CONTEXT
            parsed = spoken.parsed or self._agent.parse(spoken.text)
            self._parse_failures += parsed.is_malformed
            spoke = time.perf_counter()
            outcome = await self._hands.carry_out(parsed)
            answered = time.perf_counter()
            if _is_past(deadline):
                raise TimeoutError  # neither side suspends, so the loop never got to say it
            answer = outcome.answer if parsed.calls else parsed.answer
            self.final_response = spoken.text if answer is None else answer
            self._acted += 1
            self.success |= outcome.step.success
            cut = outcome.summary is not None and self._speaker.go_on_with(
                outcome.summary, outcome.step.images
            )
            turn = Turn(
                completion=spoken.completion,
                text=spoken.text,
                thought="\n".join(filter(None, (spoken.thought, parsed.thought))),
                action=said(parsed),
                failed=parsed.is_malformed,
                observation="" if cut else outcome.step.observation,
                reward=outcome.step.reward,
                observation_ids=[],
                prompt_ids=spoken.prompt_ids,
                prompt_images=spoken.prompt_images,
                images=[] if cut else list(outcome.step.images),
                sampling_s=spoke - asked,
                env_s=answered - spoke,
            )
            self.turns.append(turn)
            if self._on_turn is not None:
                self._on_turn(self.turns)
            stop_reason = self._stop_reason(outcome.step)
            if stop_reason is not None:
                return stop_reason
            if cut:
                continue
            heard = await self._speaker.hear(
                self.turns,
                with_images(self._agent.reply(parsed, outcome.observations), outcome.images),
                turns_left=self._max_turns - self._acted,
            )
            if heard.summary is not None:
                self.turns.append(heard.summary)
            if not heard.goes_on:
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
