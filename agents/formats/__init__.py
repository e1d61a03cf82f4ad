"""The formats in which a policy acts and calls tools, by name; all are total (`agents/formats/calls.py`).

What each format tells the model about the tools is `agents/prompting/tools_prompt.py`'s and
`agents/prompting/native_tools.py`'s.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from agents.formats import action, code_block, hermes, json_calls, qwen3, react, searchr1
from agents.formats.calls import ParsedTurn, TurnParser
from agents.formats.fitting import fit_types
from envs.errors import ConfigError

FORMATS: dict[str, TurnParser] = {
    "action": action.action,
    "raw": action.raw,
    "react": react.react,
    "hermes": hermes.hermes,
    "qwen3": qwen3.qwen3,
    "llama3": json_calls.llama3,
    "json": json_calls.json,
    "code": code_block.code,
    "searchr1": searchr1.searchr1,
}

ACTIONS = ("action", "raw")
"""Formats that call no tools: a turn is an action in the environment's own words."""

NATIVE = ("hermes", "qwen3", "llama3")
"""Formats of which the model's chat template describes the tools."""

_WITHOUT_TYPES = ("react", "qwen3")


def function_of(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """`name`, `description` and `parameters` of a tool's schema, be it bare or in OpenAI's wrapper.

    Raises `ConfigError` for a schema without a name.
    """
    function = schema.get("function", schema)
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ConfigError(f"a tool's schema has no name: {schema!r:.200}; make it with @tool")
    return function


def turn_parser(format: str, schemas: Sequence[Mapping[str, Any]]) -> TurnParser:
    """The parser of `format` for these tools: arguments written as text get their schema's types.

    `schemas` are JSON schemas of functions, as `tokenizer.apply_chat_template(tools=…)` takes them.
    Raises `ConfigError` for an unknown format, and for tools in a format that calls none.
    """
    if format not in FORMATS:
        near = difflib.get_close_matches(format, FORMATS, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ConfigError(f"unknown format of calls {format!r}; {hint}Known: {', '.join(FORMATS)}")
    parse = FORMATS[format]
    if format in ACTIONS and schemas:
        names = ", ".join(function_of(schema)["name"] for schema in schemas)
        raise ConfigError(f"format {format!r} calls no tools, got {names}; use another format, or no tools")
    if format not in _WITHOUT_TYPES:
        return parse
    functions = [function_of(schema) for schema in schemas]
    parameters = {function["name"]: function.get("parameters", {}) for function in functions}

    def parse_and_fit(text: str) -> ParsedTurn:
        turn = parse(text)
        calls = (
            fit_types(call, parameters[call.name]) if call.name in parameters else call for call in turn.calls
        )
        return replace(turn, calls=tuple(calls))

    return parse_and_fit
