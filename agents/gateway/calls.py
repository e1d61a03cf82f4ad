"""Calls as a chat template writes them: in assistants' messages from elsewhere, and the beginning of a call
that the policy completes."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

from pydantic_core import from_json

from agents.formats.scan import THOUGHT_END, THOUGHT_START
from agents.gateway.conversation import WrittenCall
from envs.errors import to_line
from envs.network.server import RequestRejected

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_BEFORE, _CONTENT, _AFTER, _KEY = "Wspan0before", "Wspan1says", "Wspan2after", "wspan_key"

_NAME = re.compile(r"[\w.:/-]{1,256}")


@dataclass(frozen=True, slots=True)
class CallPrefix:
    """The text of a call up to its arguments, which the gateway writes and the policy completes."""

    name: str
    text: str
    ids: list[int]


class CallWriter:
    """Writes calls by one chat template."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        self._tokenizer = tokenizer

    def message(self, content: str, calls: Sequence[WrittenCall]) -> str:
        """The text of an assistant's message with calls, without the template's marks of a turn.

        Raises `RequestRejected` if the template cannot write it.
        """
        from jinja2 import TemplateError

        functions = [{"name": call.name, "arguments": _arguments(call)} for call in calls]
        message = {
            "role": "assistant",
            "content": content,
            "tool_calls": [{"type": "function", "function": function} for function in functions],
        }
        try:
            text = self._render(message)
            before, _, after = self._render({"role": "assistant", "content": _CONTENT}).partition(_CONTENT)
        except (TemplateError, ValueError, TypeError) as error:
            why = f"the chat template rejects an assistant's calls: {to_line(error, limit=200)}"
            raise RequestRejected(400, why, param="messages") from None
        if not (text.startswith(before) and text.endswith(after)):
            why = "the chat template writes an assistant's calls outside of its message"
            raise RequestRejected(400, f"{why}; send them as text", param="messages")
        return text[len(before) : len(text) - len(after)]

    def beginning(self, name: str) -> str:
        """The text of a call of `name` up to its arguments. Raises `RequestRejected`."""
        if not _NAME.fullmatch(name):
            raise RequestRejected(
                400, f"a call of {name!r} cannot be begun; give plain names", param="tool_choice"
            )
        if self._thinks_first():
            why = "the chat template begins each answer with a thought, where no call can be begun"
            raise RequestRejected(400, f"{why}; use tool_choice 'auto'", param="tool_choice")
        bare, full = (self.message("", [WrittenCall(name, text)]) for text in ("{}", f'{{"{_KEY}": ""}}'))
        are_equal = (a == b for a, b in zip(bare, full, strict=False))
        before_arguments = full[: sum(takewhile(bool, are_equal))]
        # The policy opens the first argument: for it the bracket may be one token with the text that follows.
        text = before_arguments.rstrip(" \t\n{<")
        if name not in text:
            why = "the chat template writes a call's arguments before its name"
            raise RequestRejected(400, f"{why}; use tool_choice 'auto'", param="tool_choice")
        return text

    def _thinks_first(self) -> bool:
        turns = [{"role": "user", "content": _BEFORE}]
        text = self._tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        assert isinstance(text, str)
        start = text.rpartition(_BEFORE)[2]
        return start.rfind(THOUGHT_START) > start.rfind(THOUGHT_END)

    def _render(self, message: Mapping[str, object]) -> str:
        turns = [{"role": "user", "content": _BEFORE}, dict(message), {"role": "user", "content": _AFTER}]
        text = self._tokenizer.apply_chat_template(turns, tokenize=False)
        assert isinstance(text, str)
        return text


def _arguments(call: WrittenCall) -> object:
    try:
        return from_json(call.arguments)  # templates write mappings as JSON
    except ValueError:
        return call.arguments
