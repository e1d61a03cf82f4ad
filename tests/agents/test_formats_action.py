"""What counts as an action in what a policy wrote."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.formats import ACTIONS, FORMATS
from agents.formats.action import action, raw


@pytest.mark.parametrize(
    ("text", "action_text", "thoughts"),
    [
        ("Action: get 1 oak log", "get 1 oak log", ""),
        ("Thought: I need wood.\nAction: get 1 oak log", "get 1 oak log", "I need wood."),
        ("Thought:\nI need wood.\n\nAction:\nget 1 oak log\n", "get 1 oak log", "I need wood."),
        ("Thought: wood. Action: get 1 oak log", "get 1 oak log", "wood."),
        ("I need wood.\nAction:   get 1 oak log  \nand that is it", "get 1 oak log", "I need wood."),
        ("Thought: a\nb\nAction: inventory", "inventory", "a\nb"),
        ("ReAction: it burns. Action: inventory", "inventory", "ReAction: it burns."),
    ],
)
def test_an_action_is_read(text: str, action_text: str, thoughts: str) -> None:
    turn = action(text)
    assert (turn.action, turn.thought, turn.is_malformed) == (action_text, thoughts, False)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "get 1 oak log",
        "Thought: only thinking",
        "Action:",
        "Action:  \n  \n",
        "Action: get 1 oak log\nObservation: Got 1 oak log\nAction: inventory",
    ],
)
def test_text_without_one_action_is_passed_on_as_it_is(text: str) -> None:
    turn = action(text)
    assert (turn.action, turn.is_malformed) == (text, True)


@given(st.text(alphabet=st.sampled_from("Action:Thought \n\tx")) | st.text())
def test_every_parser_is_total(text: str) -> None:
    for parse in (FORMATS[name].parse for name in ACTIONS):
        turn = parse(text)
        assert turn.action is not None
        assert turn.action in text
        assert turn.action == text or not turn.is_malformed


def test_raw_text_is_the_action() -> None:
    assert raw(" go north\n").action == "go north"
