"""What stands between a model and its task: how a task is put to it, and what its answers mean.

An agent owns the conversation's form and nothing else. It runs the same in a script, in evaluation and in
training, for it never sees a token: those are the renderer's, and what calls do is the tools'.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agents.formats import ACTIONS, FORMATS, NATIVE, turn_parser
from agents.formats.calls import ParsedTurn
from agents.prompting.tools_prompt import tools_prompt
from envs.errors import ConfigError
from envs.types import Image, Item, Message

Schema = Mapping[str, Any]
"""JSON schema of a tool, as `tokenizer.apply_chat_template(tools=…)` takes it."""


@dataclass(frozen=True, slots=True)
class Opening:
    """The conversation before the model's first turn."""

    messages: Sequence[Message]
    tools: Sequence[Schema] = ()
    """For the chat template to describe; empty where the messages do, or where there are none."""


class Agent(ABC):
    """To write one of your own, say how a task is put and how an answer is read.

    Pictures are no part of that: `with_images` puts those of an observation to the message that tells it.
    """

    @abstractmethod
    def render(self, item: Item, observation: str) -> Opening:
        """The opening of `item`'s episode; `observation` is the environment's first."""

    @abstractmethod
    def parse(self, text: str) -> ParsedTurn:
        """What the model's `text` says. Total: every text is an action, calls, an answer or a problem."""

    def write(self, turn: ParsedTurn) -> str:
        """The text that `parse` reads as `turn`: what a scripted expert says. Only demonstrations need it.

        Raises `ConfigError` if the agent cannot express `turn`.
        """
        raise ConfigError(
            f"{type(self).__name__} writes no turns, which demonstrations need; give it the method "
            "`write`, the inverse of `parse`"
        )

    def reply(self, turn: ParsedTurn, observations: Sequence[str]) -> Sequence[Message]:
        """The messages that follow `turn`. `observations`: what the environment said, or each call's tool,
        or the turn's `problem`."""
        return [Message("user", "\n\n".join(observations))]


def with_images(messages: Sequence[Message], images: Sequence[tuple[Image, ...]]) -> Sequence[Message]:
    """`messages` with the pictures of the observations that they tell: each with its own's where there is a
    message for each observation, else the last one with all of them."""
    if not any(images):
        return messages
    if len(images) != len(messages):
        everything = tuple(image for own in images for image in own)
        images = [*[()] * (len(messages) - 1), everything]
    return [
        replace(message, images=(*message.images, *own))
        for message, own in zip(messages, images, strict=True)
    ]


class FormatAgent(Agent):
    """An agent that writes in one of `agents/formats`."""

    def __init__(
        self,
        format: str,
        *,
        schemas: Sequence[Schema] = (),
        instructions: str = "",
        action_hint: str = "your next action",
    ) -> None:
        """`schemas` of its tools; `instructions` come before all else, as the system message where the
        format has tools, else at the head of the first one. The form of a turn follows them, where
        `action_hint` stands for the environment's action; with an empty one they state the form themselves.

        Raises `ConfigError` for an unknown format, and for tools that it cannot call or describe.
        """
        self.format = format
        self._read = turn_parser(format, schemas)
        self._native = format in NATIVE
        self._acts = format in ACTIONS
        self._tools = tuple(schemas) if self._native else ()
        described = "" if self._native or self._acts else tools_prompt(format, schemas)
        form = FORMATS[format].form
        if instructions and form and action_hint:
            # The form continues a paragraph; a list is followed by a new line.
            separator = " " if instructions.endswith(".") else "\n"
            instructions += separator + form.replace("{action}", action_hint)
        self._system = "\n\n".join(filter(None, [instructions, described]))

    def parse(self, text: str) -> ParsedTurn:
        """See `Agent`."""
        return self._read(text)

    def write(self, turn: ParsedTurn) -> str:
        """See `Agent`."""
        if (turn.action is not None) != self._acts:
            how = "calls no tools" if self._acts else "acts only by a tool; name the tool 'act'"
            raise ConfigError(f"format {self.format!r} {how}")
        text = FORMATS[self.format].write(turn)
        read = self._read(text)
        action = None if turn.action is None else turn.action.strip()
        if (read.action, read.calls, read.answer) != (action, turn.calls, turn.answer):
            raise ConfigError(f"format {self.format!r} cannot express the turn {text[:200]!r}")
        return text

    def render(self, item: Item, observation: str) -> Opening:
        """See `Agent`. An item's own `messages` come before its last one, which is the observation; its
        system message comes after this agent's words, in one with them."""
        earlier = [Message(m["role"], m["content"]) for m in item.fields.get("messages", [])[:-1]]
        if not self._system:
            return Opening([*earlier, Message("user", observation)], self._tools)
        if self._acts:
            return Opening([*earlier, Message("user", f"{self._system}\n\n{observation}")])
        system = self._system
        if earlier and earlier[0].role == "system":
            system = f"{system}\n\n{earlier.pop(0).content}"
        return Opening([Message("system", system), *earlier, Message("user", observation)], self._tools)

    def reply(self, turn: ParsedTurn, observations: Sequence[str]) -> Sequence[Message]:
        """See `Agent`; as `agents/prompting/prompts` say that results come back."""
        if self._native and turn.calls:
            return [Message("tool", observation) for observation in observations]
        if self.format == "react":
            return [Message("user", "\n".join(f"Observation: {one}" for one in observations))]
        return super().reply(turn, observations)
