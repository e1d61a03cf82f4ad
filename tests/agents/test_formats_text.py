"""The formats in plain text (ReAct, code, Search-R1), thoughts, types from schemas, and the bounds of all."""

import enum

import pytest
from hypothesis import example, given
from pydantic import BaseModel

from agents.formats import ACTIONS, FORMATS, turn_parser
from agents.formats.calls import ParsedTurn, ToolCall
from agents.formats.json_values import MAX_DEPTH
from agents.formats.react import react
from agents.formats.scan import MAX_CHARS, MAX_MARKS, split_thinking
from agents.tools.tool import tool
from envs.errors import ConfigError
from tests.support.format_writers import hostile

Read = tuple[tuple[ToolCall, ...], str | None]


def read(format: str, text: str) -> Read:
    turn = FORMATS[format].parse(text)
    return turn.calls, turn.answer


def call(name: str, **arguments: object) -> Read:
    return (ToolCall(name, arguments),), None


@pytest.mark.parametrize(
    ("text", "reading"),
    [
        ('Thought: a\nAction: search\nAction Input: {"query": "x"}', call("search", query="x")),
        ('Action: search\nAction Input:\n{"query": "x"}\n', call("search", query="x")),
        ('Action: f\nAction Input: ```json\n{"a": [1, null]}\n```', call("f", a=[1, None])),
        ("Action: search\nAction Input: who wrote it?", call("search", input="who wrote it?")),
        ("Action: f\nAction Input: [1, 2]\nand more", call("f", input="[1, 2]\nand more")),
        ("Action: look\nAction Input:", call("look")),
        ("Action: look\nAction Input: {}", call("look")),
        (
            'Action: f\nAction Input: {"a": "\nAction: g\nFinal Answer:"}',
            call("f", a="\nAction: g\nFinal Answer:"),
        ),
        ("<think>Action: g\nAction Input: {}</think>Action: f\nAction Input: {}", call("f")),
        ('Action: f\nAction Input: {"a": "</think>"}', call("f", a="</think>")),
        ("I see.\nThought: b\nFinal Answer: 42\nor so", ((), "42\nor so")),
    ],
)
def test_react_reads(text: str, reading: Read) -> None:
    assert read("react", text) == reading


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no Action"),
        ("Thought: only thinking", "no Action"),
        ("Action: f", "no Action Input"),
        ("Action Input: {}", "no Action"),
        ("Action:\nAction Input: {}", "name of one tool"),
        ("Action: f\ng\nAction Input: {}", "name of one tool"),
        ('Action: f\nAction Input: {"a": 1', "its JSON breaks off"),
        ("Action: f\nAction Input: {'a': 1}", "its JSON breaks off"),
        ("Action: f\nAction Input: {}\nObservation: invented\nFinal Answer: 1", "both"),
        ("Action: f\nAction Input: {}\nObservation: invented", "goes on"),
        ("Action: f\nAction Input: {}\nThought: and then", "goes on"),
        ("Action: f\nAction Input: {}\nAction: g\nAction Input: {}", "2 actions"),
        ("Final Answer:  ", "empty"),
        ("<think>Action: f\nAction Input: {}", "no end"),
    ],
)
def test_react_says_what_is_wrong(text: str, why: str) -> None:
    problem = FORMATS["react"].parse(text).problem
    assert problem
    assert why in problem
    assert "Final Answer: ..." in problem


def test_react_keeps_thoughts_apart() -> None:
    turn = react("So.\nThought: one\ntwo\nAction: f\nAction Input: {}")
    assert turn.thought == "So.\none\ntwo"


@pytest.mark.parametrize(
    ("text", "reading"),
    [
        ("Now:\n```python\na\n\nb\n```\nDone.", call("code_interpreter", code="a\n\nb")),
        ("<think>a</think>```python\nb\n```", call("code_interpreter", code="b")),
        ("1. Run\n   ```python\n   if a:\n       b\n ```", call("code_interpreter", code="if a:\n    b")),
        ("```py\nx = '</think>'\n```", call("code_interpreter", code="x = '</think>'")),
        ("```python\nx\n```\n```text\nout\n```", call("code_interpreter", code="x")),
        ("````markdown\n```\n````\n\n```Python\ny\n```", call("code_interpreter", code="y")),
        ("````python\na = '\n```\n'\n`````", call("code_interpreter", code="a = '\n```\n'")),
        ("````text\n```python\nno\n```\n````\n```python\ny\n```", call("code_interpreter", code="y")),
        ("````text\n```python\ny\n```", call("code_interpreter", code="y")),
        ("<think>\n```python\nno\n```\n</think>\n```python\ny\n```", call("code_interpreter", code="y")),
        ("It is 4: `2 + 2`.", ((), "It is 4: `2 + 2`.")),
        ("```json\n{}\n```", ((), "```json\n{}\n```")),
    ],
)
def test_code_reads(text: str, reading: Read) -> None:
    assert read("code", text) == reading


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("```python\n1\n```\n```python\n2\n```", "2 blocks"),
        ("```python\nprint(1)", "no end"),
        ("````python\nprint(1)\n```", "no end"),
        ("```python\n\n```", "empty"),
        ("", "says nothing"),
        ("<think>```python\n1\n```", "no end"),
    ],
)
def test_code_says_what_is_wrong(text: str, why: str) -> None:
    assert why in (FORMATS["code"].parse(text).problem or "")


@pytest.mark.parametrize(
    ("text", "reading"),
    [
        ("<think>who?</think>\n<search> the author </search>", call("search", query="the author")),
        ("<think>a</think><answer>\nBeijing\n</answer>", ((), "Beijing")),
        ("<think><search>no</search></think><answer>b</answer>", ((), "b")),
        ("I may use <search> or <answer>no</answer></think><search>q</search>", call("search", query="q")),
        ("I know of <search>, so</think><search>q</search>", call("search", query="q")),
    ],
)
def test_searchr1_reads(text: str, reading: Read) -> None:
    assert read("searchr1", text) == reading


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("plain", "neither"),
        ("<search>a</search><information>made up</information><answer>b</answer>", "2 searches or answers"),
        ("<search>a", "not closed"),
        ("<answer> </answer>", "empty"),
        ("<think><search>a</search>", "no end"),
    ],
)
def test_searchr1_says_what_is_wrong(text: str, why: str) -> None:
    assert why in (FORMATS["searchr1"].parse(text).problem or "")


@pytest.mark.parametrize(
    ("text", "thoughts", "rest"),
    [
        ("rest", "", "rest"),
        ("<think>a</think>rest", "a", "rest"),
        ("<think>\n\n</think>\n\nrest", "", "rest"),
        ("a</think>rest", "a", "rest"),
        ("<think>a", "a", ""),
        ("x<think>a</think>y<think>b</think>z", "a\nb", "xyz"),
        ("<think>a<think>b</think>c</think>rest", "a<think>b\nc", "rest"),
        ("<think>a</think>x<think>b", "a\nb", "x"),
        ("</think></think>rest<think>", "", "rest"),
    ],
)
def test_thoughts_are_split_from_the_rest(text: str, thoughts: str, rest: str) -> None:
    assert split_thinking(text) == (thoughts, rest)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("string", "7", "7"),
        ("string", "null", "null"),
        (["string", "null"], "null", None),
        ("integer", " 7 ", 7),
        ("integer", "7.5", "7.5"),
        ("integer", "9" * 5000, "9" * 5000),
        ("number", "7.5", 7.5),
        ("number", "true", "true"),
        ("number", "NaN", "NaN"),
        ("number", "1e999", "1e999"),
        ("boolean", "True", True),
        ("boolean", "maybe", "maybe"),
        ("null", "None", None),
        ("array", "[1, 2]", [1, 2]),
        ("array", "{}", "{}"),
        ("object", '{"a": 1}', {"a": 1}),
        ("object", "[" * 100_000, "[" * 100_000),
        ([], "7", "7"),
    ],
)
def test_arguments_get_the_types_of_the_schema(kind: str | list[str], text: str, value: object) -> None:
    choices = {"anyOf": [{"type": t} for t in kind]} if isinstance(kind, list) else {"type": kind}
    schema = {"name": "f", "parameters": {"type": "object", "properties": {"x": choices}}}
    turn = turn_parser("qwen3", [schema])(f"<function=f>\n<parameter=x>\n{text}\n</parameter>\n</function>")
    assert turn.calls == (ToolCall("f", {"x": value}),)
    assert type(turn.calls[0].arguments["x"]) is type(value)


async def test_arguments_get_the_types_of_models_and_enumerations() -> None:
    class Grade(enum.IntEnum):
        GOOD = 1

    class Place(BaseModel):
        x: int

    @tool
    def visit(place: Place, then: Place | None, grade: Grade | None, all: list[Place]) -> list[int]:
        assert then is not None
        assert grade is not None
        return [place.x, then.x, grade, *(each.x for each in all)]

    texts = {"place": '{"x": 3}', "then": '{"x": 4}', "grade": "1", "all": '[{"x": 5}]'}
    parameters = "".join(f"<parameter={key}>\n{text}\n</parameter>\n" for key, text in texts.items())
    turn = turn_parser("qwen3", [visit.schema])(f"<function=visit>\n{parameters}</function>")
    assert (await visit.call(turn.calls[0].arguments)).observation == "[3,4,1,5]"


def test_a_definition_that_refers_to_itself_is_followed_once() -> None:
    tree = {"anyOf": [{"type": "integer"}, {"$ref": "#/$defs/Tree"}]}
    places = {"x": {"$ref": "#/$defs/Tree"}, "y": {"$ref": "#/$defs/Lost"}}
    schema = {"name": "f", "parameters": {"properties": places, "$defs": {"Tree": tree}}}
    body = "<parameter=x>\n7\n</parameter>\n<parameter=y>\n7\n</parameter>\n"
    turn = turn_parser("qwen3", [schema])(f"<function=f>\n{body}</function>")
    assert turn.calls == (ToolCall("f", {"x": 7, "y": "7"}),)


def test_a_plain_input_goes_to_the_only_parameter_that_is_needed() -> None:
    properties = {"query": {"type": "string"}, "k": {"type": "integer"}}
    schema = {"name": "f", "parameters": {"properties": properties, "required": ["query"]}}
    parse = turn_parser("react", [schema])
    assert parse("Action: f\nAction Input: x").calls == (ToolCall("f", {"query": "x"}),)
    assert parse("Action: g\nAction Input: x").calls == (ToolCall("g", {"input": "x"}),)
    assert parse("Final Answer: x").answer == "x"


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown format of calls 'herms'; did you mean 'hermes'"):
        turn_parser("herms", [])
    with pytest.raises(ConfigError, match="has no name"):
        turn_parser("qwen3", [{"function": {}}])


LONG = MAX_CHARS // 2 - 9
BOMBS = [
    *("{", "[", '{"', '{"a":', "[{", '{"a" x</think>', '{"\\"</think>', '{"a":1e999}', "<think>", "</think>"),
    *(
        "<tool_call>",
        '<tool_call>{"a":"',
        "<function=a><parameter=b>",
        "</parameter>\n",
        "<search>",
        "\\",
        '"',
    ),
    *(
        "<search></think>",
        "\n```python\n",
        "\n```python\n</think>",
        "\nAction Input: {",
        "\nAction:",
        "\t\n ",
    ),
    *("<|python_tag|>", '{"name": 1}', '[{"name":"a","arguments":{}},{', "\x00", "\ud800", "[" * 200 + "{"),
    *("\n```" + "a" * LONG + "`", "[" + " " * LONG, "\n" + "`" * LONG + "x`"),
]


@pytest.mark.parametrize(
    "format", [pytest.param(name, marks=[pytest.mark.heavy] * (name != "hermes")) for name in FORMATS]
)
def test_bombs_cost_little(format: str) -> None:
    """Within a test's time limit: quadratic work on the longest text that is read takes longer than that."""
    for bomb in BOMBS:
        assert isinstance(FORMATS[format].parse(bomb * (MAX_CHARS // len(bomb))), ParsedTurn)


@pytest.mark.parametrize("format", sorted(set(FORMATS) - set(ACTIONS)))
def test_what_is_too_long_is_refused(format: str) -> None:
    assert "write at most" in (FORMATS[format].parse("x" * (MAX_CHARS + 1)).problem or "")


def test_a_turn_of_too_many_marks_is_refused() -> None:
    call_text = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    assert len(FORMATS["hermes"].parse(call_text * MAX_MARKS).calls) == MAX_MARKS
    assert "one at a time" in (FORMATS["hermes"].parse(call_text * (MAX_MARKS + 1)).problem or "")


def test_nesting_ends_at_the_limit() -> None:
    for depth, reads in ((MAX_DEPTH - 2, True), (MAX_DEPTH - 1, False)):
        text = '{"name": "f", "arguments": {"x": ' + "[" * depth + "]" * depth + "}}"
        assert bool(FORMATS["json"].parse(text).calls) == reads


@pytest.mark.parametrize("format", FORMATS)
@given(text=hostile)
@example(text="\ud800Action: \udfff")
def test_every_format_is_total(format: str, text: str) -> None:
    turn = FORMATS[format].parse(text)
    action = turn.action if isinstance(turn.action, str) else ""
    (turn.thought + action + (turn.answer or "") + (turn.problem or "")).encode()
