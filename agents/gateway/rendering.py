"""Conversations as tokens and completions as messages, by a chat template that may have tools.

What is sampled is decoded to be read and never encoded again. An assistant's message that did not come from
here, or comes back changed, is text like any other.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json

from agents.calls import ToolCall
from agents.formats import NATIVE, turn_parser
from agents.gateway.conversation import Conversation, Said, WrittenCall, canonical
from agents.gateway.refused import Refused
from agents.hands import said
from agents.native_tools import check_native
from agents.renderer import Renderer
from envs.errors import ConfigError
from envs.types import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_BEFORE, _SAYS, _AFTER = "Wspan0before", "Wspan1says", "Wspan2after"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A completion as a message and as a turn."""

    text: str
    """All of it."""
    content: str
    """Without the calls, where there are any."""
    calls: tuple[ToolCall, ...] = ()
    thought: str = ""
    action: str
    """What it does, in words; empty where it cannot be read."""
    failed: bool = False
    """Whether it has calls that cannot be read; it is then told as text."""

    @property
    def said(self) -> Said:
        """As it is recognised when it comes back."""
        calls = (WrittenCall(call.name, canonical(arguments_of(call))) for call in self.calls)
        return Said("assistant", self.content, tuple(calls))


def arguments_of(call: ToolCall) -> str:
    """A call's arguments as OpenAI's messages have them."""
    return json.dumps(dict(call.arguments), ensure_ascii=False)


class Rendering:
    """One tokenizer's."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        """Raises `ConfigError` for a chat template that cannot be used; one without tools can."""
        self._tokenizer = tokenizer
        self._renderer = Renderer(tokenizer)
        self.stop_token_ids = self._renderer.stop_token_ids
        self.format: str | None = None
        """In which calls are read; None where the template has no tools."""
        for format in NATIVE:
            with suppress(ConfigError):
                check_native(tokenizer, format)
                self.format = format
                break

    def prompt_ids(self, conversation: Conversation) -> list[int]:
        """The whole conversation, up to where the policy speaks ([P]). Raises `Refused`."""
        if conversation.tools:
            self._tool_format("tools")
        messages = [self._message(one) for one in conversation.messages]
        try:
            return self._renderer.prompt_ids(messages, tools=conversation.tools)
        except ConfigError as error:
            raise Refused(400, str(error), param="messages") from None

    def reply_ids(self, messages: Sequence[Said], *, after: Sequence[int]) -> list[int]:
        """What stands between the completion `after` and the next one. Raises `Refused`."""
        closed = after[-1] in self.stop_token_ids
        try:
            return self._renderer.reply_ids([self._message(one) for one in messages], closed=closed)
        except ConfigError as error:
            raise Refused(400, str(error), param="messages") from None

    def reading(self, token_ids: list[int], *, tools: Sequence[Mapping[str, Any]]) -> Reading:
        """A completion, with its calls where there are `tools`."""
        text = self._renderer.decode(token_ids)
        if not tools:
            return Reading(text=text, content=text, action=text)
        turn = turn_parser(self._tool_format("tools"), tools)(text)
        return Reading(
            text=text,
            content=turn.thought if turn.calls else text,
            calls=turn.calls,
            thought=turn.thought,
            action=said(turn),
            failed=turn.failed,
        )

    def _tool_format(self, param: str) -> str:
        if self.format is None:
            why = "the policy's chat template has no tools whose calls can be read"
            raise Refused(400, f"{why}; write of them in a message's text", param=param)
        return self.format

    def _message(self, message: Said) -> Message:
        content = self._with_calls(message) if message.calls else message.content
        return Message(message.role, content)

    def _with_calls(self, message: Said) -> str:
        """What the template writes for an assistant's message with calls, between its marks of a turn."""
        from jinja2 import TemplateError

        self._tool_format("messages")
        calls = [{"name": call.name, "arguments": _arguments(call)} for call in message.calls]
        says = {
            "role": "assistant",
            "content": message.content,
            "tool_calls": [{"type": "function", "function": call} for call in calls],
        }
        try:
            written = self._between(says)
            before, _, after = self._between({"role": "assistant", "content": _SAYS}).partition(_SAYS)
        except (TemplateError, ValueError, TypeError) as error:
            why = f"the chat template refuses an assistant's calls: {' '.join(str(error).split())[:200]}"
            raise Refused(400, why, param="messages") from None
        if not (written.startswith(before) and written.endswith(after)):
            why = "the chat template writes an assistant's calls outside of its message"
            raise Refused(400, f"{why}; send them as text", param="messages")
        return written[len(before) : len(written) - len(after)]

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
