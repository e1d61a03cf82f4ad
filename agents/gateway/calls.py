"""Calls as a chat template writes them: those of an assistant's message that did not come from here, and the
beginning of one that the policy is to finish."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json

from agents.gateway.conversation import WrittenCall
from agents.gateway.errors import RequestRejected

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_BEFORE, _SAYS, _AFTER, _KEY = "Wspan0before", "Wspan1says", "Wspan2after", "wspan_key"

_NAME = re.compile(r"[\w.:/-]{1,256}")


@dataclass(frozen=True, slots=True)
class CallPrefix:
    """A call of which all that stands before its arguments is written: by the gateway, not by the policy."""

    name: str
    text: str
    ids: list[int]


class CallWriter:
    """One chat template's."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        self._tokenizer = tokenizer

    def message(self, content: str, calls: Sequence[WrittenCall]) -> str:
        """What the template writes for an assistant's message with calls, between its marks of a turn.

        Raises `RequestRejected` where it cannot.
        """
        from jinja2 import TemplateError

        functions = [{"name": call.name, "arguments": _arguments(call)} for call in calls]
        says = {
            "role": "assistant",
            "content": content,
            "tool_calls": [{"type": "function", "function": one} for one in functions],
        }
        try:
            written = self._between(says)
            before, _, after = self._between({"role": "assistant", "content": _SAYS}).partition(_SAYS)
        except (TemplateError, ValueError, TypeError) as error:
            why = f"the chat template refuses an assistant's calls: {' '.join(str(error).split())[:200]}"
            raise RequestRejected(400, why, param="messages") from None
        if not (written.startswith(before) and written.endswith(after)):
            why = "the chat template writes an assistant's calls outside of its message"
            raise RequestRejected(400, f"{why}; send them as text", param="messages")
        return written[len(before) : len(written) - len(after)]

    def beginning(self, name: str) -> str:
        """All that the template writes of a call of `name` before its arguments. Raises `RequestRejected`."""
        if not _NAME.fullmatch(name):
            raise RequestRejected(
                400, f"a call of {name!r} cannot be begun; give plain names", param="tool_choice"
            )
        if self._thinks_first():
            why = "the chat template begins each answer with a thought, where no call can be begun"
            raise RequestRejected(400, f"{why}; use tool_choice 'auto'", param="tool_choice")
        bare, full = (self.message("", [WrittenCall(name, text)]) for text in ("{}", f'{{"{_KEY}": ""}}'))
        alike = (one == other for one, other in zip(bare, full, strict=False))
        before_arguments = full[: sum(takewhile(bool, alike))]
        # What may open the first argument is left to the policy, which may know it as one token with more.
        text = before_arguments.rstrip(" \t\n{<")
        if name not in text:
            why = "the chat template writes a call's arguments before its name"
            raise RequestRejected(400, f"{why}; use tool_choice 'auto'", param="tool_choice")
        return text

    def _thinks_first(self) -> bool:
        turns = [{"role": "user", "content": _BEFORE}]
        text = self._tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        assert isinstance(text, str)
        opened = text.rpartition(_BEFORE)[2]
        return opened.rfind("<think>") > opened.rfind("</think>")

    def _between(self, message: Mapping[str, Any]) -> str:
        turns = [{"role": "user", "content": _BEFORE}, dict(message), {"role": "user", "content": _AFTER}]
        text = self._tokenizer.apply_chat_template(turns, tokenize=False)
        assert isinstance(text, str)
        return text


def _arguments(call: WrittenCall) -> object:
    try:
        return from_json(call.arguments)  # templates write mappings as JSON
    except ValueError:
        return call.arguments
