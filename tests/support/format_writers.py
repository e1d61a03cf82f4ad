"""Writes calls in each family's format, independently of the parsers; the cases that tests make of them."""

import json
from collections.abc import Callable, Mapping, Sequence

from hypothesis import strategies as st

from agents.formats.calls import Schema, ToolCall

Write = Callable[[Sequence[ToolCall]], str]


def hermes(calls: Sequence[ToolCall]) -> str:
    """As Qwen2.5's template does."""
    return "\n".join(
        "<tool_call>\n" + json.dumps({"name": c.name, "arguments": c.arguments}) + "\n</tool_call>"
        for c in calls
    )


def hermes_tight(calls: Sequence[ToolCall]) -> str:
    """Without white space, with characters as they are."""
    return "".join(
        "<tool_call>"
        + json.dumps({"arguments": c.arguments, "name": c.name}, ensure_ascii=False, separators=(",", ":"))
        + "</tool_call>"
        for c in calls
    )


def qwen3(calls: Sequence[ToolCall]) -> str:
    """As Qwen3-Coder's template does: Python's `True` and `None`, JSON for arrays and objects."""
    parts = []
    for call in calls:
        lines = ["<tool_call>", f"<function={call.name}>"]
        for key, value in call.arguments.items():
            text = json.dumps(value) if isinstance(value, list | dict) else str(value)
            lines += [f"<parameter={key}>", text, "</parameter>"]
        parts.append("\n".join([*lines, "</function>", "</tool_call>"]))
    return "\n".join(parts)


def llama3(calls: Sequence[ToolCall]) -> str:
    """`;` between calls."""
    return "; ".join(json.dumps({"name": c.name, "parameters": c.arguments}) for c in calls)


def json_calls(calls: Sequence[ToolCall]) -> str:
    """An object, or an array of several."""
    values = [{"name": c.name, "arguments": c.arguments} for c in calls]
    return json.dumps(values[0] if len(values) == 1 else values)


WRITERS: dict[str, Write] = {"hermes": hermes, "qwen3": qwen3, "llama3": llama3, "json": json_calls}

_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}


def schemas_of(calls: Sequence[ToolCall]) -> list[Schema]:
    """Schemas of tools that take just these arguments; one tool per name, the last call's."""
    return [
        {
            "type": "function",
            "function": {
                "name": call.name,
                "description": f"The tool {call.name}.",
                "parameters": {
                    "type": "object",
                    "properties": {
                        k: {"type": _TYPES.get(type(v), "null")} for k, v in call.arguments.items()
                    },
                },
            },
        }
        for call in calls
    ]


EVIL = ToolCall("evil", {"path": "/"})
"""A call that no parser may ever return from the texts that quote it."""

TEXTS = [
    "",
    "Paris",
    " spaces ",
    "line\nline\n\tindented",
    'quote " and \\ backslash',
    "{[}]",
    "snow \u2603, emoji \U0001f680, \u4e2d\u6587",
    "\x00\x07\u2028",
    "<think>no thought</think>",
    "</think>",
    "<think>",
    "<tool_call>",
    "</tool_call>",
    "</parameter> alone",
    "Action: evil\nAction Input: {}",
    "```python\nprint(1)\n```",
    "; [1] NaN",
]
VALUES: list[object] = [
    0,
    -7,
    10**30,
    1.5,
    -2e-9,
    True,
    False,
    None,
    [],
    [1, "a", None],
    {},
    {"a": {"b": [1]}},
]
ARGUMENTS: list[Mapping[str, object]] = [
    {},
    *({"x": text} for text in TEXTS),
    *({"x": value} for value in VALUES),
    {"a": 1, "b": "two", "c_d": [3]},
    {"ключ": "значение"},
]
CALLS: list[list[ToolCall]] = [
    *([ToolCall("get_weather", arguments)] for arguments in ARGUMENTS),
    [ToolCall("a", {"x": 1}), ToolCall("b", {"y": "z"})],
    [ToolCall("a.b-c", {}), ToolCall("d", {}), ToolCall("e", {"s": "<tool_call>;"})],
]
_QUOTATION = '<tool_call>{"name": "evil", "arguments": {}}</tool_call> {"name": "evil", "parameters": {}}'
WRAPS: dict[str, str] = {
    "bare": "CALLS",
    "spaced": "\n\n  CALLS \n",
    "prose": "Let me see {what} [1] it is.\nCALLS",
    "thought": "<think>\nI could call it.\n</think>\n\nCALLS",
    "empty thought": "<think>\n\n</think>\n\nCALLS",
    "quoting thought": f"<think>{_QUOTATION}</think>CALLS",
    "thought opened in the prompt": f"I could {_QUOTATION} so\n</think>\n\nCALLS",
    "nested thought": f"<think>a<think>b {_QUOTATION}</think> {_QUOTATION} </think>CALLS",
    "broken thought": '<think><tool_call>{"name": <function=evil><parameter=x></think>CALLS',
}

FRAGMENTS = [
    *(
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "<function=evil>",
        "</function>",
        "<parameter=x>",
    ),
    *(
        "</parameter>",
        '{"name": "evil", "arguments": {}}',
        '{"',
        "}",
        "[",
        "]",
        '"',
        "\\",
        "\n",
        ";",
        ":",
        ",",
    ),
    *("<|python_tag|>", "```python", "```", "Action: x", "Action Input:", "Final Answer:", "<search>", "NaN"),
    *("</search>", "<answer>", "\x00", "\ud800", "\\ud800", "9" * 5000, "1e999", "[" * 300, "word", " "),
]
hostile = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=8), max_size=12).map("".join)
"""Texts of pieces of formats."""

_names = st.text("abcdefghijklmnopqrstuvwxyz_", min_size=1, max_size=8)
# Surrogates fit no file: the parsers replace them.
_texts = (hostile | st.text(max_size=12)).map(lambda text: text.replace("\ud800", "").replace("\\ud800", ""))
_scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _texts
)
values = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_names, inner, max_size=3),
    max_leaves=6,
)
tool_calls = st.builds(ToolCall, _names, st.dictionaries(_names, values, max_size=3))
"""Calls with any JSON arguments."""
