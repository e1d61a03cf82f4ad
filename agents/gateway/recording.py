"""The recording of a session: a tree of conversations, cut into segments.

A request whose history was recorded continues the tokens of that history. Every completion is in one
segment, once:

    u1 a1 u2 a2      a conversation that grows is one segment
        └ u3 a3      another reply to a1 begins a segment; its prompt has a1's tokens, which train above
    s u1 a4          so does a changed history; its prompt is rendered anew

A completion's segment is chosen when its request begins, because requests may be concurrent.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from agents.gateway.conversation import ChatTurn, Tool, digest_prefixes, extend_digest
from agents.gateway.rendering import Reading, Rendering
from agents.prompting.renderer import Span
from agents.types import OTHER_SAMPLING, Completion, Label, StopReason, Trajectory, Turn
from envs.types import Image, Item


@dataclass(frozen=True, slots=True)
class _Text:
    """Tokens of a conversation."""

    ids: list[int]  # [L]
    images: list[Image]
    """Shown by `ids`, in order."""
    text: str = ""
    """`ids` as text, between two completions."""
    observation_spans: tuple[Span, ...] = ()
    """The spans, as in `Turn`, between two completions."""


@dataclass(slots=True, eq=False)
class _Segment:
    name: str
    prompt: _Text
    ids: list[int]  # [L], the prompt, completions and the text between them
    images: list[Image]
    """Shown by `ids`, in order."""
    num_failed: int = 0
    """Requests for its next completion that got no answer."""
    answers: list["_Answer"] = field(default_factory=list)


@dataclass(slots=True, eq=False, kw_only=True)
class _Answer:
    """A completion and its position."""

    number: int
    """Index among the session's answers."""
    segment: _Segment
    position: int
    """Index among the segment's answers."""
    end: int
    """Tokens of the segment up to and with this completion."""
    images_end: int
    """Images of the segment up to there."""
    reply: _Text
    """Since the completion before it in the segment; empty for the first."""
    completion: Completion
    reading: Reading
    is_extended: bool = False
    """Whether the segment continues after it, or a request is about to continue it."""


@dataclass(slots=True, eq=False, kw_only=True)
class PendingTurn:
    """A request under way."""

    prompt: _Text
    """The whole text that the completion is sampled on; not kept in `_Answer`, since prompts of many turns
    are long."""
    segment: _Segment
    digest: bytes
    """The digest of the conversation."""
    reply: _Text
    is_answered: bool = False

    @property
    def cache_name(self) -> str:
        """The name by which the sampler caches this prompt: prompts of one name share a prefix and come one
        after another. A cancelled request may still be running, so the next one gets another name."""
        num_failed = self.segment.num_failed
        return f"{self.segment.name}~{num_failed}" if num_failed else self.segment.name


class Recording:
    """The recording of one session."""

    def __init__(self, name: str, rendering: Rendering) -> None:
        """`name`: the sampler's seed and key for this session."""
        self._name = name
        self._rendering = rendering
        self._by_digest: dict[bytes, list[_Answer]] = {}
        self._segments = 0
        self._answers: list[_Answer] = []
        self.other_sampling = 0
        """Completions whose request asked for another temperature, top_p or top_k than the policy's own."""
        self._started_s = time.perf_counter()

    @property
    def turns(self) -> int:
        """Completions so far."""
        return len(self._answers)

    @contextmanager
    def pending_turn(
        self, messages: Sequence[ChatTurn], tools: Sequence[Tool], *, prefix: Sequence[int] = ()
    ) -> Iterator[PendingTurn]:
        """The tokens to sample on, which end with `prefix`: the start of the answer, written by the gateway.
        Without a call of `answer` inside, nothing is recorded.

        Raises `RequestRejected` for a conversation that the chat template rejects.
        """
        digests = digest_prefixes(messages, tools)
        position, before = self._find(messages, digests)
        if before is None:
            ids = [*self._rendering.prompt_ids(messages, tools), *prefix]
            pending = self._new_segment(_Text(ids, _images(messages)), digests[-1])
        else:
            pending = self._continue(before, messages[position + 1 :], digests[-1], prefix=prefix)
        try:
            yield pending
        finally:
            if not pending.is_answered and before is not None and before.segment is pending.segment:
                before.is_extended = False
                before.segment.num_failed += 1

    def answer(self, pending: PendingTurn, completion: Completion, reading: Reading) -> None:
        """Record a completion."""
        segment = pending.segment
        segment.ids += pending.reply.ids
        segment.ids += completion.token_ids
        segment.images += pending.reply.images
        answer = _Answer(
            number=len(self._answers),
            segment=segment,
            position=len(segment.answers),
            end=len(segment.ids),
            images_end=len(segment.images),
            reply=pending.reply,
            completion=completion,
            reading=reading,
        )
        segment.answers.append(answer)
        self._answers.append(answer)
        self._by_digest.setdefault(extend_digest(pending.digest, reading.as_turn), []).append(answer)
        pending.is_answered = True

    def trajectory(
        self,
        item: Item,
        *,
        sample_index: int,
        reward: float,
        success: bool,
        turn_rewards: Sequence[float] | None,
        stop_reason: StopReason,
        metrics: Mapping[str, float],
        labels: Mapping[str, Label],
    ) -> Trajectory:
        """The answers so far, in the order in which they were given; `turn_rewards` in the same.

        The last turn also gets `reward`; without an answer, only the trajectory has it. `parse_failures`,
        `segments` and `other_sampling` are added to `metrics`.
        """
        rewards = [0.0] * self.turns if turn_rewards is None else list(turn_rewards)
        if len(rewards) != self.turns:
            raise ValueError(f"{item.item_id}: {len(rewards)} turn_rewards for {self.turns} turns")
        if rewards:
            rewards[-1] += reward
        turns = tuple(_turn(answer, rewards[answer.number]) for answer in self._answers)
        prompt = self._answers[0].segment.prompt if self._answers else _Text([], [])
        return Trajectory(
            item=item,
            sample_index=sample_index,
            prompt_ids=tuple(prompt.ids),
            prompt_images=tuple(prompt.images),
            turns=turns,
            stop_reason=stop_reason,
            reward=sum(rewards) if rewards else reward,
            success=success,
            seconds=time.perf_counter() - self._started_s,
            metrics={
                **metrics,
                "parse_failures": sum(turn.is_malformed for turn in turns),
                "segments": sum(answer.position == 0 for answer in self._answers),
                OTHER_SAMPLING: self.other_sampling,
            },
            labels=labels,
        )

    def _find(self, messages: Sequence[ChatTurn], digests: Sequence[bytes]) -> tuple[int, _Answer | None]:
        """The longest recorded prefix: the position of its last message, and the answer there."""
        for position in reversed(range(len(digests))):
            if messages[position].role == "assistant" and (answers := self._by_digest.get(digests[position])):
                # Of equal answers, one whose segment can be extended; then the newest.
                return position, max(answers, key=lambda answer: (not answer.is_extended, answer.number))
        return -1, None

    def _new_segment(self, prompt: _Text, digest: bytes) -> PendingTurn:
        name = f"{self._name}/{self._segments}"
        self._segments += 1
        segment = _Segment(name, prompt, prompt.ids.copy(), prompt.images.copy())
        return PendingTurn(prompt=prompt, segment=segment, digest=digest, reply=_Text([], []))

    def _continue(
        self, before: _Answer, messages: Sequence[ChatTurn], digest: bytes, *, prefix: Sequence[int]
    ) -> PendingTurn:
        segment = before.segment
        prompt_part = self._rendering.reply(messages, after=before.completion.token_ids)
        reply = _Text(
            [*prompt_part.ids, *prefix],
            _images(messages),
            "\n".join(message.content for message in messages),
            prompt_part.bodies,
        )
        prompt = _Text(
            segment.ids[: before.end] + reply.ids, segment.images[: before.images_end] + reply.images
        )
        if before.is_extended:
            return self._new_segment(prompt, digest)
        before.is_extended = True
        return PendingTurn(prompt=prompt, segment=segment, digest=digest, reply=reply)


def _images(messages: Sequence[ChatTurn]) -> list[Image]:
    return [image for message in messages for image in message.images]


def _turn(answer: _Answer, reward: float) -> Turn:
    segment = answer.segment
    is_last = answer is segment.answers[-1]
    reply = _Text([], []) if is_last else segment.answers[answer.position + 1].reply
    begins_segment = answer.position == 0 and answer.number > 0  # the first one's prompt is the trajectory's
    previous = segment.answers[answer.position - 1].number if answer.position else None
    return Turn(
        completion=answer.completion,
        text=answer.reading.text,
        thought=answer.reading.thought,
        action=answer.reading.action,
        is_malformed=answer.reading.is_malformed,
        observation=reply.text,
        reward=reward,
        observation_ids=tuple(reply.ids),
        observation_spans=reply.observation_spans,
        images=tuple(reply.images),
        prompt_ids=tuple(segment.prompt.ids) if begins_segment else None,
        prompt_images=tuple(segment.prompt.images) if begins_segment else (),
        previous_turn=None if previous == answer.number - 1 else previous,
    )
