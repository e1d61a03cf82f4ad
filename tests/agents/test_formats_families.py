"""The four families of tool calls: what was written is read, whatever stands round it and within it."""

import json

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from agents.formats import FORMATS, turn_parser
from agents.formats.calls import ParsedTurn, ToolCall
from tests.support.examples import examples
from tests.support.format_writers import (
    CALLS,
    EVIL,
    WRAPS,
    WRITERS,
    hermes,
    hermes_tight,
    hostile,
    schemas_of,
    tool_calls,
)

FAMILIES = list(WRITERS)
each_family = pytest.mark.parametrize("family", FAMILIES)

MALFORMED_TURNS: dict[str, list[str]] = {
    "hermes": [
        "<tool_call>",
        "<tool_call></tool_call>",
        "</tool_call>",
        "<tool_call>{}</tool_call>",
        "<tool_call>[]</tool_call>",
        "<tool_call>f(1)</tool_call>",
        '<tool_call>{"name": "f"}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "f", "arguments": "x"}</tool_call>',
        '<tool_call>{"name": 7, "arguments": {}}</tool_call>',
        '<tool_call>{"name": " ", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {}} and more</tool_call>',
        '<tool_call>{"name": "f", "arguments": {},}</tool_call>',
        "<tool_call>{'name': 'f', 'arguments': {}}</tool_call>",
        '<tool_call>{"name": "f", "arguments": {"x": NaN}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"x": 1e999}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"x": ' + "9" * 5000 + "}}</tool_call>",
        '<tool_call>{"name": "f", "arguments": {"x": ' + "[" * 65 + "]" * 65 + "}}</tool_call>",
        '<tool_call>{"name": "f", "arguments": {"x": ' + "[" * 100_000,
        '<tool_call>{"name": "f", "arguments": {}}</tool_call><tool_call>{"name": </tool_call>',
        '<tool_call>{"name": "' + "f" * 300 + '", "arguments": {}}</tool_call>',
    ],
    "qwen3": [
        "<tool_call>",
        "<tool_call></tool_call>",
        "<tool_call>{}</tool_call>",
        "<tool_call>f</tool_call>",
        "</function>",
        "<parameter=x>1</parameter>",
        "<function=>",
        "<function=f",
        "<function=f>",
        "<tool_call><function=></function></tool_call>",
        "<tool_call><function=a b></function></tool_call>",
        "<tool_call><function=f></tool_call>",
        "<tool_call><function=f><parameter=x>1</function></tool_call>",
        "<tool_call><function=f><parameter=x>1</parameter></tool_call>",
        "<tool_call><function=f><parameter=x>1",
        "<tool_call><function=f>loose</function></tool_call>",
        "<tool_call><function=f></function></tool_call></tool_call>",
        '<tool_call>{"name": "f"}</tool_call>',
        "<tool_call>\n<function=f>\n</function>\n</tool_call>\n<tool_call>\n<function=g>",
    ],
    "llama3": [
        '{"name": "f", "parameters": [1]}',
        '{"name": 1, "parameters": {}}',
        '{"name": "f", "parameters": {}',
        '{"name": "f", "parameters": {},}',
        '{"name": "f", "parameters": {"x": NaN}}',
        '{"name": "f", "parameters": {"x": ' + "[" * 100_000,
        '{"name": "f", "parameters": {}}; {"name": "g", "parameters": }',
        '{"name": "f", "parameters": {"name": "evil", "parameters": {}},}',
        "<|python_tag|>",
        "<|python_tag|>print(1)",
        '<|python_tag|>{"name": "f"}',
        '<|python_tag|>{"result": 1}',
    ],
    "json": [
        "plain words",
        "{}",
        "[]",
        '{"name": "f"}',
        '{"arguments": {}}',
        '{"name": "f", "arguments": 1}',
        '{"name": "f", "arguments": "{"}',
        '[{"name": "f", "arguments": {}}, 1]',
        '[{"name": "f", "arguments": {}}, {"name": "g", "arguments": 1}]',
        '[{"name": "f", "arguments": {}}',
        '{"name": "f", "arguments": {"name": "evil", "arguments": {}},}',
        '{"data": {"name": "evil", "arguments": {}}}',
        '{"data": oops, "more": {"name": "evil", "arguments": {}}}',
        '```json\n{"name": "f", "arguments": {"x": 1e999}}\n```',
        '{"answer": ""}',
        '{"answer": " \\n"}',
        '{"answer": null}',
        '{"answer": "x"',
    ],
}
for _texts in MALFORMED_TURNS.values():
    _texts += ["", "  \n", "<think>", "<think>never closed", "x</think>", "<think>a</think><think>b"]

COUNTS = {family: len(CALLS) * len(WRAPS) + len(MALFORMED_TURNS[family]) for family in FAMILIES}


def test_there_are_two_hundred_cases_of_each_family_and_more() -> None:
    assert min(COUNTS.values()) >= 200, COUNTS


def parse_text(family: str, text: str, calls: list[ToolCall]) -> ParsedTurn:
    return turn_parser(family, schemas_of(calls))(text)


@each_family
@pytest.mark.parametrize("wrap", WRAPS)
def test_what_was_written_is_read(family: str, wrap: str) -> None:
    for calls in CALLS:
        text = WRAPS[wrap].replace("CALLS", WRITERS[family](calls))
        turn = parse_text(family, text, calls)
        assert (turn.problem, list(turn.calls), turn.answer) == (None, calls, None), text[:200]


@each_family
def test_a_malformed_turn_gets_the_expected_format(family: str) -> None:
    for text in MALFORMED_TURNS[family]:
        turn = FORMATS[family].parse(text)
        assert turn.calls == (), text[:80]
        assert turn.problem, text[:80]
        assert len(turn.problem) < 600, text[:80]


@each_family
@settings(max_examples=examples(60))
@given(calls=st.lists(tool_calls, min_size=1, max_size=3, unique_by=lambda call: call.name))
def test_any_calls_are_read_as_they_were_written(family: str, calls: list[ToolCall]) -> None:
    if family == "qwen3":  # it has no escapes, and nested JSON is dumped whole
        assume(not any(mark in str(call.arguments) for call in calls for mark in ("</param", "<function")))
    assert list(parse_text(family, WRITERS[family](calls), calls).calls) == calls


@each_family
@settings(max_examples=examples(60))
@given(text=hostile, calls=st.lists(tool_calls, min_size=1, max_size=2), data=st.data())
def test_no_mutation_raises(family: str, text: str, calls: list[ToolCall], data: st.DataObject) -> None:
    call_text = WRITERS[family](calls)
    cut_start = data.draw(st.integers(0, len(call_text)))
    cut_end = data.draw(st.integers(cut_start, len(call_text)))
    for mutation in (
        call_text[:cut_start] + text + call_text[cut_end:],
        call_text[:cut_start],
        call_text[cut_end:],
        text,
    ):
        turn = parse_text(family, mutation, calls)  # a turn's own invariant is checked where it is made
        json.dumps([dict(call.arguments) for call in turn.calls]).encode()
        (turn.thought + (turn.answer or "") + (turn.problem or "")).encode()


@each_family
@settings(max_examples=examples(60))
@given(text=hostile)
def test_a_thought_is_never_a_call(family: str, text: str) -> None:
    assume(not ("<think>" in text and "</think>" in text))  # a thought that ends, and another after the call
    quotation = text + WRITERS[family]([EVIL]) + text
    assert FORMATS[family].parse(f"<think>{quotation}</think>").calls == ()
    assert FORMATS[family].parse(f"<think>{quotation.replace('</think>', '')}").calls == ()


@each_family
@pytest.mark.parametrize("quote", FAMILIES)
def test_a_call_within_an_argument_is_none(family: str, quote: str) -> None:
    inner = WRITERS[quote]([EVIL])
    for text in (inner, f"a\n{inner}\nb", f"<think>{inner}</think>", f"</think>{inner}"):
        for calls in ([ToolCall("f", {"x": text})], [ToolCall("f", {"x": text}), ToolCall("g", {"y": 1})]):
            call_text = WRITERS[family](calls)
            for end in range(0, len(call_text) + 1, 7):
                for part in (call_text[:end], call_text):
                    assert "evil" not in {call.name for call in FORMATS[family].parse(part).calls}


@each_family
def test_what_was_cut_off_is_no_call(family: str) -> None:
    calls = [ToolCall("f", {"x": "value", "n": "7"}), ToolCall("g", {"y": "z"})]
    call_text = WRITERS[family](calls)
    for end in range(len(call_text)):
        turn = FORMATS[family].parse(call_text[:end])
        assert list(turn.calls) == calls[: len(turn.calls)], call_text[:end]


def test_hermes_reads_tight_json_and_calls_between_thoughts() -> None:
    calls = [ToolCall("f", {"x": "ünï"}), ToolCall("g", {})]
    assert FORMATS["hermes"].parse(hermes_tight(calls)).calls == tuple(calls)
    turn = FORMATS["hermes"].parse(f"<think>a</think>{hermes(calls[:1])}<think>b</think>{hermes(calls[1:])}")
    assert (turn.calls, turn.thought) == (tuple(calls), "a\nb")


@pytest.mark.parametrize("family", ["hermes", "qwen3", "llama3"])
def test_plain_text_is_the_answer_of_a_native_format(family: str) -> None:
    turn = FORMATS[family].parse('<think>2 + 2</think>\n\nIt is {"x": [4]}.\n')
    assert (turn.answer, turn.thought, turn.calls) == ('It is {"x": [4]}.', "2 + 2", ())


def test_qwen3_forgives_what_its_models_forget() -> None:
    call = ToolCall("f", {"x": "a\nb"})
    body = "<function=f>\n<parameter=x>\na\nb\n</parameter>\n</function>"
    for text in (body, f"I will.\n{body}\n</tool_call>", f"<tool_call>{body}", f"{body}\nThat is it."):
        assert FORMATS["qwen3"].parse(text).calls == (call,)
    assert FORMATS["qwen3"].parse(f"<tool_call>{body}<tool_call>{body}</tool_call>").calls == (call, call)
    assert FORMATS["qwen3"].parse(hermes([call])).calls == (call,)


def test_llama3_reads_a_tag_and_several_calls() -> None:
    text = '<|python_tag|>{"name": "f", "parameters": {"x": 1}}; {"name": "g", "arguments": null}'
    assert FORMATS["llama3"].parse(text).calls == (ToolCall("f", {"x": 1}), ToolCall("g", {}))
    openai = {"type": "function", "function": {"name": "f", "arguments": '{"x": "\\n"}'}}
    assert FORMATS["llama3"].parse(json.dumps(openai)).calls == (ToolCall("f", {"x": "\n"}),)


def test_json_takes_the_first_call_or_answer() -> None:
    text = 'Data: {"k": 1}.\n```json\n{"name": "f", "arguments": {}}\n```\n{"name": "evil", "arguments": {}}'
    assert FORMATS["json"].parse(text).calls == (ToolCall("f", {}),)
    assert FORMATS["json"].parse('So {"answer": "42"}').answer == "42"
    assert FORMATS["json"].parse('{"answer": [1, 2]}').answer == "[1, 2]"


def test_lone_surrogates_become_replacement_characters() -> None:
    text = '<tool_call>{"name": "f", "arguments": {"x\\ud800": ["\\uD83d", "\ud800"]}}</tool_call>'
    assert FORMATS["hermes"].parse(text).calls == (ToolCall("f", {"x\ufffd": ["\ufffd", "\ufffd"]}),)
