"""Agents: how an item is presented to a model, and how the model's text is parsed.

An agent owns the form of the conversation and nothing else. It is the same in a script, in evaluation and in
training, because it never sees a token: tokens belong to the renderer, and the effects of calls to the tools.
`AGENTS` has one for each of this project's formats, and those of plug-ins.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

from agents.formats import ACTIONS, FORMATS, NATIVE, turn_parser
from agents.formats.calls import ParsedTurn, Schema
from agents.prompting.tools_prompt import tools_prompt
from envs.errors import ConfigError, boundary
from envs.requirements.plugins import Registry, load_object
from envs.types import Image, Item, Message


@dataclass(frozen=True, slots=True)
class Opening:
    """The conversation before the model's first turn."""

    messages: Sequence[Message]
    tools: Sequence[Schema] = ()
    """The tools for the chat template to describe; empty if the messages describe them, or if there are
    none."""


class Agent(ABC):
    """A subclass defines how an item is presented and how the model's text is parsed.

    It need not care about images: `with_images` adds those of an observation to its message.
    """

    @abstractmethod
    def render(self, item: Item, observation: str) -> Opening:
        """The opening of `item`'s episode; `observation` is the environment's first."""

    @abstractmethod
    def parse(self, text: str) -> ParsedTurn:
        """Parse the model's `text`. Total: every text is an action, calls, an answer or a problem."""

    def write(self, turn: ParsedTurn) -> str:
        """The text that `parse` reads as `turn`; scripted experts write it. Only demonstrations need it.

        Raises `ConfigError` if the agent cannot express `turn`.
        """
        raise ConfigError(
            f"{type(self).__name__} writes no turns, which demonstrations need; give it the method "
            "`write`, the inverse of `parse`"
        )

    def reply(self, turn: ParsedTurn, observations: Sequence[str]) -> Sequence[Message]:
        """The messages that follow `turn`. `observations`: that of the environment, or one for each call, or
        the turn's `problem`."""
        return [Message("user", "\n\n".join(observations))]


def with_images(messages: Sequence[Message], images: Sequence[tuple[Image, ...]]) -> Sequence[Message]:
    """`messages` with the images of their observations: each with those of its observation if there is one
    message for each, else the last message with all of them."""
    if not any(images):
        return messages
    if len(images) != len(messages):
        images = [*[()] * (len(messages) - 1), tuple(chain.from_iterable(images))]
    return [
        replace(message, images=(*message.images, *extra))
        for message, extra in zip(messages, images, strict=True)
    ]


class FormatAgent(Agent):
    """An agent with one of the formats of `agents/formats`."""

    def __init__(
        self,
        format: str,
        *,
        schemas: Sequence[Schema] = (),
        instructions: str = "",
        action_hint: str = "your next action",
    ) -> None:
        """`schemas`: of its tools. `instructions` come first: in the system message if the format has tools,
        else at the start of the first message. The form of a turn follows, in which `action_hint` stands for
        the environment's action; if it is empty, `instructions` state the form themselves.

        Raises `ConfigError` for an unknown format, and for tools that it cannot call or describe.
        """
        self.format = format
        self._read = turn_parser(format, schemas)
        self._native = format in NATIVE
        self._acts = format in ACTIONS
        self._tools = tuple(schemas) if self._native else ()
        tools_text = "" if self._native or self._acts else tools_prompt(format, schemas)
        form = FORMATS[format].form
        if instructions and form and action_hint:
            # The form continues a paragraph; a list is followed by a new line.
            separator = " " if instructions.endswith(".") else "\n"
            instructions += separator + form.replace("{action}", action_hint)
        self._system = "\n\n".join(filter(None, [instructions, tools_text]))

    def parse(self, text: str) -> ParsedTurn:
        return self._read(text)

    def write(self, turn: ParsedTurn) -> str:
        if (turn.action is not None) != self._acts:
            rule = "calls no tools" if self._acts else "acts only by a tool; name the tool 'act'"
            raise ConfigError(f"format {self.format!r} {rule}")
        text = FORMATS[self.format].write(turn)
        reparsed = self._read(text)
        action = None if turn.action is None else turn.action.strip()
        if (reparsed.action, reparsed.calls, reparsed.answer) != (action, turn.calls, turn.answer):
            raise ConfigError(f"format {self.format!r} cannot express the turn {text[:200]!r}")
        return text

    def render(self, item: Item, observation: str) -> Opening:
        """An item's `messages` precede the observation, which is the last of them; its system message is
        appended to this agent's."""
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
        if self._native and turn.calls:
            return [Message("tool", observation) for observation in observations]
        if self.format == "react":
            return [Message("user", "\n".join(f"Observation: {text}" for text in observations))]
        return super().reply(turn, observations)


MakeAgent = Callable[[Sequence[Schema]], Agent]
"""Makes an agent that has the tools of these schemas."""


def _make_builtin(format: str, schemas: Sequence[Schema]) -> Agent:
    return FormatAgent(format, schemas=schemas)


def _validate_maker(name: str, value: object) -> MakeAgent:
    if not callable(value):
        raise ConfigError(f"format {name!r} is a {type(value).__name__}; name a class of agents.agent.Agent")
    make: MakeAgent = value
    return make


AGENTS: Registry[MakeAgent] = Registry(
    "format",
    {name: partial(_make_builtin, name) for name in FORMATS},
    group="wingspan.formats",
    origin="agents/formats/__init__.py",
    validate=_validate_maker,
)


def make_agent(
    name: str,
    *,
    schemas: Sequence[Schema],
    key: str,
    instructions: str = "",
    action_hint: str = "your next action",
) -> Agent:
    """The agent of the format `name`: one of `agents/formats`, a registered one, or `module:NAME`.

    The arguments are those of `FormatAgent`; only formats of this project take `instructions`. Raises
    `ConfigError`, which names `key`, where the user gave `name`.
    """
    if name in FORMATS:
        return FormatAgent(name, schemas=schemas, instructions=instructions, action_hint=action_hint)
    make = load_object(name, key=key) if ":" in name else AGENTS.find(name)
    remedy = "name a subclass of agents.agent.Agent with __init__(self, schemas), render and parse"
    with boundary(ConfigError, f"{key}: making {name!r}", remedy=remedy):
        agent = make(schemas)
    if not isinstance(agent, Agent):
        raise ConfigError(
            f"{key} {name!r} makes a {type(agent).__name__}; make it a subclass of agents.agent.Agent"
        )
    if instructions:
        raise ConfigError(
            f"instructions={instructions[:40]!r}: {key} {name!r} writes its own prompts; leave them out"
        )
    return agent


def register_format(name: str, make: MakeAgent) -> None:
    """Make the format `name` known in this process: `make`, such as a class of `Agent`, takes the schemas
    of the tools. Entry points of the group `wingspan.formats` are known in every process. Raises
    `ConfigError` if another format has this name."""
    AGENTS.register(name, make)
