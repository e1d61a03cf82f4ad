"""What a format writes is what it reads."""

from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.agent import FormatAgent
from agents.formats import ACTIONS, FORMATS
from agents.formats.calls import ParsedTurn, ToolCall
from envs.errors import ConfigError
from tests.support.format_writers import hostile, schemas_of, tool_calls

ONE_TOOL = {"code": ("code_interpreter", "code"), "searchr1": ("search", "query")}

words = st.from_regex(r"[a-z0-9]+( [a-z0-9,.;]+){0,4}", fullmatch=True)


def turns(format: str, texts: st.SearchStrategy[str]) -> st.SearchStrategy[ParsedTurn]:
    thoughts = st.just("") if format == "raw" else texts | st.just("")
    if format in ACTIONS:
        return st.builds(ParsedTurn, thought=thoughts, action=texts)
    calls = tool_calls
    if format in ONE_TOOL:
        name, argument = ONE_TOOL[format]
        calls = texts.map(lambda text: ToolCall(name, {argument: text}))
    most = 1 if format in (*ONE_TOOL, "react") else 3
    call_turns = st.lists(calls, min_size=1, max_size=most, unique_by=lambda call: call.name).map(tuple)
    return st.builds(ParsedTurn, thought=thoughts, calls=call_turns) | st.builds(
        ParsedTurn, thought=thoughts, answer=texts
    )


def agent_for(format: str, turn: ParsedTurn) -> FormatAgent:
    example_calls = [ToolCall("code_interpreter", {"code": ""})] if format == "code" else turn.calls
    example_calls = [ToolCall("search", {"query": ""})] if format == "searchr1" else example_calls
    return FormatAgent(
        format, schemas=schemas_of(example_calls or [ToolCall("f", {})]) * (format not in ACTIONS)
    )


@pytest.mark.parametrize("format", FORMATS)
@given(data=st.data())
def test_a_turn_that_is_written_is_read_again(format: str, data: st.DataObject) -> None:
    turn = data.draw(turns(format, words))
    text = ""
    with suppress(ConfigError):  # the arguments of `tool_calls` may be anything
        text = agent_for(format, turn).write(turn)
    if text or not turn.calls or format in ONE_TOOL:
        assert replace(agent_for(format, turn).parse(text), first_call_end=0) == turn


@pytest.mark.parametrize("format", FORMATS)
@given(data=st.data())
@pytest.mark.heavy
def test_a_turn_that_cannot_be_expressed_is_refused_and_never_another_one(
    format: str, data: st.DataObject
) -> None:
    turn = data.draw(turns(format, hostile.filter(bool)))
    agent = agent_for(format, turn)
    with suppress(ConfigError):
        read = agent.parse(agent.write(turn))
        action = None if turn.action is None else turn.action.strip()  # the space around it is not its own
        assert (read.action, read.calls, read.answer) == (action, turn.calls, turn.answer)


@pytest.mark.parametrize("format", ["react", "json", "hermes", "qwen3", "llama3"])
def test_an_action_of_an_environment_is_a_call_of_act(format: str) -> None:
    turn = ParsedTurn(thought="planks first", calls=(ToolCall("act", {"action": 'say "[2] oak logs"'}),))
    agent = agent_for(format, turn)
    assert replace(agent.parse(agent.write(turn)), first_call_end=0) == turn


def test_code_with_a_fence_is_written_within_longer_ones() -> None:
    call = ToolCall("code_interpreter", {"code": "text = '''\n````\n'''"})
    turn = ParsedTurn(thought="", calls=(call,))
    text = FORMATS["code"].write(turn)
    assert text.startswith("`````python\n")
    assert FORMATS["code"].parse(text).calls == turn.calls


def test_an_action_of_two_lines_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'action' cannot express the turn 'Action: a\\nb'"):
        FormatAgent("action").write(ParsedTurn(thought="", action="a\nb"))
