"""Conversations as tokens and completions as messages, by a chat template that may have tools.

Samples are decoded for reading and never encoded again. An assistant's message from elsewhere, or one that
comes back changed, is text like any other.
"""

import json
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from agents.formats import NATIVE, turn_parser
from agents.formats.calls import ParsedTurn
from agents.formats.json_values import format_action
from agents.gateway.calls import CallPrefix, CallWriter
from agents.gateway.conversation import ChatTurn, Tool, WrittenCall, canonical
from agents.prompting.native_tools import SENTINEL, check_native
from agents.prompting.renderer import RenderedReply, Renderer
from agents.samplers.stop_texts import cut_at_stop, text_before, truncate
from agents.types import Completion
from envs.errors import ConfigError, EnvCrashed
from envs.network.server import RequestRejected
from envs.types import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, ProcessorMixin

_CACHED_PREFIXES = 256
_OBSERVATION_ROLES = ("user", "tool")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A completion as a message and as a turn."""

    text: str
    """Up to the start of a stop text."""
    content: str
    """The content without the calls."""
    calls: tuple[WrittenCall, ...] = ()
    """The calls, with their arguments as they are sent."""
    thought: str = ""
    action: str
    """The action as text; empty where it cannot be parsed."""
    is_malformed: bool = False
    """Whether it has calls that cannot be parsed. They are sent as text; the arguments of a call whose prefix
    the gateway wrote are sent as the policy wrote them."""

    @property
    def as_turn(self) -> ChatTurn:
        """The message by which the turn is recognised when it comes back."""
        return ChatTurn(
            "assistant",
            self.content,
            tuple(WrittenCall(call.name, canonical(call.arguments)) for call in self.calls),
        )


class Rendering:
    """The chat template of one tokenizer."""

    def __init__(
        self, tokenizer: "PreTrainedTokenizerBase", processor: "ProcessorMixin | None" = None
    ) -> None:
        """`processor`: of a vision model. Raises `ConfigError` for an unusable chat template; one without
        tools is usable."""
        self._renderer = Renderer(tokenizer, processor)
        self._writer = CallWriter(tokenizer)
        self.call_prefix = lru_cache(_CACHED_PREFIXES)(self._begin)
        """The text of a call up to its arguments. Raises `RequestRejected`."""
        self.stop_token_ids = self._renderer.stop_token_ids
        self.placeholder_ids = self._renderer.placeholder_ids
        self.format = _format_of(tokenizer)
        """Of calls; None where the template does not support tools."""
        if processor is not None and not self._shows_tools():
            self.format = None  # the processor's template is another one than the tokenizer's

    def prompt_ids(self, turns: Sequence[ChatTurn], tools: Sequence[Tool]) -> list[int]:
        """The prompt for the next message ([P]). Raises `RequestRejected`."""
        if tools:
            self._tool_format("tools")
        messages = [self._message(turn) for turn in turns]
        try:
            return self._renderer.prompt_ids(messages, tools=tools)
        except (ConfigError, EnvCrashed) as error:  # the latter for an image that cannot be decoded
            raise RequestRejected(400, str(error), param="messages") from None

    def is_longer(self, turns: Sequence[ChatTurn], num_tokens: int) -> bool:
        """Whether `turns` surely have more than `num_tokens`, as in `Renderer.is_longer`."""
        return self._renderer.is_longer([Message(turn.role, turn.content) for turn in turns], num_tokens)

    def reply(self, messages: Sequence[ChatTurn], *, after: Sequence[int]) -> RenderedReply:
        """The tokens between the completion `after` and the next one; the bodies are those of users and
        tools. Raises `RequestRejected`."""
        is_closed = after[-1] in self.stop_token_ids
        lengths = [len(m.content) if m.role in _OBSERVATION_ROLES else 0 for m in messages]
        try:
            return self._renderer.reply(
                [self._message(message) for message in messages], is_closed=is_closed, observed=lengths
            )
        except (ConfigError, EnvCrashed) as error:  # the latter for an image that cannot be decoded
            raise RequestRejected(400, str(error), param="messages") from None

    def _begin(self, name: str) -> CallPrefix:
        self._tool_format("tool_choice")
        text = self._writer.beginning(name)
        return CallPrefix(name, text, self._renderer.encode(text))

    def read_completion(
        self,
        completion: Completion,
        *,
        tools: Sequence[Tool],
        stop: Sequence[str] = (),
        call_prefix: CallPrefix | None = None,
        one_call: bool = False,
    ) -> tuple[Completion, Reading]:
        """The completion, possibly cut, and its reading.

        It ends with the first token by which its text contains one of `stop`, or, with `one_call`, its first
        call, where that is not the only one. `call_prefix` is the text before it.
        """
        decode = self._renderer.decode
        completion = cut_at_stop(completion, stop, decode=decode)
        text = text_before(decode(completion.token_ids), stop)
        if not tools:
            return completion, Reading(text=text, content=text, action=text)
        parse = turn_parser(self._tool_format("tools"), tools)
        head = call_prefix.text if call_prefix else ""
        turn = parse(head + text)
        if one_call and turn.first_call_end and (len(turn.calls) > 1 or turn.problem is not None):
            text = text[: turn.first_call_end - len(head)]
            completion = truncate(completion, self._tokens_of(completion.token_ids, text))
            turn = parse(head + text)
        return completion, _read(turn, text, call_prefix)

    def _tokens_of(self, ids: Sequence[int], text: str) -> int:
        """The smallest number of `ids` whose text begins with `text`, the start of that of all `ids`."""

        # Lengths would not do: tokenizers with a token for each byte write one U+FFFD for each byte of a run
        # that ends within a character, so that fewer tokens may have more characters.
        def has_text(count: int) -> bool:
            return self._renderer.decode(ids[:count]).startswith(text)

        return 1 + bisect_left(range(1, len(ids)), True, key=has_text)

    def _shows_tools(self) -> bool:
        ids = self._renderer.prompt_ids([Message("user", "Hello")], tools=[SENTINEL])
        return SENTINEL["function"]["name"] in self._renderer.decode(ids)

    def _tool_format(self, param: str) -> str:
        if self.format is None:
            why = "the policy's chat template has no tools whose calls can be read"
            raise RequestRejected(400, f"{why}; write of them in a message's text", param=param)
        return self.format

    def _message(self, message: ChatTurn) -> Message:
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


def _read(turn: ParsedTurn, text: str, call_prefix: CallPrefix | None) -> Reading:
    calls = tuple(
        WrittenCall(call.name, json.dumps(dict(call.arguments), ensure_ascii=False)) for call in turn.calls
    )
    read = Reading(
        text=text,
        content=turn.thought if calls else text,
        calls=calls,
        thought=turn.thought,
        action=format_action(turn),
        is_malformed=turn.is_malformed,
    )
    if call_prefix is None or (calls and calls[0].name == call_prefix.name):
        return read
    # The gateway wrote the call's prefix; the arguments are sent as the policy wrote them.
    raw = WrittenCall(call_prefix.name, text.strip())
    return replace(read, content="", calls=(raw,), thought="", action="", is_malformed=True)
