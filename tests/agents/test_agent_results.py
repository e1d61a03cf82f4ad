"""An agent of a user's that raises or returns something else is named, with the line of its code."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from agents.agent import Agent, Opening
from agents.agent_results import open_conversation, parse_turn, reply_to, write_turn
from agents.formats.calls import ParsedTurn, ToolCall
from envs.errors import ConfigError
from envs.types import Item, Message
from tests.support.toy import toy_item

PLACE = Path(__file__).name
ACTION = ParsedTurn(thought="", action="go")


class Loose(Agent):
    """All methods return what `make` does."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    def render(self, item: Item, observation: str) -> Any:
        return self._make()

    def parse(self, text: str) -> Any:
        return self._make()

    def write(self, turn: ParsedTurn) -> Any:
        return self._make()

    def reply(self, turn: ParsedTurn, observations: Sequence[str]) -> Any:
        return self._make()


@pytest.mark.parametrize(
    ("call", "result", "message"),
    [
        (lambda agent: parse_turn(agent, "x"), "go", r"Loose\.parse returned a str, 'go'; return a P"),
        (lambda agent: write_turn(agent, ACTION), None, r"Loose\.write returned a NoneType, None; return"),
        (
            lambda agent: open_conversation(agent, toy_item(), "x"),
            [Message("user", "x")],
            r"Loose\.render returned a list, .*; return an Opening",
        ),
        (
            lambda agent: open_conversation(agent, toy_item(), "x"),
            Opening([{"role": "user", "content": "x"}]),  # type: ignore[list-item]
            r"Loose\.render returned a dict, .* as a message; return a Message",
        ),
        (
            lambda agent: reply_to(agent, ACTION, ["x"]),
            [Message("usr", "x")],  # type: ignore[arg-type]
            r"Loose\.reply returned a message of role 'usr'; roles are system, user, assistant, tool",
        ),
        (
            lambda agent: reply_to(agent, ACTION, ["x"]),
            "x",
            r"Loose\.reply returned a str, 'x' as messages; return a list of Message",
        ),
    ],
)
def test_another_result_is_refused(call: Callable[[Agent], object], result: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call(Loose(lambda: result))


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("render", lambda agent: open_conversation(agent, toy_item(), "x")),
        ("parse", lambda agent: parse_turn(agent, "x")),
        ("reply", lambda agent: reply_to(agent, ACTION, ["x"])),
        ("write", lambda agent: write_turn(agent, ACTION)),
    ],
)
def test_an_exception_is_one_line_with_its_place(name: str, call: Callable[[Agent], object]) -> None:
    with pytest.raises(ConfigError, match=rf"^Loose\.{name} raised ZeroDivisionError: .*{PLACE}:\d+\)$"):
        call(Loose(lambda: 1 / 0))


@pytest.mark.parametrize(
    ("turn", "message"),
    [
        ({}, "has none of action, calls, answer, problem; give exactly one"),
        ({"action": "go", "answer": "4"}, "has action and answer of"),
        ({"calls": (ToolCall("go", {}),), "problem": "no"}, "has calls and problem of"),
    ],
)
def test_a_turn_is_exactly_one_thing(turn: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ParsedTurn(thought="", **turn)
