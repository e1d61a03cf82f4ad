"""Checks that a model's own chat template shows tools, and writes calls in the format that is parsed.

Some templates silently ignore `tools=`, so that the model never learns about them; others write calls in
another format. Sentinel words reveal both before anything is sampled.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from agents.formats import FORMATS, NATIVE
from agents.formats.calls import Schema, ToolCall
from envs.errors import ConfigError, to_line

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_NAME, _DESCRIPTION, _ARGUMENT, _VALUE = "wspan_tool", "Wspan0description", "wspan_argument", "Wspan1value"
_USER = "Wspan2user"
_CALL = ToolCall(_NAME, {_ARGUMENT: _VALUE})
SENTINEL: Schema = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": _DESCRIPTION,
        "parameters": {
            "type": "object",
            "properties": {_ARGUMENT: {"type": "string", "description": _DESCRIPTION}},
            "required": [_ARGUMENT],
        },
    },
}
"""A tool whose words show whether a template shows tools."""
_REMEDY = "use a model whose template has tools, or a format that describes them in words, such as 'json'"


def check_native(tokenizer: "PreTrainedTokenizerBase", format: str) -> None:
    """Check that the chat template shows tools, and writes calls as the parser of `format` reads them.

    Raises `ConfigError` otherwise; the remedy names the format that reads them, if there is one.
    """
    if format not in NATIVE:
        raise ConfigError(f"format {format!r} belongs to no chat template; use one of {', '.join(NATIVE)}")
    user = {"role": "user", "content": _USER}
    prompt = _render(tokenizer, user, prompts=True)
    if missing := [word for word in (_NAME, _DESCRIPTION, _ARGUMENT) if word not in prompt]:
        parts = {_NAME: "names", _DESCRIPTION: "descriptions", _ARGUMENT: "arguments"}
        left_out = ", ".join(parts[word] for word in missing)
        raise _unusable(tokenizer, f"does not show the tools' {left_out}; {_REMEDY}")
    call = {"type": "function", "function": {"name": _NAME, "arguments": {_ARGUMENT: _VALUE}}}
    message = {"role": "assistant", "content": "", "tool_calls": [call]}
    conversation = _render(tokenizer, user, message, prompts=False)
    reply = conversation.rpartition(_USER)[2]
    read_by = [name for name in NATIVE if FORMATS[name].parse(reply).calls == (_CALL,)]
    if format not in read_by:
        instead = f"use format {read_by[0]!r}, which reads them" if read_by else _REMEDY
        raise _unusable(tokenizer, f"does not write calls in format {format!r}; {instead}")


def _render(tokenizer: "PreTrainedTokenizerBase", *messages: Mapping[str, object], prompts: bool) -> str:
    from jinja2 import TemplateError

    try:
        text = tokenizer.apply_chat_template(
            [*messages], tools=[SENTINEL], tokenize=False, add_generation_prompt=prompts
        )
    except (TemplateError, ValueError, TypeError) as error:
        why = to_line(error, limit=200)
        raise _unusable(tokenizer, f"refuses tools or a conversation with them: {why}; {_REMEDY}") from None
    assert isinstance(text, str)
    return text


def _unusable(tokenizer: "PreTrainedTokenizerBase", why: str) -> ConfigError:
    name = tokenizer.name_or_path or type(tokenizer).__name__
    return ConfigError(f"the chat template of {name!r} {why}")
