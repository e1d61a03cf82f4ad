"""The model's side of one episode: it is shown an opening, answers, and is shown what came of the answer.

Owns the conversation's state. `TokenConversation` keeps it as tokens, so that what was sampled can be
trained on as it was sampled; `agents/rollout/chat_conversation.py` keeps it as messages, for servers that
report no tokens.
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
class ModelTurn:
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
class Continuation:
    """How the conversation goes on after a turn."""

    goes_on: bool
    """False where there is no room for another turn."""
    summary: Turn | None = None
    """What the policy was asked for in between."""


class Conversation(Protocol):
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

    async def generate(self) -> ModelTurn | None:
        """The next turn; None where there is no room for it after all. Raises `SamplerFailed` if there is
        none to be had."""
        ...

    async def add_reply(
        self, turns: Sequence[Turn], messages: Sequence[Message], *, turns_left: int
    ) -> Continuation:
        """Tell what came of the last of `turns`, and put the reply's tokens, where it goes on, into its
        `observation_ids`, the reply's pictures into its `images`."""
        ...

    def restart(self, summary: str, images: Sequence[Image]) -> bool:
        """Instead of `add_reply`: forget all but the opening, and go on with `summary` and the turn's
        `images`; False, and nothing is forgotten, where that is too long."""
        ...


class StartConversation(Protocol):
    """Starts the model's side of one episode: a `partial` of `TokenConversation` or `ChatConversation`."""

    def __call__(self, episode_id: str, *, where: str, limits: EpisodeLimits) -> Conversation:
        """`where` names the episode in errors."""
        ...


class TokenConversation:
    """A `Conversation` that is kept as tokens: all that is trained on comes from these.

    Token in, token out: the context is made of what was sampled, never of a decoded and encoded copy. A
    completion has at most `max_tokens_per_turn` tokens and the room that is left.
    """

    def __init__(
        self,
        episode_id: str,
        *,
        where: str,
        limits: EpisodeLimits,
        sampler: Sampler,
        renderer: Renderer,
        sampling: SamplingParams,
        context: ContextPolicy | None = None,
    ) -> None:
        """`sampling`: its `max_tokens` is set for each turn; where `stop_token_ids` is empty, the chat
        template's are used."""
        self._sampler = sampler
        self._renderer = renderer
        self._policy = context or ContextPolicy()
        self._episode_id = episode_id
        self._where = where
        self._limits = limits
        self._params = replace(
            sampling,
            max_tokens=limits.max_tokens_per_turn,
            stop_token_ids=sampling.stop_token_ids or renderer.stop_token_ids,
        )
        self._context: Context | None = None
        self.prompt_ids: list[int] = []
        self.prompt_images: tuple[Image, ...] = ()

    def open(self, opening: Opening) -> bool:
        """See `Conversation`."""
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

    async def generate(self) -> ModelTurn:
        """See `Conversation`."""
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
        return ModelTurn(
            text=renderer.decode(completion.token_ids),
            completion=completion,
            prompt_ids=context.segment_prompt,
            prompt_images=tuple(context.segment_images),
        )

    async def add_reply(
        self, turns: Sequence[Turn], messages: Sequence[Message], *, turns_left: int
    ) -> Continuation:
        """See `Conversation`."""
        context, turn = self._opened, turns[-1]
        reply_ids = context.reply_ids(turn.completion, messages, turns_left=turns_left)
        if context.needs_summary(turn.completion, reply_ids):
            return await self._summarize(turn, messages, turns_left=turns_left)
        turn.observation_ids.extend(reply_ids)
        turn.images[:] = images_of(messages)
        if context.go_on(turn.completion, reply_ids, turn.images):
            return Continuation(goes_on=True)
        if self._policy.when_full == "drop" and context.drop(turns):
            return Continuation(goes_on=True)
        turn.observation_ids.clear()
        return Continuation(goes_on=False)

    def restart(self, summary: str, images: Sequence[Image]) -> bool:
        """See `Conversation`."""
        return self._opened.restart(summary, images)

    async def _summarize(self, turn: Turn, messages: Sequence[Message], *, turns_left: int) -> Continuation:
        """Ask for a summary and go on with it: a turn of its own, but none of the horizon's."""
        context = self._opened
        reply_ids = context.request_summary(
            turn.completion,
            messages,
            turns_left=turns_left,
            summary_tokens=self._limits.max_tokens_per_turn,
        )
        if reply_ids is None:
            return Continuation(goes_on=False)
        turn.observation_ids.extend(reply_ids)
        turn.images[:] = images_of(messages)
        turn = await self.generate()
        summary = Turn(
            completion=turn.completion,
            text=turn.text,
            action="",
            observation="",
            reward=0.0,
            observation_ids=[],
            prompt_ids=turn.prompt_ids,
            prompt_images=turn.prompt_images,
        )
        kept = turn.text if self._policy.keep_thoughts else split_thinking(turn.text)[1]
        return Continuation(goes_on=context.restart(kept), summary=summary)

    @property
    def _opened(self) -> Context:
        if self._context is None:
            raise RuntimeError("open the conversation first")
        return self._context
