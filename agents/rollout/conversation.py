"""The model's side of one episode: it sees the opening, generates a turn, and sees the reply.

`TokenConversation` keeps the conversation as tokens, to be trained on as they were sampled;
`agents/rollout/chat_conversation.py` keeps it as messages, for servers that report no tokens.

Usually the context of a turn is that of the previous turn, its completion and the reply: one *segment*. When
the context is full, a new segment may begin: another prompt, from which the episode continues. Completions
that a prompt keeps are kept token by token, as they were sampled.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal, NamedTuple, Protocol

from pydantic import Field, model_validator

from agents.agent import Opening
from agents.formats.calls import ParsedTurn
from agents.formats.scan import THOUGHT_END, THOUGHT_START, split_thinking
from agents.prompting.renderer import RenderedReply, Renderer, Span, images_of
from agents.samplers.sampler import Sampler, checked_sample
from agents.samplers.stop_texts import cut_at_stop, text_before
from agents.settings import Positive, Settings
from agents.types import MIN_COMPLETION, Completion, EpisodeLimits, SamplingParams
from envs.errors import SamplerFailed
from envs.types import Image, Message

SUMMARIZE_AT = 0.75
SUMMARY_REQUEST = (
    "The conversation is about to be cut. Write down all that is needed to go on: the task, what has been "
    "done, what was found out, what comes next. Only what you write now will be left."
)
SUMMARY_HEADING = "What you wrote down before the conversation was cut:"


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
    """The spans, as in `Turn`."""
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


class ContextPolicy(Settings):
    """What the policy sees of its past."""

    when_full: Literal["stop", "summarize", "drop"] = "stop"
    """If there is no room for another turn, `stop` ends the episode, and `drop` removes the oldest turns
    until half of the context is free. `summarize` acts earlier: at `summarize_at`."""
    summarize_at: Annotated[float, Field(gt=0, lt=1)] | None = None
    """With `summarize`, the share of the context at which the policy is asked for a summary, by default 0.75,
    in a turn that trains like any other. The summary then replaces the turns."""
    keep_thoughts: bool = True
    """Whether later turns see the text up to `</think>` of earlier ones. If not, each turn is a segment, and
    of a thought that the chat template opens, the marks alone stay."""
    max_observation: Positive | None = None
    """Characters of a reply; a longer one loses its middle."""
    show_budget: bool = False
    """Whether each reply ends with the number of tokens and turns that are left."""

    @model_validator(mode="after")
    def _check_summarize_at(self) -> "ContextPolicy":
        if self.summarize_at is not None and self.when_full != "summarize":
            raise ValueError(
                f"summarize_at {self.summarize_at} is for when_full: summarize, and it is {self.when_full}; "
                "leave it out"
            )
        return self


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
        self._context: _Context | None = None
        self._completion: Completion | None = None
        self.prompt_ids: tuple[int, ...] = ()
        self.prompt_images: tuple[Image, ...] = ()

    def open(self, opening: Opening) -> bool:
        self._context = _Context(
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
        sample = await checked_sample(
            self._sampler,
            context.ids,
            images=context.images,
            params=params,
            episode_id=self._episode_id,
            where=self._where,
        )
        completion = self._completion = cut_at_stop(sample, params.stop, decode=renderer.decode)
        if not renderer.placeholder_ids.isdisjoint(completion.token_ids):
            # The trainer counts images by these tokens and would expect an image that does not exist.
            raise SamplerFailed(f"{self._where}: the sampler returned a token that stands for an image")
        return ModelTurn(
            text=text_before(renderer.decode(completion.token_ids), params.stop),
            completion=completion,
            prompt_ids=context.segment_prompt,
            prompt_images=context.segment_images,
        )

    async def add_reply(self, messages: Sequence[Message], *, turns_left: int) -> Continuation:
        context, completion = self._context, self._completion
        assert context is not None
        assert completion is not None, "generate a turn first"
        images = tuple(images_of(messages))
        if context.is_exceeded_by(messages):  # encoding them would hold the event loop
            return Continuation(has_room=False, images=images)
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


class _Exchange(NamedTuple):
    """A turn in the context."""

    completion_ids: tuple[int, ...]
    reply_ids: Sequence[int]
    images: Sequence[Image]


class _Context:
    """The context of one episode's next turn, `ids`."""

    def __init__(
        self,
        opening: Opening,
        *,
        renderer: Renderer,
        policy: ContextPolicy,
        context_length: int,
        min_room: int,
    ) -> None:
        """`min_room`: the tokens that a completion needs at least."""
        self._opening = opening
        self._renderer = renderer
        self._policy = policy
        self._length = context_length
        self._min_room = min_room
        # The opening, or what replaced it at the last restart, and the turns since then.
        self._base_ids = renderer.prompt_ids(opening.messages, tools=opening.tools)
        self._base_images = images_of(opening.messages)
        self._exchanges: list[_Exchange] = []
        self.ids = self._base_ids.copy()  # extended in place
        self.images = self._base_images.copy()
        """The images that `ids` show, in their order."""
        self.segment_prompt: tuple[int, ...] | None = None
        """The prompt of the next turn, if that begins a segment."""
        self.segment_images: tuple[Image, ...] = ()
        """The images that `segment_prompt` shows."""

    @property
    def room(self) -> int:
        """Tokens that the next completion may have."""
        return self._length - len(self.ids)

    @property
    def is_full(self) -> bool:
        """Whether no turn is possible."""
        return self.room < self._min_room

    def is_exceeded_by(self, messages: Sequence[Message]) -> bool:
        """Whether `messages` alone surely have more tokens than a context, as in `Renderer.is_longer`."""
        return self._renderer.is_longer(self._shorten(messages), self._length)

    def render_reply(
        self, completion: Completion, messages: Sequence[Message], *, turns_left: int
    ) -> RenderedReply:
        """`messages` as tokens, as the policy will see them after `completion`."""
        messages = self._shorten(messages)
        return self._render(completion, messages, observations=messages, turns_left=turns_left)

    def extend(self, completion: Completion, reply_ids: Sequence[int], images: Sequence[Image]) -> bool:
        """Append a turn; returns False, with nothing appended, if that left no room."""
        return self._append(completion, reply_ids, images, room=self._min_room)

    def drop(self, completion: Completion, reply_ids: Sequence[int], images: Sequence[Image]) -> bool:
        """Append a turn and begin a segment of the opening, the last summary and as many of the latest turns
        as leave half of the context free; returns False if not even the last turn does."""
        self._exchanges.append(_Exchange(completion.token_ids, reply_ids, images))
        tail_ids: list[int] = []
        tail_images: list[Image] = []
        count = 0
        for exchange in reversed(self._exchanges):
            ids = [*self._visible(exchange.completion_ids), *exchange.reply_ids]
            if len(self._base_ids) + len(ids) + len(tail_ids) > self._length // 2:
                break
            tail_ids = ids + tail_ids
            tail_images = [*exchange.images, *tail_images]
            count += 1
        if not tail_ids or not self._begin(self._base_ids + tail_ids, self._base_images + tail_images):
            return False
        self._exchanges = self._exchanges[-count:]
        return True

    def needs_summary(self, completion: Completion, reply_ids: Sequence[int]) -> bool:
        """Whether the policy must be asked for a summary after this turn."""
        if self._policy.when_full != "summarize":
            return False
        size = len(self.ids) + len(completion.token_ids) + len(reply_ids)
        return size > (self._policy.summarize_at or SUMMARIZE_AT) * self._length

    def request_summary(
        self, completion: Completion, messages: Sequence[Message], *, turns_left: int, summary_tokens: int
    ) -> RenderedReply | None:
        """Append the turn and the request for a summary; returns the reply, or None, with nothing appended,
        if there is no room."""
        observations = messages = self._shorten(messages)
        if messages and messages[-1].role == "user":
            messages = append_text(messages, SUMMARY_REQUEST)
        else:
            messages = [*messages, Message("user", SUMMARY_REQUEST)]
        reply = self._render(completion, messages, observations=observations, turns_left=turns_left)
        fits = self._append(completion, reply.ids, images_of(messages), room=summary_tokens)
        return reply if fits else None

    def restart(self, summary: str, images: Sequence[Image] = ()) -> bool:
        """Begin a segment of the opening, the policy's `summary` and `images`; returns False, with nothing
        changed, if that is too long."""
        messages = add_summary(self._opening.messages, summary, images)
        prompt = self._renderer.prompt_ids(messages, tools=self._opening.tools)
        if not self._begin(prompt, images_of(messages)):
            return False
        self._base_ids, self._base_images, self._exchanges = prompt.copy(), images_of(messages), []
        return True

    def _shorten(self, messages: Sequence[Message]) -> Sequence[Message]:
        max_length = self._policy.max_observation
        if max_length is None:
            return messages
        return [replace(m, content=shorten_middle(m.content, max_length)) for m in messages]

    def _render(
        self,
        completion: Completion,
        messages: Sequence[Message],
        *,
        observations: Sequence[Message],
        turns_left: int,
    ) -> RenderedReply:
        """`messages` begin with the texts of `observations`; what follows them is not the environment's."""
        if self._policy.show_budget:
            tokens_left = max(0, self.room - len(completion.token_ids))
            budget = f"[left: about {tokens_left} tokens, {turns_left} turns]"
            messages = append_text(messages, budget)
        is_closed = completion.token_ids[-1] in self._renderer.stop_token_ids
        lengths = [len(message.content) for message in observations]
        lengths += [0] * (len(messages) - len(observations))
        return self._renderer.reply(messages, is_closed=is_closed, observed=lengths)

    def _begin(self, prompt: list[int], images: list[Image]) -> bool:
        if len(prompt) > self._length // 2:  # the next segment would end at once
            return False
        self.ids, self.segment_prompt = prompt, tuple(prompt)
        self.images, self.segment_images = images, tuple(images)
        return True

    def _append(
        self, completion: Completion, reply_ids: Sequence[int], images: Sequence[Image], *, room: int
    ) -> bool:
        visible_ids = self._visible(completion.token_ids)
        if len(self.ids) + len(visible_ids) + len(reply_ids) + room > self._length:
            return False
        self.ids += visible_ids
        self.ids += reply_ids
        self.images += images
        self._exchanges.append(_Exchange(completion.token_ids, reply_ids, images))
        is_whole = len(visible_ids) == len(completion.token_ids)
        self.segment_prompt = None if is_whole else tuple(self.ids)
        self.segment_images = () if is_whole else tuple(self.images)
        return True

    def _visible(self, completion_ids: tuple[int, ...]) -> tuple[int, ...]:
        """The part of a completion that later turns see.

        If the chat template has opened the thought, the mark that closes it stays.
        """
        text = self._renderer.decode(completion_ids)
        if self._policy.keep_thoughts or THOUGHT_END not in text:
            return completion_ids

        def has_mark(count: int) -> bool:
            return THOUGHT_END in self._renderer.decode(completion_ids[:count])

        def has_no_mark(start: int) -> bool:
            return THOUGHT_END not in self._renderer.decode(completion_ids[start:mark_end])

        # The shortest prefix with the mark ends at its last token.
        mark_end = bisect_left(range(len(completion_ids)), True, key=has_mark)
        if THOUGHT_START in text.partition(THOUGHT_END)[0]:
            return completion_ids[mark_end:]
        return completion_ids[bisect_left(range(mark_end), True, key=has_no_mark) - 1 :]


def add_summary(opening: Sequence[Message], summary: str, images: Sequence[Image] = ()) -> list[Message]:
    """The opening, with the `summary` of the turns after it and `images` at its end."""
    return append_text(opening, f"{SUMMARY_HEADING}\n{summary.strip()}", images)


def append_text(messages: Sequence[Message], text: str, images: Sequence[Image] = ()) -> list[Message]:
    """`messages`, the last one of which ends with a paragraph of `text`, and with `images`."""
    *earlier, last = messages
    content = f"{last.content}\n\n{text}"
    return [*earlier, replace(last, content=content, images=(*last.images, *images))]


def shorten_middle(text: str, max_length: int) -> str:
    """The first and the last characters of `text`, `max_length` in all, and between them a note of how many
    are left out; a shorter text as it is."""
    excess = len(text) - max_length
    if excess <= 0:
        return text
    head, tail = max_length - max_length // 2, max_length // 2
    return f"{text[:head]}\n[... {excess} characters left out ...]\n{text[len(text) - tail :]}"
