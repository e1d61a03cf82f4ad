"""Conversations as tokens and completions as messages, by a chat template that may have tools.

What is sampled is decoded to be read and never encoded again. An assistant's message that did not come from
here, or comes back changed, is text like any other.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from agents.formats import NATIVE, turn_parser
from agents.formats.calls import ParsedTurn
from agents.gateway.calls import Begun, CallWriter
from agents.gateway.conversation import Conversation, Said, Tool, WrittenCall, canonical
from agents.gateway.errors import RequestRejected
from agents.prompting.native_tools import SENTINEL, check_native
from agents.prompting.renderer import Renderer
from agents.rollout.actions import format_action
from agents.samplers.stop_texts import cut_at_stop, text_before, truncate
from agents.types import Completion
from envs.errors import ConfigError, EnvCrashed
from envs.types import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, ProcessorMixin

_BEGUN_CACHED = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A completion as a message and as a turn."""

    text: str
    """All of it, up to where a stop text begins."""
    content: str
    """Without the calls, where there are any."""
    calls: tuple[WrittenCall, ...] = ()
    """With their arguments as they are told."""
    thought: str = ""
    action: str
    """What it does, in words; empty where it cannot be read."""
    failed: bool = False
    """Whether it has calls that cannot be read. They are told as text, but for one that was begun for the
    policy: its arguments then are what the policy wrote, which is no JSON."""

    @property
    def said(self) -> Said:
        """As it is recognised when it comes back."""
        return Said(
            "assistant",
            self.content,
            tuple(WrittenCall(call.name, canonical(call.arguments)) for call in self.calls),
        )


class Rendering:
    """One tokenizer's."""

    def __init__(
        self, tokenizer: "PreTrainedTokenizerBase", processor: "ProcessorMixin | None" = None
    ) -> None:
        """`processor`: of a model that sees. Raises `ConfigError` for a chat template that cannot be used;
        one without tools can."""
        self._renderer = Renderer(tokenizer, processor)
        self._writer = CallWriter(tokenizer)
        self.begun = lru_cache(_BEGUN_CACHED)(self._begin)
        """A call of a name up to its arguments. Raises `Refused`."""
        self.stop_token_ids = self._renderer.stop_token_ids
        self.placeholder_ids = self._renderer.placeholder_ids
        self.format = _format_of(tokenizer)
        """In which calls are read; None where the template has no tools."""
        if processor is not None and not self._shows_tools():
            self.format = None  # the processor's template is another one than the tokenizer's

    def prompt_ids(self, conversation: Conversation) -> list[int]:
        """The whole conversation, up to where the policy speaks ([P]). Raises `Refused`."""
        if conversation.tools:
            self._tool_format("tools")
        messages = [self._message(one) for one in conversation.messages]
        try:
            return self._renderer.prompt_ids(messages, tools=conversation.tools)
        except (ConfigError, EnvCrashed) as error:  # the latter for a picture that nobody can decode
            raise RequestRejected(400, str(error), param="messages") from None

    def reply_ids(self, messages: Sequence[Said], *, after: Sequence[int]) -> list[int]:
        """What stands between the completion `after` and the next one. Raises `Refused`."""
        closed = after[-1] in self.stop_token_ids
        try:
            return self._renderer.reply_ids([self._message(one) for one in messages], is_closed=closed)
        except (ConfigError, EnvCrashed) as error:  # the latter for a picture that nobody can decode
            raise RequestRejected(400, str(error), param="messages") from None

    def _begin(self, name: str) -> Begun:
        self._tool_format("tool_choice")
        text = self._writer.beginning(name)
        return Begun(name, text, self._renderer.encode(text))

    def reading(
        self,
        completion: Completion,
        *,
        tools: Sequence[Tool],
        stop: Sequence[str] = (),
        begun: Begun | None = None,
        one_call: bool = False,
    ) -> tuple[Completion, Reading]:
        """A completion with its calls, where there are `tools`; and what of it is kept.

        It ends with the first token by which its text contains one of `stop`, or, with `one_call`, its first
        call, where that is not the only one. `begun` is what stands before it.
        """
        decode = self._renderer.decode
        completion = cut_at_stop(completion, stop, decode=decode)
        text = text_before(decode(completion.token_ids), stop)
        if not tools:
            return completion, Reading(text=text, content=text, action=text)
        parse = turn_parser(self._tool_format("tools"), tools)
        head = begun.text if begun else ""
        turn = parse(head + text)
        if one_call and turn.first_call_end and (len(turn.calls) > 1 or turn.problem is not None):
            end = turn.first_call_end - len(head)
            completion = truncate(completion, self._tokens_of(completion.token_ids, characters=end))
            text = text[:end]
            turn = parse(head + text)
        return completion, _read(turn, text, begun)

    def _tokens_of(self, ids: list[int], *, characters: int) -> int:
        """How many of `ids` there must be for their text to have so many characters."""
        low, high = 1, len(ids)
        while low < high:
            middle = (low + high) // 2
            if len(self._renderer.decode(ids[:middle])) >= characters:
                high = middle
            else:
                low = middle + 1
        return low

    def _shows_tools(self) -> bool:
        ids = self._renderer.prompt_ids([Message("user", "Hello")], tools=[SENTINEL])
        return SENTINEL["function"]["name"] in self._renderer.decode(ids)

    def _tool_format(self, param: str) -> str:
        if self.format is None:
            why = "the policy's chat template has no tools whose calls can be read"
            raise RequestRejected(400, f"{why}; write of them in a message's text", param=param)
        return self.format

    def _message(self, message: Said) -> Message:
        content = message.content
        if message.calls:
            self._tool_format("messages")
            content = self._writer.message(content, message.calls)
        return Message(message.role, content, message.images)


def _format_of(tokenizer: "PreTrainedTokenizerBase") -> str | None:
    for format in NATIVE:
        with suppress(ConfigError):
            check_native(tokenizer, format)
            return format
    return None


def _read(turn: ParsedTurn, text: str, begun: Begun | None) -> Reading:
    calls = tuple(
        WrittenCall(call.name, json.dumps(dict(call.arguments), ensure_ascii=False)) for call in turn.calls
    )
    read = Reading(
        text=text,
        content=turn.thought if calls else text,
        calls=calls,
        thought=turn.thought,
        action=format_action(turn),
        failed=turn.is_malformed,
    )
    if begun is None or (calls and calls[0].name == begun.name):
        return read
    # The call is there, for the gateway wrote it; what the policy made of its arguments is told as it is.
    raw = WrittenCall(begun.name, text.strip())
    return replace(read, content="", calls=(raw,), thought="", action="", failed=True)
