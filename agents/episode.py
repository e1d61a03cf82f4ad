"""One episode: an environment, an item and a sampler become a `Trajectory`.

A turn is: sample a completion on the whole history → decode and parse it → step the environment →
append the observation's tokens. Token in, token out: the history is what was sampled, never a
decoded and encoded copy. Retries and concurrency are `agents/group.py`'s.
"""

import asyncio
import time
from dataclasses import dataclass, replace
from typing import NoReturn

from agents.parser import Parser
from agents.renderer import Renderer
from agents.sampler import Sampler
from agents.types import Completion, SamplingParams, StopReason, Trajectory, Turn
from envs.base import Environment
from envs.errors import EnvCrashed, EpisodeTimeout, SamplerFailed, WingspanError, described
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
class Agent:
    """How a conversation is put to the model, and an action read from its answer."""

    renderer: Renderer
    parse: Parser
    instructions: str | None
    """Opens the first message, before the first observation; None for a model that knows the game."""


async def run_episode(
    env: Environment,
    item: Item,
    *,
    chain: int,
    sampler: Sampler,
    agent: Agent,
    limits: EpisodeLimits,
    sampling: SamplingParams,
    episode_id: str,
) -> Trajectory:
    """Play `item` on `env` to its end.

    Of `sampling`, `max_tokens` is set here for each turn: the smaller of `max_tokens_per_turn` and
    the room left; `stop_token_ids`, where empty, are the chat template's. A completion in which no
    action is found is given to the environment as it is, and counted in `metrics["parse_failures"]`.
    A prompt that leaves no room for a completion ends at once, `MAX_CONTEXT` with no turns.

    Raises `EnvCrashed`, `EpisodeTimeout` or `SamplerFailed`: the episode is then void, and `env`
    is not to be used again. Other `WingspanError`s of the environment pass through.
    """
    episode = _Episode(
        env, item, sampler=sampler, agent=agent, limits=limits, sampling=sampling, episode_id=episode_id
    )
    started = time.perf_counter()
    try:
        async with asyncio.timeout(limits.episode_timeout_s) as deadline:
            stop_reason = await episode.play(deadline)
    except TimeoutError:
        raise EpisodeTimeout(
            f"{item.item_id}: the episode took longer than {limits.episode_timeout_s:g} s, at turn "
            f"{len(episode.turns) + 1}; raise rollout.episode_timeout_s"
        ) from None
    return Trajectory(
        item=item,
        chain=chain,
        prompt_ids=episode.prompt_ids,
        turns=episode.turns,
        stop_reason=stop_reason,
        reward=sum(turn.reward for turn in episode.turns),
        success=episode.success,
        seconds=time.perf_counter() - started,
        metrics={"parse_failures": episode.parse_failures},
    )


class _Episode:
    """The state of one episode while it is played."""

    def __init__(
        self,
        env: Environment,
        item: Item,
        *,
        sampler: Sampler,
        agent: Agent,
        limits: EpisodeLimits,
        sampling: SamplingParams,
        episode_id: str,
    ) -> None:
        self._env = env
        self._item = item
        self._sampler = sampler
        self._agent = agent
        self._limits = limits
        self._episode_id = episode_id
        self._params = replace(
            sampling,
            max_tokens=limits.max_tokens_per_turn,
            stop_token_ids=sampling.stop_token_ids or agent.renderer.stop_token_ids,
        )
        self._least_room = min(MIN_COMPLETION, limits.max_tokens_per_turn)
        self.prompt_ids: list[int] = []
        self.turns: list[Turn] = []
        self.success = False
        self.parse_failures = 0

    async def play(self, deadline: asyncio.Timeout) -> StopReason:
        renderer, limits = self._agent.renderer, self._limits
        self.prompt_ids = await self._open()
        history = self.prompt_ids.copy()  # one list for the whole episode, extended in place
        if len(history) + self._least_room > limits.context_length:
            return StopReason.MAX_CONTEXT
        while True:
            completion = await self._complete(history)
            history += completion.token_ids
            text = renderer.decode(completion.token_ids)
            parsed = self._agent.parse(text)
            self.parse_failures += parsed.failed
            result = await self._step(parsed.action)
            if _is_past(deadline):
                raise TimeoutError  # neither side suspends, so the loop never got to say it
            self.success |= result.success

            stop_reason = self._stop_reason(result)
            observation_ids: list[int] = []
            if stop_reason is None:
                closed = completion.token_ids[-1] in renderer.stop_token_ids
                observation_ids = renderer.observation_ids(result.observation, closed=closed)
                if len(history) + len(observation_ids) + self._least_room > limits.context_length:
                    stop_reason, observation_ids = StopReason.MAX_CONTEXT, []
            history += observation_ids
            self.turns.append(
                Turn(
                    completion=completion,
                    text=text,
                    action=parsed.action,
                    observation=result.observation,
                    reward=result.reward,
                    observation_ids=observation_ids,
                )
            )
            if stop_reason is not None:
                return stop_reason

    async def _open(self) -> list[int]:
        try:
            observation = await self._env.reset(self._item)
        except Exception as error:
            self._env_failed("reset", error)
        instructions = self._agent.instructions
        opening = observation if instructions is None else f"{instructions}\n\n{observation}"
        return self._agent.renderer.prompt_ids([Message("user", opening)])

    async def _complete(self, history: list[int]) -> Completion:
        params = self._params
        room = self._limits.context_length - len(history)
        if room < params.max_tokens:
            params = replace(params, max_tokens=room)
        try:
            completion = await self._sampler.sample(history, params=params, episode_id=self._episode_id)
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

    async def _step(self, action: str) -> StepResult:
        limit_s = self._limits.step_timeout_s
        try:
            async with asyncio.timeout(limit_s) as limit:
                return await self._env.step(action)
        except Exception as error:
            if limit.expired() and isinstance(error, TimeoutError):
                raise EpisodeTimeout(
                    f"{self._item.item_id}: step {len(self.turns) + 1} took longer than {limit_s:g} s; "
                    "raise rollout.step_timeout_s"
                ) from None
            self._env_failed("step", error)

    def _env_failed(self, where: str, error: Exception) -> NoReturn:
        if isinstance(error, WingspanError):
            raise error
        raise EnvCrashed(f"{self._item.item_id}: {where} raised {described(error)}") from error

    def _stop_reason(self, result: StepResult) -> StopReason | None:
        if result.terminated:
            return StopReason.TERMINATED
        if result.truncated:
            return StopReason.TRUNCATED
        if len(self.turns) + 1 == self._limits.max_turns:
            return StopReason.MAX_TURNS
        return None


def _is_past(deadline: asyncio.Timeout) -> bool:
    at = deadline.when()
    return at is not None and asyncio.get_running_loop().time() >= at
