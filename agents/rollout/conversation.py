"""The model's side of one episode: it is shown an opening, speaks, and hears what came of it.

Owns the conversation's state. `TokenSpeaker` keeps it as tokens, so that what was sampled can be trained on
as it was sampled; `agents/rollout/chat_conversation.py` keeps it as messages, for servers that tell no
tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from agents.agent import Opening
from agents.formats.calls import ParsedTurn
from agents.formats.scan import split_thinking
from agents.limits import MIN_COMPLETION, EpisodeLimits
from agents.prompting.renderer import Renderer, images_of
from agents.rollout.context import Context, ContextPolicy
from agents.samplers.sampler import Sampler, checked_sample
from agents.types import Completion, SamplingParams, Turn
from envs.errors import SamplerFailed
from envs.types import Image, Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Spoken:
    """What the model said in one turn."""

    text: str
    completion: Completion
    prompt_ids: list[int] | None = None
    """Where the turn begins a segment; see `Turn`."""
    prompt_images: tuple[Image, ...] = ()
    parsed: ParsedTurn | None = None
    """Where a server has read the calls itself; else the agent reads `text`."""
    thought: str = ""
    """What a server tells apart from `text` as the model's reasoning."""


@dataclass(frozen=True, slots=True)
class Heard:
    """How the conversation goes on after a turn."""

    goes_on: bool
    """False where there is no room for another turn."""
    summary: Turn | None = None
    """What the policy was asked for in between."""


class Speaker(Protocol):
    """The model in one episode."""

    @property
    def prompt_ids(self) -> list[int]:
        """The opening as tokens ([P]); empty where none are known."""
        ...

    @property
    def prompt_images(self) -> tuple[Image, ...]:
        """The opening's pictures."""
        ...

    def open(self, opening: Opening) -> bool:
        """Show the opening; False where it leaves no room for a turn."""
        ...

    async def speak(self) -> Spoken | None:
        """The next turn; None where there is no room for it after all. Raises `SamplerFailed` if there is
        none to be had."""
        ...

    async def hear(self, turns: Sequence[Turn], messages: Sequence[Message], *, turns_left: int) -> Heard:
        """Tell what came of the last of `turns`, and put the reply's tokens, where it goes on, into its
        `observation_ids`, the reply's pictures into its `images`."""
        ...

    def go_on_with(self, summary: str, images: Sequence[Image]) -> bool:
        """Instead of `hear`: forget all but the opening, and go on with `summary` and the turn's `images`;
        False, and nothing is forgotten, where that is too long."""
        ...


class Speakers(Protocol):
    """Makes the speakers of many episodes, of one model."""

    def speaker(self, episode_id: str, *, where: str, limits: EpisodeLimits) -> Speaker:
        """For one episode; `where` names it in errors."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSpeakers:
    """Speakers by tokens: all that is trained on comes from these."""

    sampler: Sampler
    renderer: Renderer
    sampling: SamplingParams
    """`max_tokens` is set for each turn; `stop_token_ids`, where empty, are the chat template's."""
    context: ContextPolicy = ContextPolicy()  # noqa: RUF009  # it is frozen

    def speaker(self, episode_id: str, *, where: str, limits: EpisodeLimits) -> "TokenSpeaker":
        """See `Speakers`."""
        return TokenSpeaker(self, episode_id, where=where, limits=limits)


class TokenSpeaker:
    """See `Speaker`. Token in, token out: the context is made of what was sampled, never of a decoded and
    encoded copy. A completion has at most `max_tokens_per_turn` tokens and the room that is left."""

    def __init__(self, model: TokenSpeakers, episode_id: str, *, where: str, limits: EpisodeLimits) -> None:
        self._sampler = model.sampler
        self._renderer = model.renderer
        self._policy = model.context
        self._episode_id = episode_id
        self._where = where
        self._limits = limits
        self._params = replace(
            model.sampling,
            max_tokens=limits.max_tokens_per_turn,
            stop_token_ids=model.sampling.stop_token_ids or model.renderer.stop_token_ids,
        )
        self._context: Context | None = None
        self.prompt_ids: list[int] = []
        self.prompt_images: tuple[Image, ...] = ()

    def open(self, opening: Opening) -> bool:
        """See `Speaker`."""
        self._context = Context(
            opening,
            renderer=self._renderer,
            policy=self._policy,
            context_length=self._limits.context_length,
            least_room=min(MIN_COMPLETION, self._limits.max_tokens_per_turn),
        )
        self.prompt_ids = self._context.ids.copy()
        self.prompt_images = tuple(self._context.images)
        return not self._context.is_full

    async def speak(self) -> Spoken:
        """See `Speaker`."""
        context, params, renderer = self._opened, self._params, self._renderer
        if context.room < params.max_tokens:
            params = replace(params, max_tokens=context.room)
        completion = await checked_sample(
            self._sampler,
            context.ids,
            images=context.images,
            params=params,
            episode_id=self._episode_id,
            where=self._where,
        )
        if not renderer.placeholder_ids.isdisjoint(completion.token_ids):
            # Whoever counts pictures by these tokens, the trainer too, would see one that there is not.
            raise SamplerFailed(f"{self._where}: the sampler answered a token that stands for a picture")
        return Spoken(
            text=renderer.decode(completion.token_ids),
            completion=completion,
            prompt_ids=context.segment_prompt,
            prompt_images=tuple(context.segment_images),
        )

    async def hear(self, turns: Sequence[Turn], messages: Sequence[Message], *, turns_left: int) -> Heard:
        """See `Speaker`."""
        context, turn = self._opened, turns[-1]
        reply_ids = context.reply_ids(turn.completion, messages, turns_left=turns_left)
        if context.is_to_fold(turn.completion, reply_ids):
            return await self._fold(turn, messages, turns_left=turns_left)
        turn.observation_ids.extend(reply_ids)
        turn.images[:] = images_of(messages)
        if context.go_on(turn.completion, reply_ids, turn.images):
            return Heard(goes_on=True)
        if self._policy.when_full == "drop" and context.drop(turns):
            return Heard(goes_on=True)
        turn.observation_ids.clear()
        return Heard(goes_on=False)

    def go_on_with(self, summary: str, images: Sequence[Image]) -> bool:
        """See `Speaker`."""
        return self._opened.fold(summary, images)

    async def _fold(self, turn: Turn, messages: Sequence[Message], *, turns_left: int) -> Heard:
        """Ask for a summary and go on with it: a turn of its own, but none of the horizon's."""
        context = self._opened
        reply_ids = context.ask_to_fold(
            turn.completion,
            messages,
            turns_left=turns_left,
            summary_tokens=self._limits.max_tokens_per_turn,
        )
        if reply_ids is None:
            return Heard(goes_on=False)
        turn.observation_ids.extend(reply_ids)
        turn.images[:] = images_of(messages)
        spoken = await self.speak()
        summary = Turn(
            completion=spoken.completion,
            text=spoken.text,
            action="",
            observation="",
            reward=0.0,
            observation_ids=[],
            prompt_ids=spoken.prompt_ids,
            prompt_images=spoken.prompt_images,
        )
        kept = spoken.text if self._policy.keep_thoughts else split_thinking(spoken.text)[1]
        return Heard(goes_on=context.fold(kept), summary=summary)

    @property
    def _opened(self) -> Context:
        if self._context is None:
            raise RuntimeError("open the conversation first")
        return self._context
