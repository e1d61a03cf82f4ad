"""The tokens that a policy speaks on, and what becomes of them as an episode grows.

As a rule each turn's context is the last one's, the completion and the reply: one *segment*. A policy for
full contexts may begin a new segment: another prompt, from which the episode goes on. Whatever is kept of
the policy's own words are the tokens that it sampled, in a prompt as well.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field

from agents.agent import Opening
from agents.prompting.renderer import Renderer, images_of
from agents.settings import Positive, Settings
from agents.types import Completion, Turn
from envs.types import Image, Message

SUMMARY_REQUEST = (
    "The conversation is about to be cut. Write down all that is needed to go on: the task, what has been "
    "done, what was found out, what comes next. Only what you write now will be left."
)
SUMMARY_HEADING = "What you wrote down before the conversation was cut:"
_THOUGHT_END = "</think>"


class ContextPolicy(Settings):
    """What the policy sees of its own past."""

    when_full: Literal["stop", "fold", "drop"] = "stop"
    """Where no room is left for another turn: `stop` ends the episode; `drop` leaves out the oldest turns
    until half of the context is free. `fold` does not wait for that: see `fold_at`."""
    fold_at: Annotated[float, Field(gt=0, lt=1)] = 0.75
    """With `fold`: the share of the context from which on the policy is asked for a summary, in a turn that
    trains like every other, to go on with that instead of all that came before."""
    keep_thoughts: bool = True
    """Whether later turns see what stood up to `</think>` in earlier ones. If not, a turn is a segment."""
    max_observation: Positive | None = None
    """Characters of a reply; the middle of a longer one is left out."""
    show_budget: bool = False
    """Whether each reply ends with how many tokens and turns are left."""


class Context:
    """The context of one episode's next turn, `ids`."""

    def __init__(
        self,
        opening: Opening,
        *,
        renderer: Renderer,
        policy: ContextPolicy,
        context_length: int,
        least_room: int,
    ) -> None:
        """`least_room`: tokens of a completion for which there must be room."""
        self._opening = opening
        self._renderer = renderer
        self._policy = policy
        self._length = context_length
        self._least_room = least_room
        self._opening_ids = renderer.prompt_ids(opening.messages, tools=opening.tools)
        self._begun_ids = self._opening_ids  # the opening, or what took its place in the last fold
        self._begun_images = images_of(opening.messages)
        self._told = 0  # turns since then
        self.ids = self._opening_ids.copy()  # extended in place where nothing is left out
        self.images = self._begun_images.copy()
        """Those that `ids` show, in their order."""
        self.segment_prompt: list[int] | None = None
        """Where the next turn begins a new segment, its prompt."""
        self.segment_images: list[Image] = []
        """Those that `segment_prompt` shows."""

    @property
    def room(self) -> int:
        """Tokens that the next completion may have."""
        return self._length - len(self.ids)

    @property
    def is_full(self) -> bool:
        """Whether no turn is possible."""
        return self.room < self._least_room

    def reply_ids(self, completion: Completion, messages: Sequence[Message], *, turns_left: int) -> list[int]:
        """`messages` as tokens, as the policy will see them after `completion`."""
        return self._told_ids(completion, self._shortened(messages), turns_left=turns_left)

    def _shortened(self, messages: Sequence[Message]) -> Sequence[Message]:
        most = self._policy.max_observation
        if most is None:
            return messages
        return [replace(m, content=shortened(m.content, most)) for m in messages]

    def _told_ids(self, completion: Completion, messages: Sequence[Message], *, turns_left: int) -> list[int]:
        closed = completion.token_ids[-1] in self._renderer.stop_token_ids
        if self._policy.show_budget:
            left = self.room - len(completion.token_ids)
            *others, last = messages
            said = f"{last.content}\n\n[left: about {max(0, left)} tokens, {turns_left} turns]"
            messages = [*others, replace(last, content=said)]
        return self._renderer.reply_ids(messages, is_closed=closed)

    def go_on(self, completion: Completion, reply_ids: Sequence[int], images: Sequence[Image]) -> bool:
        """Put a turn behind the context; False, and nothing is put, where no room would be left."""
        return self._put(completion, reply_ids, images, room=self._least_room)

    def drop(self, turns: Sequence[Turn]) -> bool:
        """Begin a segment with the opening, the last summary and as many of the last `turns` since then as
        leave half of the context free; False where not even the last one does."""
        kept: list[int] = []
        images: list[Image] = []
        count = 0
        for turn in reversed(turns[-1 - self._told :]):
            told = [*self._kept(turn.completion.token_ids), *turn.observation_ids]
            if len(self._begun_ids) + len(told) + len(kept) > self._length // 2:
                break
            kept = told + kept
            images = turn.images + images
            count += 1
        if not kept or not self._begin(self._begun_ids + kept, self._begun_images + images):
            return False
        self._told = count
        return True

    def needs_summary(self, completion: Completion, reply_ids: Sequence[int]) -> bool:
        """Whether the turn is to be followed by a summary."""
        if self._policy.when_full != "fold":
            return False
        size = len(self.ids) + len(completion.token_ids) + len(reply_ids)
        return size > self._policy.fold_at * self._length

    def request_summary(
        self, completion: Completion, messages: Sequence[Message], *, turns_left: int, summary_tokens: int
    ) -> list[int] | None:
        """Put the turn behind the context with the wish for a summary; its reply's tokens, or None, with
        nothing put, where that finds no room."""
        messages = self._shortened(messages)
        if messages and messages[-1].role == "user":
            last = replace(messages[-1], content=f"{messages[-1].content}\n\n{SUMMARY_REQUEST}")
            messages = [*messages[:-1], last]
        else:
            messages = [*messages, Message("user", SUMMARY_REQUEST)]
        reply_ids = self._told_ids(completion, messages, turns_left=turns_left)
        put = self._put(completion, reply_ids, images_of(messages), room=summary_tokens)
        return reply_ids if put else None

    def restart(self, summary: str, images: Sequence[Image] = ()) -> bool:
        """Begin a segment with the opening, the policy's `summary` and what else it is to see; False, and
        nothing is begun, where that is too long."""
        messages = summarized_opening(self._opening.messages, summary, images)
        prompt = self._renderer.prompt_ids(messages, tools=self._opening.tools)
        if not self._begin(prompt, images_of(messages)):
            return False
        self._begun_ids, self._begun_images, self._told = prompt.copy(), images_of(messages), 0
        return True

    def _begin(self, prompt: list[int], images: list[Image]) -> bool:
        if len(prompt) > self._length // 2:  # the next segment would be over as soon as it has begun
            return False
        self.ids, self.segment_prompt = prompt, prompt.copy()
        self.images, self.segment_images = images, images.copy()
        return True

    def _put(
        self, completion: Completion, reply_ids: Sequence[int], images: Sequence[Image], *, room: int
    ) -> bool:
        kept = self._kept(completion.token_ids)
        if len(self.ids) + len(kept) + len(reply_ids) + room > self._length:
            return False
        self.ids += kept
        self.ids += reply_ids
        self.images += images
        self._told += 1
        whole = len(kept) == len(completion.token_ids)
        self.segment_prompt = None if whole else self.ids.copy()
        self.segment_images = [] if whole else self.images.copy()
        return True

    def _kept(self, sampled: list[int]) -> list[int]:
        """What later turns see of a completion."""
        if self._policy.keep_thoughts:
            return sampled
        if _THOUGHT_END not in self._renderer.decode(sampled):
            return sampled
        low, high = 0, len(sampled)  # the shortest head that holds the mark ends with its last token
        while low < high:
            middle = (low + high) // 2
            if _THOUGHT_END in self._renderer.decode(sampled[:middle]):
                high = middle
            else:
                low = middle + 1
        return sampled[low:]


def summarized_opening(
    opening: Sequence[Message], summary: str, images: Sequence[Image] = ()
) -> list[Message]:
    """The opening, and at its end the `summary` of what followed, with `images` that are still to be seen."""
    *others, last = opening
    said = f"{last.content}\n\n{SUMMARY_HEADING}\n{summary.strip()}"
    return [*others, replace(last, content=said, images=(*last.images, *images))]


def shortened(text: str, most: int) -> str:
    """`text` with `most` of its characters, those of both ends, and a note of how many are left out."""
    if len(text) <= most:
        return text
    head, tail = most - most // 2, most // 2
    return f"{text[:head]}\n[... {len(text) - most} characters left out ...]\n{text[len(text) - tail :]}"
