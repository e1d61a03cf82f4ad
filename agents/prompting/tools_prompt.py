"""Describes tools to a model in plain text, by `agents/prompting/prompts/<format>.md`.

There is a file for each format that no chat template writes; the others are in `native_tools.py`.
"""

import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

from agents.formats import ACTIONS, FORMATS, NATIVE, code_block, function_of, searchr1
from agents.formats.calls import Schema
from envs.errors import ConfigError

PLACEHOLDER = "{{tools}}"
"""The place of the tools' descriptions in a prompt file."""

FORMATS_WITH_PROMPT = tuple(name for name in FORMATS if name not in (*ACTIONS, *NATIVE))
"""Formats that have a prompt file."""

_ONE_TOOL = {"code": (code_block.TOOL, code_block.ARGUMENT), "searchr1": (searchr1.TOOL, searchr1.ARGUMENT)}


def tools_prompt(format: str, schemas: Sequence[Schema]) -> str:
    """Instructions for an agent that writes `format` and has the tools `schemas` describe.

    `schemas` are JSON schemas of functions, as `tokenizer.apply_chat_template(tools=…)` takes them.

    Raises `ConfigError` for a format without a prompt, for no tools or two of one name, and for tools that
    the format cannot call: `code` has `code_interpreter(code)` only, `searchr1` `search(query)`.
    """
    if format not in FORMATS_WITH_PROMPT:
        raise ConfigError(
            f"format {format!r} has no prompt; describe tools by one of {', '.join(FORMATS_WITH_PROMPT)}, "
            f"or by the model's chat template for {', '.join(NATIVE)}"
        )
    functions = [function_of(schema) for schema in schemas]
    names = [function["name"] for function in functions]
    if not names:
        raise ConfigError(f"format {format!r} calls tools, and there are none; name them in agent.tools")
    if len(set(names)) < len(names):
        raise ConfigError(
            f"format {format!r} needs tools of different names, got {names}; name each once in agent.tools"
        )
    if format in _ONE_TOOL:
        _check_one_tool(format, functions)
        tools = str(functions[0].get("description", "")).strip() or names[0]
    else:
        keys = ("name", "description", "parameters")
        shown = ({key: function[key] for key in keys if key in function} for function in functions)
        tools = "\n".join(json.dumps(function, ensure_ascii=False) for function in shown)
    return _prompt(format).replace(PLACEHOLDER, tools)


def _check_one_tool(format: str, functions: list[Schema]) -> None:
    tool, argument = _ONE_TOOL[format]
    names = [function["name"] for function in functions]
    arguments = functions[0].get("parameters", {}).get("properties", {})
    if names != [tool] or argument not in arguments:
        raise ConfigError(
            f"format {format!r} can call {tool}({argument}) and nothing else, got "
            f"{names[0]}({', '.join(arguments)}) among {names}; use format 'json' for other tools"
        )


@cache
def _prompt(format: str) -> str:
    return (files("agents.prompting") / "prompts" / f"{format}.md").read_text(encoding="utf-8").strip()
