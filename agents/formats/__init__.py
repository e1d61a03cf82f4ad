"""The formats in which a policy acts and calls tools, by name; all are total (`agents/formats/calls.py`).

What each format tells the model about the tools is `agents/prompting/tools_prompt.py`'s and
`agents/prompting/native_tools.py`'s.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from agents.formats import action, code_block, hermes, json_calls, qwen3, react, searchr1
from agents.formats.calls import ParsedTurn, Schema, TurnParser, TurnWriter
from agents.formats.fitting import fit_types
from envs.errors import ConfigError, suggest


@dataclass(frozen=True, slots=True)
class Format:
    """How the turns of an agent are read and written."""

    parse: TurnParser
    write: TurnWriter
    form: str = ""
    """Follows an agent's instructions where a turn is an action; `{action}` stands for what the environment
    calls one. Formats that call tools are described by `agents/prompting`."""


FORMATS: dict[str, Format] = {
    "action": Format(action.action, action.write_action, action.ACTION_FORM),
    "raw": Format(action.raw, action.write_raw, action.RAW_FORM),
    "react": Format(react.react, react.write_react),
    "hermes": Format(hermes.hermes, hermes.write_hermes),
    "qwen3": Format(qwen3.qwen3, qwen3.write_qwen3),
    "llama3": Format(json_calls.llama3, json_calls.write_llama3),
    "json": Format(json_calls.json, json_calls.write_json),
    "code": Format(code_block.code, code_block.write_code),
    "searchr1": Format(searchr1.searchr1, searchr1.write_searchr1),
}

ACTIONS = ("action", "raw")
"""Formats that call no tools: a turn is an action in the environment's own words."""

NATIVE = ("hermes", "qwen3", "llama3")
"""Formats of which the model's chat template describes the tools."""

_WITHOUT_TYPES = ("react", "qwen3")


def function_of(schema: Schema) -> Schema:
    """`name`, `description` and `parameters` of a tool's schema, be it bare or in OpenAI's wrapper.

    Raises `ConfigError` for a schema without a name.
    """
    function = schema.get("function", schema)
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ConfigError(f"a tool's schema has no name: {schema!r:.200}; make it with @tool")
    return function


def turn_parser(format: str, schemas: Sequence[Schema]) -> TurnParser:
    """The parser of `format` for these tools: arguments written as text get their schema's types.

    `schemas` are JSON schemas of functions, as `tokenizer.apply_chat_template(tools=…)` takes them.
    Raises `ConfigError` for an unknown format, and for tools in a format that calls none.
    """
    if format not in FORMATS:
        raise ConfigError(
            f"unknown format of calls {format!r}; {suggest(format, FORMATS)}Known: {', '.join(FORMATS)}"
        )
    parse = FORMATS[format].parse
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
