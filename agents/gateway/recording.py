"""What a session's policy was shown and said: a tree of conversations, cut into segments.

A request whose history is known goes on from the very tokens of that history. Every completion is in one
segment, once:

    u1 a1 u2 a2      a conversation that grows is one segment
        └ u3 a3      another way on from a1 begins a segment; its prompt has a1's tokens, which train above
    s u1 a4          so does a history that was changed; its prompt is rendered

Which segment a completion goes to is settled when its request begins: requests may come side by side.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from agents.gateway.conversation import Conversation, Said, extended
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
    """Those that `ids` show, in their order."""
    broken_off: int = 0
    """Requests for its next completion that were left without an answer."""
    answers: list["_Answer"] = field(default_factory=list)


@dataclass(slots=True, eq=False, kw_only=True)
class _Answer:
    """A completion and its place."""

    number: int
    """Among the session's, in the order in which they were given."""
    segment: _Segment
    end: int
    """Tokens of the segment up to and with this completion."""
    images_end: int
    """Pictures of the segment up to there."""
    reply_ids: list[int]
    """Tokens since the completion before it in the segment; empty where it is the first."""
    reply_images: list[Image]
    """Those that `reply_ids` show."""
    heard: str
    """The same in words."""
    completion: Completion
    reading: Reading
    taken: bool = False
    """Whether the segment goes on after it, or is about to."""


@dataclass(slots=True, eq=False, kw_only=True)
class Asked:
    """A request under way."""

    ids: list[int]  # [P], all that the completion is to be sampled on
    images: list[Image]
    """Those that `ids` show, in their order."""
    segment: _Segment
    digest: bytes
    """Of the conversation."""
    reply_ids: list[int]
    reply_images: list[Image]
    heard: str
    """See `_Answer`, which does not keep all of this: prompts of many turns would be long."""
    answered: bool = False

    @property
    def cache_name(self) -> str:
        """For the sampler: prompts of one name begin alike, and come one after another. What was broken off
        may be at work in there still, so that what follows it has another name."""
        broken_off = self.segment.broken_off
        return f"{self.segment.name}~{broken_off}" if broken_off else self.segment.name


class Recording:
    """One session's."""

    def __init__(self, name: str, rendering: Rendering) -> None:
        """`name`: the sampler's seed and key for what is sampled here."""
        self._name = name
        self._rendering = rendering
        self._known: dict[bytes, list[_Answer]] = {}
        self._segments = 0
        self._answers: list[_Answer] = []
        self.other_sampling = 0
        """Completions whose request asked for another temperature, top_p or top_k than the policy's own."""
        self._started = time.perf_counter()

    @property
    def turns(self) -> int:
        """Completions so far."""
        return len(self._answers)

    @contextmanager
    def asking(self, conversation: Conversation, *, begun: Sequence[int] = ()) -> Iterator[Asked]:
        """The tokens to sample on, of which the last are `begun`: the beginning of the answer, which is not
        the policy's. Left without `answer`, it is as if it had never been asked.

        Raises `Refused` for a conversation that the chat template refuses.
        """
        digests = conversation.digests()
        position, before = self._find(conversation, digests)
        if before is None:
            ids = self._rendering.prompt_ids(conversation)
            asked = self._fresh([*ids, *begun], _images_of(conversation.messages), digests[-1])
        else:
            asked = self._going_on(before, conversation.messages[position + 1 :], digests[-1], begun=begun)
        try:
            yield asked
        finally:
            if not asked.answered and before is not None and before.segment is asked.segment:
                before.taken = False
                before.segment.broken_off += 1

    def answer(self, asked: Asked, completion: Completion, reading: Reading) -> None:
        """Keep what was sampled."""
        segment = asked.segment
        segment.ids += asked.reply_ids
        segment.ids += completion.token_ids
        segment.images += asked.reply_images
        answer = _Answer(
            number=len(self._answers),
            segment=segment,
            end=len(segment.ids),
            images_end=len(segment.images),
            reply_ids=asked.reply_ids,
            reply_images=asked.reply_images,
            heard=asked.heard,
            completion=completion,
            reading=reading,
        )
        segment.answers.append(answer)
        self._answers.append(answer)
        self._known.setdefault(extended(asked.digest, reading.said), []).append(answer)
        asked.answered = True

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
        """All that was answered so far; `turn_rewards` in the order in which it was.

        Segments come in the order of their last turns, so that the last turn is the last one given and
        carries `reward`. `metrics` get `parse_failures`, `segments` and `other_sampling` besides.
        """
        segments = {id(answer.segment): answer.segment for answer in self._answers}.values()
        ordered = sorted(segments, key=lambda segment: segment.answers[-1].number)
        rewards = [0.0] * self.turns if turn_rewards is None else list(turn_rewards)
        if len(rewards) != self.turns:
            raise ValueError(f"{item.item_id}: {len(rewards)} turn_rewards for {self.turns} turns")
        if rewards:
            rewards[-1] += reward
        turns: list[Turn] = []
        for segment in ordered:
            turns += _turns_of(segment, rewards, first=not turns)
        return Trajectory(
            item=item,
            sample_index=sample_index,
            prompt_ids=tuple(ordered[0].prompt_ids) if ordered else (),
            prompt_images=tuple(ordered[0].prompt_images) if ordered else (),
            turns=tuple(turns),
            stop_reason=stop_reason,
            reward=sum(rewards),
            success=success,
            seconds=time.perf_counter() - self._started,
            metrics={
                **metrics,
                "parse_failures": sum(turn.failed for turn in turns),
                "segments": len(ordered),
                "other_sampling": self.other_sampling,
            },
            labels=labels,
        )

    def _find(self, conversation: Conversation, digests: Sequence[bytes]) -> tuple[int, _Answer | None]:
        """The longest known beginning: where its answer stands among the messages, and which it is."""
        for position in reversed(range(len(digests))):
            if conversation.messages[position].role == "assistant" and (
                answers := self._known.get(digests[position])
            ):
                # Of answers in the same words, one whose segment can grow; then the newest.
                return position, max(answers, key=lambda answer: (not answer.taken, answer.number))
        return -1, None

    def _fresh(self, ids: list[int], images: list[Image], digest: bytes) -> Asked:
        name = f"{self._name}/{self._segments}"
        segment = _Segment(name, ids, ids.copy(), images, images.copy())
        self._segments += 1
        return Asked(
            ids=ids, images=images, segment=segment, digest=digest, reply_ids=[], reply_images=[], heard=""
        )

    def _going_on(
        self, before: _Answer, messages: Sequence[Said], digest: bytes, *, begun: Sequence[int]
    ) -> Asked:
        reply_ids = [*self._rendering.reply_ids(messages, after=before.completion.token_ids), *begun]
        reply_images = _images_of(messages)
        ids = before.segment.ids[: before.end] + reply_ids
        images = before.segment.images[: before.images_end] + reply_images
        if before.taken:
            return self._fresh(ids, images, digest)
        before.taken = True
        return Asked(
            ids=ids,
            images=images,
            segment=before.segment,
            digest=digest,
            reply_ids=reply_ids,
            reply_images=reply_images,
            heard="\n".join(message.content for message in messages),
        )


def _images_of(messages: Sequence[Said]) -> list[Image]:
    return [image for message in messages for image in message.images]


def _turns_of(segment: _Segment, rewards: Sequence[float], *, first: bool) -> list[Turn]:
    """`first`: the trajectory's own prompt is this segment's."""
    turns: list[Turn] = []
    for answer, after in zip(segment.answers, [*segment.answers[1:], None], strict=True):
        turns.append(
            Turn(
                completion=answer.completion,
                text=answer.reading.text,
                thought=answer.reading.thought,
                action=answer.reading.action,
                failed=answer.reading.failed,
                observation="" if after is None else after.heard,
                reward=rewards[answer.number],
                observation_ids=() if after is None else tuple(after.reply_ids),
                images=() if after is None else tuple(after.reply_images),
                prompt_ids=None if first or turns else tuple(segment.prompt_ids),
                prompt_images=() if first or turns else tuple(segment.prompt_images),
            )
        )
    return turns
