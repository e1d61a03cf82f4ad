"""JSON as policies write it: a value at a position in a text, a tool call from such a value, and a turn's
calls as the text of its action.

Never raises, and returns only values that can be written, sent and walked recursively. Each format decides
where it looks for JSON. Nothing is repaired, because a call that is guessed would be rewarded.
"""

import json
import math
import re
from dataclasses import dataclass
from typing import Any

from agents.formats.calls import ParsedTurn, ToolCall
from envs.types import replace_surrogates_within

MAX_DEPTH = 64
MAX_DIGITS = 1000
"""The most digits of an integer; Python itself refuses more than 4,300."""
MAX_NAME = 256
"""Characters."""

_INVALID_NUMBER = object()


def _int(digits: str) -> object:
    return int(digits) if len(digits) <= MAX_DIGITS else _INVALID_NUMBER


def _float(digits: str) -> object:
    number = float(digits)
    return number if math.isfinite(number) else _INVALID_NUMBER


# Line ends within strings are accepted: policies that write code as an argument forget to escape them.
_DECODER = json.JSONDecoder(
    parse_int=_int, parse_float=_float, parse_constant=lambda _: _INVALID_NUMBER, strict=False
)
_SPACE = re.compile(r"\s*")
_STRING_OR_BRACKET = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[][{}]', re.DOTALL)
_CALL = re.compile(r"(?P<name>[A-Za-z_][\w.-]*)\((?P<arguments>\{.*\})\)", re.DOTALL)
_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


@dataclass(frozen=True, slots=True)
class InvalidJson:
    """There is no JSON value at the position."""

    why: str
    """Fits after "its JSON "."""
    position: int
    """Where it breaks off; a scan can go on from here."""


@dataclass(frozen=True, slots=True)
class Value:
    """A JSON value in the text."""

    value: Any
    end: int


def skip_space(text: str, position: int) -> int:
    """The first position from `position` on that is not white space."""
    match = _SPACE.match(text, position)
    assert match
    return match.end()


def decode_at(text: str, position: int) -> Value | InvalidJson:
    """The JSON value that begins exactly at `position`.

    NaN, infinities, numbers out of range and values nested deeper than `MAX_DEPTH` are refused.
    """
    try:
        value, end = _DECODER.raw_decode(text, position)
    except json.JSONDecodeError as error:
        end = max(error.pos, position)
        return InvalidJson(f"breaks off after {end - position} characters: {error.msg}", end)
    except RecursionError:
        return InvalidJson(f"is nested more than {MAX_DEPTH} deep", len(text))
    if fault := _fault(value, 1):
        return InvalidJson(fault, end)
    if _ESCAPED_SURROGATE.search(text, position, end):
        value = replace_surrogates_within(value)
    return Value(value, end)


def _fault(value: object, depth: int) -> str | None:
    if isinstance(value, dict | list):
        if depth > MAX_DEPTH:
            return f"is nested more than {MAX_DEPTH} deep"
        for inner in value.values() if isinstance(value, dict) else value:
            if fault := _fault(inner, depth + 1):
                return fault
        return None
    return "has a number that is not finite or too long" if value is _INVALID_NUMBER else None


def broken_end(text: str, position: int, *, limit: int) -> int:
    """The position after the brackets that open at `position`, whatever is wrong within them.

    `limit` if they are not closed before that.
    """
    depth = 0
    for match in _STRING_OR_BRACKET.finditer(text, position, limit):
        if match[0] in "{[":
            depth += 1
        elif match[0] in "}]":
            depth -= 1
            if depth == 0:
                return match.end()
    return limit


dumps = json.JSONEncoder(ensure_ascii=False).encode
"""A JSON value as the formats write it."""


def call_of(value: object) -> ToolCall | str | None:
    """A call, why it is a bad one (fits after "its "), or None for a value that is not a call.

    A call is an object with a `name` and `arguments` (OpenAI, Hermes, Qwen) or `parameters` (Llama),
    bare or as OpenAI's `{"type": "function", "function": …}`; OpenAI writes the arguments as a string.
    """
    if isinstance(value, dict) and isinstance(value.get("function"), dict):
        value = value["function"]
    if not isinstance(value, dict) or "name" not in value:
        return None
    key = next((key for key in ("arguments", "parameters") if key in value), None)
    if key is None:
        return None
    name, arguments = value["name"], value[key]
    if not isinstance(name, str) or not 0 < len(name.strip()) <= MAX_NAME:
        return f'"name" must be a text of 1 to {MAX_NAME} characters'
    if isinstance(arguments, str):
        text = arguments.strip() or "{}"
        inner = decode_at(text, 0)
        arguments = inner.value if isinstance(inner, Value) and inner.end == len(text) else text
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        return f'"{key}" must be a JSON object'
    return ToolCall(name.strip(), arguments)


def format_action(turn: ParsedTurn) -> str:
    """The turn's action or answer, or one line for each call: `calculator({"expression": "6*7"})`."""
    text = turn.answer if turn.action is None else turn.action
    if text is not None:
        return text
    return "\n".join(f"{call.name}({dumps(call.arguments)})" for call in turn.calls)


def parse_calls(action: str) -> list[ToolCall]:
    """The calls of an action that `format_action` wrote; empty if it is anything else."""
    calls = []
    for line in action.split("\n"):  # JSON may hold the other characters that end a line
        match = _CALL.fullmatch(line)
        try:
            arguments = json.loads(match["arguments"]) if match else None
        except ValueError:
            arguments = None
        if match is None or not isinstance(arguments, dict):
            return []
        calls.append(ToolCall(match["name"], arguments))
    return calls
