"""The model's side of one episode: it sees the opening, generates a turn, and sees the reply.

`TokenConversation` keeps the conversation as tokens, to be trained on as they were sampled;
`agents/rollout/chat_conversation.py` keeps it as messages, for servers that report no tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from agents.agent import Opening
from agents.formats.calls import ParsedTurn
from agents.formats.scan import split_thinking
from agents.prompting.renderer import Renderer, Span, images_of
from agents.rollout.context import Context, ContextPolicy
from agents.samplers.sampler import Sampler, checked_sample
from agents.types import MIN_COMPLETION, Completion, EpisodeLimits, SamplingParams
from envs.errors import SamplerFailed
from envs.types import Image, Message


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTurn:
    """The model's part of one turn."""

    text: str
    completion: Completion
    prompt_ids: tuple[int, ...] | None = None
    """The segment's prompt if the turn begins one, as in `Turn`."""
    prompt_images: tuple[Image, ...] = ()
    parsed: ParsedTurn | None = None
    """The turn as the server parsed it; if None, the agent parses `text`."""
    thought: str = ""
    """The model's reasoning, if the server reports it apart from `text`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """How a conversation continues after a reply."""

    has_room: bool
    """Whether there is room for another turn."""
    observation_ids: tuple[int, ...] = ()
    """The reply as tokens, if they are known and the conversation continues."""
    observation_spans: tuple[Span, ...] = ()
    """As in `Turn`."""
    images: tuple[Image, ...] = ()
    """The reply's images."""
    summary: ModelTurn | None = None
    """A turn in which the policy summarized the conversation, which continues from that."""


class Conversation(Protocol):
    """The model in one episode."""

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        """The opening as tokens ([P]); empty if they are not known."""

    @property
    def prompt_images(self) -> tuple[Image, ...]:
        """The opening's images."""

    def open(self, opening: Opening) -> bool:
        """Show the opening; returns False if it leaves no room for a turn."""

    async def generate(self) -> ModelTurn | None:
        """The model's next turn, or None if there turns out to be no room. Raises `SamplerFailed` if the
        model does not answer."""

    async def add_reply(self, messages: Sequence[Message], *, turns_left: int) -> Continuation:
        """Show the reply to the model's last turn."""

    def restart(self, summary: str, images: Sequence[Image]) -> bool:
        """Instead of `add_reply`: drop everything but the opening, and continue from `summary` and the turn's
        `images`; returns False, with nothing dropped, if that is too long."""


class StartConversation(Protocol):
    """Starts the model's side of one episode: a `partial` of `TokenConversation` or `ChatConversation`."""

    def __call__(self, episode_id: str, *, where: str, limits: EpisodeLimits) -> Conversation:
        """`where` names the episode in errors."""


class TokenConversation:
    """A `Conversation` that is kept as tokens; they are what is trained on.

    Token in, token out: the context consists of the sampled tokens, never of a decoded and encoded copy. A
    completion is limited by `max_tokens_per_turn` and by the room that is left.
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
        """`sampling.max_tokens` is replaced in each turn, empty `stop_token_ids` by the chat template's."""
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
        self._completion: Completion | None = None
        self.prompt_ids: tuple[int, ...] = ()
        self.prompt_images: tuple[Image, ...] = ()

    def open(self, opening: Opening) -> bool:
        self._context = Context(
            opening,
            renderer=self._renderer,
            policy=self._policy,
            context_length=self._limits.context_length,
            min_room=min(MIN_COMPLETION, self._limits.max_tokens_per_turn),
        )
        self.prompt_ids = tuple(self._context.ids)
        self.prompt_images = tuple(self._context.images)
        return not self._context.is_full

    async def generate(self) -> ModelTurn:
        context, params, renderer = self._context, self._params, self._renderer
        assert context is not None, "open the conversation first"
        if context.room < params.max_tokens:
            params = replace(params, max_tokens=context.room)
        completion = self._completion = await checked_sample(
            self._sampler,
            context.ids,
            images=context.images,
            params=params,
            episode_id=self._episode_id,
            where=self._where,
        )
        if not renderer.placeholder_ids.isdisjoint(completion.token_ids):
            # The trainer counts images by these tokens and would expect an image that does not exist.
            raise SamplerFailed(f"{self._where}: the sampler returned a token that stands for an image")
        return ModelTurn(
            text=renderer.decode(completion.token_ids),
            completion=completion,
            prompt_ids=context.segment_prompt,
            prompt_images=context.segment_images,
        )

    async def add_reply(self, messages: Sequence[Message], *, turns_left: int) -> Continuation:
        context, completion = self._context, self._completion
        assert context is not None
        assert completion is not None, "generate a turn first"
        images = tuple(images_of(messages))
        reply = context.render_reply(completion, messages, turns_left=turns_left)
        if context.needs_summary(completion, reply.ids):
            return await self._summarize(messages, images=images, turns_left=turns_left)
        has_room = context.extend(completion, reply.ids, images) or (
            self._policy.when_full == "drop" and context.drop(completion, reply.ids, images)
        )
        if not has_room:
            return Continuation(has_room=False, images=images)
        return Continuation(
            has_room=True, observation_ids=reply.ids, observation_spans=reply.bodies, images=images
        )

    def restart(self, summary: str, images: Sequence[Image]) -> bool:
        assert self._context is not None, "open the conversation first"
        return self._context.restart(summary, images)

    async def _summarize(
        self, messages: Sequence[Message], *, images: tuple[Image, ...], turns_left: int
    ) -> Continuation:
        """Ask for a summary, a turn that does not count as one of `max_turns`, and continue from it."""
        context, completion = self._context, self._completion
        assert context is not None
        assert completion is not None
        reply = context.request_summary(
            completion, messages, turns_left=turns_left, summary_tokens=self._limits.max_tokens_per_turn
        )
        if reply is None:
            return Continuation(has_room=False, images=images)
        summary = await self.generate()
        text = summary.text if self._policy.keep_thoughts else split_thinking(summary.text)[1]
        return Continuation(
            has_room=context.restart(text),
            observation_ids=reply.ids,
            observation_spans=reply.bodies,
            images=images,
            summary=summary,
        )
