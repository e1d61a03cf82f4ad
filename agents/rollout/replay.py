"""Repeats the first turns of a recorded episode, then lets a model go on.

`Replay` stands between an episode and its model. In the repeated turns the model's part comes from the
record; the environment runs again, and its answers are compared with the record. The episode is run by
`agents/rollout/episode.py`, like any other.
"""

import json
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from agents.clients.endpoint import ChatReply
from agents.formats.json_values import parse_calls
from agents.prompting.renderer import Renderer
from agents.rollout.chat_conversation import ChatModel
from agents.rollout.episode import ActionResult
from agents.samplers.sampler import Sampler
from agents.types import Completion, FinishReason, SamplingParams, StopReason, Trajectory, Turn
from envs.errors import ConfigError, WingspanError
from envs.types import Image, Message

T = TypeVar("T")
EXCERPT = 200
"""Characters of a text, around its first difference, that an error shows."""


class ReplayDiffers(WingspanError):
    """Something differs from the record; the message names the turn and shows both versions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """What an episode repeats."""

    trajectory: Trajectory
    num_turns: int
    """Number of its turns that are repeated, summaries included; 0 starts from the beginning."""
    where: str
    """Names the trajectory in errors."""
    observation: str | None = None
    """Shown in place of the observation of the last repeated turn; None shows that."""
    has_tokens: bool | None = False
    """Whether the record's tokens are those of the model that goes on; None: if its prompt is the same."""
    has_env_rewards: bool = True
    """Whether the recorded rewards are the environment's; a reward function's are not compared."""
    prompt: str | None = None
    """The recorded prompt as text, if it can be read."""

    @property
    def turns(self) -> Sequence[Turn]:
        """The turns that are repeated."""
        return self.trajectory.turns[: self.num_turns]

    def check(self) -> None:
        """Raise `ConfigError` if a turn does not exist, ended the episode, or has an observation that cannot
        be replaced."""
        total, stop_reason = len(self.trajectory.turns), self.trajectory.stop_reason
        if not 0 <= self.num_turns <= total:
            raise ConfigError(
                f"{self.where}: {self.num_turns} turns would be repeated, and it has {total}; name an "
                "earlier turn"
            )
        if self.num_turns == total and stop_reason in (StopReason.TERMINATED, StopReason.TRUNCATED):
            raise ConfigError(
                f"{self.where}: the episode ended with turn {total} ({stop_reason}); name an earlier turn"
            )
        if self.observation is None:
            return
        last_turn = self.turns[-1] if self.turns else None
        if last_turn is None or not last_turn.observation or len(parse_calls(last_turn.action)) > 1:
            raise ConfigError(
                f"{self.where}: turn {self.num_turns} has no observation, or several; only a single one can "
                "be replaced"
            )


class Replay:
    """One repetition of a `Past`, for one attempt at an episode."""

    def __init__(self, past: Past) -> None:
        self.past = past
        self.has_tokens = bool(past.has_tokens and past.trajectory.prompt_ids)
        """Whether the recorded tokens are repeated, or the recorded texts."""
        self._num_generated = 0
        self._num_checked = 0

    def next_turn(self) -> Turn | None:
        """The recorded turn that comes next; None once the model goes on."""
        if self._num_generated == self.past.num_turns:
            return None
        self._num_generated += 1
        return self.past.turns[self._num_generated - 1]

    def check_opening(self, messages: Sequence[Message]) -> None:
        """The messages before the first turn, as `run_episode` calls `on_opening`. Raises `ReplayDiffers`."""
        recorded_images = self.past.trajectory.prompt_images
        images = [image for message in messages for image in message.images]
        if recorded_images and tuple(recorded_images) != tuple(images):
            raise self._images_differ("the opening", recorded_images, images)
        if self.past.prompt is None or self.has_tokens:  # tokens are compared by the sampler
            return
        prompt = _words(self.past.prompt)
        # Not those of the assistant: templates drop their thoughts.
        for text in (_words(message.content) for message in messages if message.role != "assistant"):
            if text not in prompt:
                # Longer beginnings are not in the prompt either.
                length = bisect_left(range(len(text)), True, key=lambda n: text[: n + 1] not in prompt)
                raise self._differs("the prompt", recorded=prompt[prompt.find(text[:length]) :], now=text)

    def check_turns(self, turns: Sequence[Turn]) -> None:
        """All turns so far, as `run_episode` calls `on_turn`. Raises `ReplayDiffers`."""
        past = self.past
        for index in range(self._num_checked, min(len(turns), past.num_turns)):
            recorded, turn = past.turns[index], turns[index]
            texts = {
                "the policy's text": (recorded.text, turn.text),
                "the action": (recorded.action, turn.action),
            }
            if past.observation is None or index < past.num_turns - 1:  # `edit` has compared the other one
                texts["the observation"] = recorded.observation, turn.observation
                if tuple(recorded.images) != tuple(turn.images):
                    raise self._images_differ(f"turn {index + 1}", recorded.images, turn.images)
            if recorded.state is not None and turn.state is not None:
                texts["the environment's state"] = recorded.state, turn.state
            if past.has_env_rewards:
                texts["the reward"] = f"{recorded.reward:g}", f"{turn.reward:g}"
            for subject, pair in texts.items():
                self._compare(subject, *pair, number=index + 1)
        self._num_checked = min(len(turns), past.num_turns)

    def edit(self, result: ActionResult) -> ActionResult:
        """What the policy sees of a turn: `run_episode`'s `edit_result`."""
        past = self.past
        is_last = self._num_generated == past.num_turns > self._num_checked
        if past.observation is None or not is_last:
            return result
        observation = result.step.observation
        self._compare("the observation", past.turns[-1].observation, observation, number=past.num_turns)
        step = replace(result.step, observation=past.observation, images=())
        return replace(result, observations=(past.observation,), step=step, images=())

    def check_context(self, ids: Sequence[int], recorded: Sequence[int], *, renderer: Renderer) -> None:
        """Compare the tokens on which the policy goes on. Raises `ReplayDiffers`."""
        if list(ids) != list(recorded):
            texts = renderer.decode(list(recorded)), renderer.decode(list(ids))
            if texts[0] == texts[1]:  # they differ in control tokens, which are no text
                texts = str(list(recorded)), str(list(ids))
            self._compare("what the policy sees before", *texts, number=self._num_generated + 1)

    def finish(self, trajectory: Trajectory) -> Trajectory:
        """`trajectory` with the repeated turns as they were recorded.

        Tokens that are not of the record's tokenizer are left out. Raises `ReplayDiffers` if the episode
        ended before the model's first turn.
        """
        past, turns = self.past, list(trajectory.turns)
        is_full = trajectory.stop_reason is StopReason.MAX_CONTEXT
        if len(turns) < past.num_turns or (len(turns) == past.num_turns and not is_full):
            raise ReplayDiffers(
                f"{past.where}: the episode now ends with turn {len(turns)} ({trajectory.stop_reason}), "
                f"before turn {past.num_turns + 1}; allow more turns (--max-turns), or name an earlier turn"
            )
        if self.has_tokens:
            return trajectory
        for index, turn in enumerate(past.turns):
            turns[index] = replace(turn, reward=turns[index].reward)
        if past.observation is not None:
            turns[past.num_turns - 1] = replace(
                turns[past.num_turns - 1],
                observation=past.observation,
                images=(),
                observation_ids=(),
                observation_spans=(),
            )
        turns[past.num_turns :] = map(_without_tokens, turns[past.num_turns :])
        return replace(trajectory, prompt_ids=past.trajectory.prompt_ids, turns=tuple(turns))

    def _compare(self, subject: str, recorded: str, text: str, *, number: int) -> None:
        if recorded != text:
            raise self._differs(f"{subject}, turn {number},", recorded=recorded, now=text)

    def _images_differ(self, place: str, recorded: Sequence[Image], images: Sequence[Image]) -> ReplayDiffers:
        counts = f"recorded: {len(recorded)}; now: {len(images)}"
        return ReplayDiffers(f"{self.past.where}: the images, {place}, are not as recorded; {counts}")

    def _differs(self, subject: str, *, recorded: str, now: str) -> ReplayDiffers:
        start = _first_difference(recorded, now)
        return ReplayDiffers(
            f"{self.past.where}: {subject} is not as recorded; recorded: {_excerpt(recorded, start)}; "
            f"now: {_excerpt(now, start)}"
        )


class ReplayedSampler:
    """A `Sampler` of one episode whose first completions are those of its record."""

    def __init__(self, sampler: Sampler, replay: Replay, *, renderer: Renderer) -> None:
        self._sampler = sampler
        self._replay = replay
        self._renderer = renderer
        self._contexts = recorded_contexts(replay.past)
        self._num_calls = 0

    async def sample(
        self,
        prompt_ids: Sequence[int],
        *,
        images: Sequence[Image] = (),
        params: SamplingParams,
        episode_id: str,
    ) -> Completion:
        """Raises `ReplayDiffers` if `prompt_ids` are not as recorded, and `ConfigError` if the recorded
        completion finds no room."""
        replay, index = self._replay, self._num_calls
        self._num_calls += 1
        if index == 0 and replay.past.has_tokens is None and self._contexts:
            replay.has_tokens = list(prompt_ids) == self._contexts[0]
        if replay.has_tokens and index < len(self._contexts):
            replay.check_context(prompt_ids, self._contexts[index], renderer=self._renderer)
        turn = replay.next_turn()
        if turn is None:
            return await self._sampler.sample(prompt_ids, images=images, params=params, episode_id=episode_id)
        completion = turn.completion if replay.has_tokens else self._encode(turn, params)
        if len(completion.token_ids) > params.max_tokens:
            raise ConfigError(
                f"{replay.past.where}: turn {index + 1} has {len(completion.token_ids)} tokens, and there is "
                f"room for {params.max_tokens}; raise rollout.max_tokens_per_turn or rollout.context_length"
            )
        return completion

    def _encode(self, turn: Turn, params: SamplingParams) -> Completion:
        is_closed = turn.completion.finish_reason is FinishReason.STOP
        ids = [*self._renderer.encode(turn.text), *(params.stop_token_ids[:1] if is_closed else ())]
        return replace(turn.completion, token_ids=tuple(ids), logprobs=(0.0,) * len(ids))


class ReplayedChat:
    """A `ChatModel` of one episode whose first replies are those of its record."""

    def __init__(self, model: ChatModel, replay: Replay) -> None:
        self._model = model
        self._replay = replay

    async def ask(self, request: Mapping[str, object], *, read: Callable[[ChatReply], T]) -> T:
        turn = self._replay.next_turn()
        if turn is None:
            return await self._model.ask(request, read=read)
        is_cut = turn.completion.finish_reason is FinishReason.LENGTH
        return read(
            ChatReply(
                message=_message(turn, has_tools=bool(request.get("tools"))),
                finish_reason="length" if is_cut else "stop",
                total_tokens=None,
                policy_version=turn.completion.policy_version,
            )
        )


def recorded_contexts(past: Past) -> list[list[int]]:
    """The tokens on which each repeated turn was sampled, and those after the last one, as far as the record
    has them."""
    trajectory = past.trajectory
    if not trajectory.prompt_ids:
        return []
    contexts = [list(trajectory.prompt_ids)]
    for index, turn in enumerate(past.turns):
        next_turn = trajectory.turns[index + 1] if index + 1 < len(trajectory.turns) else None
        if past.observation is not None and index == past.num_turns - 1:
            break
        if next_turn is not None and next_turn.prompt_ids is not None:
            contexts.append(list(next_turn.prompt_ids))
        elif turn.observation_ids:
            contexts.append([*contexts[-1], *turn.completion.token_ids, *turn.observation_ids])
        else:
            break  # the episode ended here
    return contexts


def _message(turn: Turn, *, has_tools: bool) -> Mapping[str, object]:
    """The recorded turn as an endpoint would have answered it."""
    calls = parse_calls(turn.action) if has_tools and not turn.is_malformed else []
    if not calls:
        return {"content": turn.text}
    functions = [{"name": call.name, "arguments": json.dumps(dict(call.arguments))} for call in calls]
    return {"content": turn.thought, "tool_calls": [{"type": "function", "function": f} for f in functions]}


def _without_tokens(turn: Turn) -> Turn:
    completion = replace(turn.completion, token_ids=(), logprobs=())
    return replace(turn, completion=completion, observation_ids=(), observation_spans=(), prompt_ids=None)


def _words(text: str) -> str:
    return " ".join(text.split())


def _first_difference(text: str, other: str) -> int:
    pairs = enumerate(zip(text, other, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(text), len(other)))


def _excerpt(text: str, position: int) -> str:
    start = max(0, min(position - EXCERPT // 2, len(text) - EXCERPT))
    end = start + EXCERPT
    before, after = "…" if start else "", "…" if end < len(text) else ""
    return repr(before + text[start:end] + after)
