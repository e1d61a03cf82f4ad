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

from agents.gateway.conversation import ChatTurn, Conversation, extend_digest
from agents.gateway.rendering import Reading, Rendering
from agents.types import Completion, Label, StopReason, Trajectory, Turn
from envs.types import Image, Item


@dataclass(slots=True, eq=False)
class _Segment:
    name: str
    prompt_ids: list[int]  # [P]
    ids: list[int]  # [L], prompt, completions and what stands between them
    prompt_images: list[Image]
    images: list[Image]
    """Shown by `ids`, in order."""
    broken_off: int = 0
    """Requests for its next completion that got no answer."""
    answers: list["_Answer"] = field(default_factory=list)


@dataclass(slots=True, eq=False, kw_only=True)
class _Answer:
    """A completion and its place."""

    number: int
    """Index among the session's answers."""
    segment: _Segment
    end: int
    """Tokens of the segment up to and with this completion."""
    images_end: int
    """Images of the segment up to there."""
    reply_ids: list[int]
    """Tokens since the completion before it in the segment; empty where it is the first."""
    reply_images: list[Image]
    """Shown by `reply_ids`."""
    reply_text: str
    """`reply_ids` as text."""
    completion: Completion
    reading: Reading
    is_extended: bool = False
    """Whether the segment continues after it, or a request is about to continue it."""


@dataclass(slots=True, eq=False, kw_only=True)
class PendingTurn:
    """A request under way."""

    ids: list[int]  # [P], all that the completion is to be sampled on
    images: list[Image]
    """Shown by `ids`, in order."""
    segment: _Segment
    digest: bytes
    """Of the conversation."""
    reply_ids: list[int]
    reply_images: list[Image]
    reply_text: str
    """As in `_Answer`, which does not keep all of this: prompts of many turns are long."""
    is_answered: bool = False

    @property
    def cache_name(self) -> str:
        """For the sampler: prompts of one name share a prefix and come one after another. A cancelled request
        may still be running, so that the next one gets another name."""
        broken_off = self.segment.broken_off
        return f"{self.segment.name}~{broken_off}" if broken_off else self.segment.name


class Recording:
    """The recording of one session."""

    def __init__(self, name: str, rendering: Rendering) -> None:
        """`name`: the sampler's seed and key for what is sampled here."""
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
        self, conversation: Conversation, *, prefix: Sequence[int] = ()
    ) -> Iterator[PendingTurn]:
        """The tokens to sample on, which end with `prefix`: the start of the answer, written by the gateway.
        Without a call of `answer` inside, nothing is recorded.

        Raises `RequestRejected` for a conversation that the chat template rejects.
        """
        digests = conversation.digests()
        position, before = self._find(conversation, digests)
        if before is None:
            ids = self._rendering.prompt_ids(conversation)
            pending = self._new_segment([*ids, *prefix], _images(conversation.messages), digests[-1])
        else:
            pending = self._continue(
                before, conversation.messages[position + 1 :], digests[-1], prefix=prefix
            )
        try:
            yield pending
        finally:
            if not pending.is_answered and before is not None and before.segment is pending.segment:
                before.is_extended = False
                before.segment.broken_off += 1

    def answer(self, pending: PendingTurn, completion: Completion, reading: Reading) -> None:
        """Record a completion."""
        segment = pending.segment
        segment.ids += pending.reply_ids
        segment.ids += completion.token_ids
        segment.images += pending.reply_images
        answer = _Answer(
            number=len(self._answers),
            segment=segment,
            end=len(segment.ids),
            images_end=len(segment.images),
            reply_ids=pending.reply_ids,
            reply_images=pending.reply_images,
            reply_text=pending.reply_text,
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
        """All answers so far; `turn_rewards` in their order.

        Segments are in the order of their last turns, so that the last turn is the last answer, which gets
        `reward`. `parse_failures`, `segments` and `other_sampling` are added to `metrics`.
        """
        segments = {id(answer.segment): answer.segment for answer in self._answers}.values()
        in_order = sorted(segments, key=lambda segment: segment.answers[-1].number)
        rewards = [0.0] * self.turns if turn_rewards is None else list(turn_rewards)
        if len(rewards) != self.turns:
            raise ValueError(f"{item.item_id}: {len(rewards)} turn_rewards for {self.turns} turns")
        if rewards:
            rewards[-1] += reward
        turns: list[Turn] = []
        for segment in in_order:
            turns += _turns(segment, rewards, first=not turns)
        return Trajectory(
            item=item,
            sample_index=sample_index,
            prompt_ids=tuple(in_order[0].prompt_ids) if in_order else (),
            prompt_images=tuple(in_order[0].prompt_images) if in_order else (),
            turns=tuple(turns),
            stop_reason=stop_reason,
            reward=sum(rewards),
            success=success,
            seconds=time.perf_counter() - self._started_s,
            metrics={
                **metrics,
                "parse_failures": sum(turn.failed for turn in turns),
                "segments": len(in_order),
                "other_sampling": self.other_sampling,
            },
            labels=labels,
        )

    def _find(self, conversation: Conversation, digests: Sequence[bytes]) -> tuple[int, _Answer | None]:
        """The longest recorded prefix: the position of its last message, and the answer there."""
        for position in reversed(range(len(digests))):
            if conversation.messages[position].role == "assistant" and (
                answers := self._by_digest.get(digests[position])
            ):
                # Of equal answers, one whose segment can be extended; then the newest.
                return position, max(answers, key=lambda answer: (not answer.is_extended, answer.number))
        return -1, None

    def _new_segment(self, ids: list[int], images: list[Image], digest: bytes) -> PendingTurn:
        name = f"{self._name}/{self._segments}"
        segment = _Segment(name, ids, ids.copy(), images, images.copy())
        self._segments += 1
        return PendingTurn(
            ids=ids,
            images=images,
            segment=segment,
            digest=digest,
            reply_ids=[],
            reply_images=[],
            reply_text="",
        )

    def _continue(
        self, before: _Answer, messages: Sequence[ChatTurn], digest: bytes, *, prefix: Sequence[int]
    ) -> PendingTurn:
        reply_ids = [*self._rendering.reply_ids(messages, after=before.completion.token_ids), *prefix]
        reply_images = _images(messages)
        ids = before.segment.ids[: before.end] + reply_ids
        images = before.segment.images[: before.images_end] + reply_images
        if before.is_extended:
            return self._new_segment(ids, images, digest)
        before.is_extended = True
        return PendingTurn(
            ids=ids,
            images=images,
            segment=before.segment,
            digest=digest,
            reply_ids=reply_ids,
            reply_images=reply_images,
            reply_text="\n".join(message.content for message in messages),
        )


def _images(messages: Sequence[ChatTurn]) -> list[Image]:
    return [image for message in messages for image in message.images]


def _turns(segment: _Segment, rewards: Sequence[float], *, first: bool) -> list[Turn]:
    """`first`: whether the segment's prompt is the trajectory's."""
    turns: list[Turn] = []
    for answer, after in zip(segment.answers, [*segment.answers[1:], None], strict=True):
        turns.append(
            Turn(
                completion=answer.completion,
                text=answer.reading.text,
                thought=answer.reading.thought,
                action=answer.reading.action,
                failed=answer.reading.is_malformed,
                observation="" if after is None else after.reply_text,
                reward=rewards[answer.number],
                observation_ids=() if after is None else tuple(after.reply_ids),
                images=() if after is None else tuple(after.reply_images),
                prompt_ids=None if first or turns else tuple(segment.prompt_ids),
                prompt_images=() if first or turns else tuple(segment.prompt_images),
            )
        )
    return turns
