"""Calls of an agent's methods, which may be a user's code: what they raise or return becomes a `ConfigError`
that names the method."""

from collections.abc import Sequence
from typing import get_args

from agents.agent import Agent, Opening
from agents.formats.calls import ParsedTurn
from envs.errors import ConfigError, boundary, show
from envs.types import Item, Message, Role


def open_conversation(agent: Agent, item: Item, observation: str) -> Opening:
    """`agent.render`. Raises `ConfigError`, which names the agent, for an exception or another result."""
    name = f"{type(agent).__name__}.render"
    with boundary(ConfigError, name):
        opening: object = agent.render(item, observation)
    if not isinstance(opening, Opening):
        raise ConfigError(f"{name} returned {show(opening)}; return an Opening")
    _check_messages(opening.messages, name=name)
    return opening


def parse_turn(agent: Agent, text: str) -> ParsedTurn:
    """`agent.parse`. Raises as `open_conversation` does."""
    name = f"{type(agent).__name__}.parse"
    with boundary(ConfigError, name):
        turn: object = agent.parse(text)
    if not isinstance(turn, ParsedTurn):
        raise ConfigError(f"{name} returned {show(turn)}; return a ParsedTurn")
    return turn


def reply_to(agent: Agent, turn: ParsedTurn, observations: Sequence[str]) -> Sequence[Message]:
    """`agent.reply`. Raises as `open_conversation` does."""
    name = f"{type(agent).__name__}.reply"
    with boundary(ConfigError, name):
        messages = agent.reply(turn, observations)
    _check_messages(messages, name=name)
    return messages


def write_turn(agent: Agent, turn: ParsedTurn) -> str:
    """`agent.write`. Raises as `open_conversation` does."""
    name = f"{type(agent).__name__}.write"
    with boundary(ConfigError, name):
        text: object = agent.write(turn)
    if not isinstance(text, str):
        raise ConfigError(f"{name} returned {show(text)}; return a str")
    return text


def _check_messages(messages: object, *, name: str) -> None:
    if not isinstance(messages, list | tuple):
        raise ConfigError(f"{name} returned {show(messages)} as messages; return a list of Message")
    for message in messages:
        if not isinstance(message, Message):
            raise ConfigError(f"{name} returned {show(message)} as a message; return a Message")
        if message.role not in get_args(Role):
            roles = ", ".join(get_args(Role))
            raise ConfigError(f"{name} returned a message of role {message.role!r}; roles are {roles}")
