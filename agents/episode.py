"""One episode: an environment, an item and a sampler become a `Trajectory`.

A turn is: sample a completion on the context → decode and parse it → carry it out → append the reply's
tokens. Token in, token out: the context is made of what was sampled, never of a decoded and encoded copy.
What a turn does is `agents/hands.py`'s, what the context holds `agents/context.py`'s, retries and
concurrency `agents/group.py`'s.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from agents.agent import Agent
from agents.calls import ParsedTurn
from agents.context import Context, ContextPolicy
from agents.hands import Hands, Outcome, said
from agents.renderer import Renderer
from agents.rewards.placing import with_rewards
from agents.rewards.types import Reward, RewardInput
from agents.sampler import Sampler
from agents.tools.toolbox import Toolbox
from agents.types import Completion, SamplingParams, StopReason, Trajectory, Turn
from envs.base import Environment
from envs.errors import EpisodeTimeout, SamplerFailed, WingspanError, described
from envs.types import Item, Message, StepResult

MIN_COMPLETION = 8
"""Tokens; an episode ends where fewer are left, for they hold no action."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeLimits:
    """How far an episode may go."""

    max_turns: int
    """The horizon."""
    max_tokens_per_turn: int
    context_length: int
    """Tokens of the whole episode, prompt included."""
    episode_timeout_s: float
    step_timeout_s: float
    """For one `step` of the environment; `reset` has the episode's time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How an item is played."""

    agent: Agent
    renderer: Renderer
    limits: EpisodeLimits
    tools: Toolbox | None = None
    """Every episode has them with counts of its own."""
    reward: Reward | None = None
    """Judges the whole episode in the place of the environment; None leaves it to that."""
    context: ContextPolicy = field(default_factory=ContextPolicy)


async def run_episode(
    env: Environment,
    item: Item,
    *,
    chain: int,
    sampler: Sampler,
    rules: Rules,
    sampling: SamplingParams,
    episode_id: str,
) -> Trajectory:
    """Play `item` on `env` to its end.

    Of `sampling`, `max_tokens` is set here for each turn: the smaller of `max_tokens_per_turn` and
    the room left; `stop_token_ids`, where empty, are the chat template's. Turns that are not in the agent's
    format are counted in `metrics["parse_failures"]`; the tools' metrics are `Hands.metrics`.
    A prompt that leaves no room for a completion ends at once, `MAX_CONTEXT` with no turns and reward 0.

    Raises `EnvCrashed`, `EpisodeTimeout`, `SamplerFailed` or `RewardFailed`: the episode is then void, and
    `env` is not to be used again. Other `WingspanError`s of the environment pass through.
    """
    episode = _Episode(env, item, sampler=sampler, rules=rules, sampling=sampling, episode_id=episode_id)
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
        chain=chain,
        prompt_ids=episode.prompt_ids,
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
    return with_rewards(trajectory, await rules.reward.score(given))


class _Episode:
    """The state of one episode while it is played."""

    def __init__(
        self,
        env: Environment,
        item: Item,
        *,
        sampler: Sampler,
        rules: Rules,
        sampling: SamplingParams,
        episode_id: str,
    ) -> None:
        limits = rules.limits
        self._item = item
        self._sampler = sampler
        self._agent = rules.agent
        self._renderer = rules.renderer
        self._policy = rules.context
        self._limits = limits
        self._episode_id = episode_id
        self._hands = Hands(
            env,
            item,
            tools=None if rules.tools is None else rules.tools.fresh(),
            step_timeout_s=limits.step_timeout_s,
        )
        self._params = replace(
            sampling,
            max_tokens=limits.max_tokens_per_turn,
            stop_token_ids=sampling.stop_token_ids or rules.renderer.stop_token_ids,
        )
        self.prompt_ids: list[int] = []
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
        opening = self._agent.render(self._item, await self._hands.reset())
        context = Context(
            opening,
            renderer=self._renderer,
            policy=self._policy,
            context_length=self._limits.context_length,
            least_room=min(MIN_COMPLETION, self._limits.max_tokens_per_turn),
        )
        self.prompt_ids = context.ids.copy()
        if context.is_full:
            return StopReason.MAX_CONTEXT
        while True:
            completion = await self._complete(context)
            text = self._renderer.decode(completion.token_ids)
            parsed = self._agent.parse(text)
            self._parse_failures += parsed.failed
            self.final_response = text if parsed.answer is None else parsed.answer
            outcome = await self._hands.carry_out(parsed)
            if _is_past(deadline):
                raise TimeoutError  # neither side suspends, so the loop never got to say it
            self._acted += 1
            self.success |= outcome.step.success
            turn = Turn(
                completion=completion,
                text=text,
                thought=parsed.thought,
                action=said(parsed),
                failed=parsed.failed,
                observation=outcome.step.observation,
                reward=outcome.step.reward,
                observation_ids=[],
                prompt_ids=context.segment_prompt,
            )
            stop_reason = self._stop_reason(outcome.step) or await self._go_on(context, turn, parsed, outcome)
            if stop_reason is not None:
                self.turns.append(turn)
                return stop_reason

    async def _go_on(
        self, context: Context, turn: Turn, parsed: ParsedTurn, outcome: Outcome
    ) -> StopReason | None:
        """Make `context` the next turn's and keep `turn`, or say why there is no next one."""
        messages = self._agent.reply(parsed, outcome.observations)
        turns_left = self._limits.max_turns - self._acted
        reply_ids = context.reply_ids(turn.completion, messages, turns_left=turns_left)
        if context.is_to_fold(turn.completion, reply_ids):
            return await self._fold(context, turn, messages, turns_left=turns_left)
        answered = replace(turn, observation_ids=reply_ids)
        if not context.go_on(turn.completion, reply_ids) and not (
            self._policy.when_full == "drop" and context.drop([*self.turns, answered])
        ):
            return StopReason.MAX_CONTEXT
        self.turns.append(answered)
        return None

    async def _fold(
        self, context: Context, turn: Turn, messages: Sequence[Message], *, turns_left: int
    ) -> StopReason | None:
        """Ask for a summary and go on with it: a turn of its own, but none of the horizon's."""
        reply_ids = context.ask_to_fold(
            turn.completion,
            messages,
            turns_left=turns_left,
            summary_tokens=self._limits.max_tokens_per_turn,
        )
        if reply_ids is None:
            return StopReason.MAX_CONTEXT
        self.turns.append(replace(turn, observation_ids=reply_ids))
        prompt_ids = context.segment_prompt
        completion = await self._complete(context)
        text = self._renderer.decode(completion.token_ids)
        self.turns.append(
            Turn(
                completion=completion,
                text=text,
                action="",
                observation="",
                reward=0.0,
                observation_ids=[],
                prompt_ids=prompt_ids,
            )
        )
        return None if context.fold(text) else StopReason.MAX_CONTEXT

    async def _complete(self, context: Context) -> Completion:
        params = self._params
        if context.room < params.max_tokens:
            params = replace(params, max_tokens=context.room)
        try:
            completion = await self._sampler.sample(context.ids, params=params, episode_id=self._episode_id)
        except WingspanError:
            raise
        except Exception as error:
            raise SamplerFailed(f"{self._item.item_id}: the sampler raised {described(error)}") from error
        sampled = len(completion.token_ids)
        if not 0 < sampled <= params.max_tokens or sampled != len(completion.logprobs):
            raise SamplerFailed(
                f"{self._item.item_id}: the sampler answered {sampled} tokens and "
                f"{len(completion.logprobs)} log-probs where 1 to {params.max_tokens} of each were due"
            )
        return completion

    def _stop_reason(self, result: StepResult) -> StopReason | None:
        if result.terminated:
            return StopReason.TERMINATED
        if result.truncated:
            return StopReason.TRUNCATED
        if self._acted == self._limits.max_turns:
            return StopReason.MAX_TURNS
        return None


def _is_past(deadline: asyncio.Timeout) -> bool:
    at = deadline.when()
    return at is not None and asyncio.get_running_loop().time() >= at
