"""A conversation, kept as messages, with a model behind an OpenAI-compatible endpoint.

Its tokens are unknown, so completions are empty and cannot be trained on. Tools of the opening are sent to
the server, which parses the calls (function calling); without tools, the agent parses the text.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from agents.agent import Opening
from agents.clients.endpoint import ChatReply, ContextFull, EndpointFailed
from agents.formats.calls import ParsedTurn, ToolCall
from agents.formats.json_values import call_of
from agents.formats.scan import split_thinking
from agents.prompting.renderer import images_of
from agents.rollout.conversation import Continuation, ModelTurn, add_summary
from agents.types import MIN_COMPLETION, Completion, EpisodeLimits, FinishReason, SamplingParams
from envs.errors import ConfigError, SamplerFailed
from envs.network.client import TryAgain
from envs.types import Image, Message

T = TypeVar("T")
TOOL_IMAGES = "Pictures from the tools, in the order of their answers:"
_INSTRUCTION = "Call a tool with its arguments as one JSON object, or answer in plain text."


class ChatModel(Protocol):
    """What answers requests: `ChatClient`, or `agents.rollout.replay.ReplayedChat`."""

    async def ask(self, request: Mapping[str, object], *, read: Callable[[ChatReply], T]) -> T:
        """Ask for the next turn, as `ChatClient.ask` does."""


class ChatConversation:
    """A `Conversation` that is kept as messages.

    After each turn the endpoint reports the conversation's length in tokens: the next completion gets the
    rest of `context_length`. If it reports none, only its own limit applies.
    """

    def __init__(
        self,
        episode_id: str,  # an endpoint keeps no cache by episode
        *,
        where: str,
        limits: EpisodeLimits,
        client: ChatModel,
        sampling: SamplingParams,
    ) -> None:
        """`sampling.max_tokens` is replaced in each turn; `top_k`, which not every endpoint accepts, is sent
        if it is not 0. Raises `ConfigError` for `stop_token_ids`, which no endpoint accepts."""
        if sampling.stop_token_ids:
            raise ConfigError(
                f"stop_token_ids={sampling.stop_token_ids}: an endpoint accepts no tokens; leave them out"
            )
        self.prompt_ids: tuple[int, ...] = ()
        self.prompt_images: tuple[Image, ...] = ()
        self._client = client
        self._sampling = sampling
        self._where = where
        self._limits = limits
        self._opening: Sequence[Message] = ()
        self._messages: list[dict[str, object]] = []
        self._tools: list[dict[str, object]] = []
        self._num_tokens = 0  # of the conversation up to the last completion
        self._call_ids: list[str] = []  # of the last completion's calls, while they wait for their replies

    def open(self, opening: Opening) -> bool:  # only the endpoint knows whether it is too long
        self._opening = opening.messages
        self._messages = _chat_messages(opening.messages)
        self.prompt_images = tuple(images_of(opening.messages))
        self._tools = [dict(schema) for schema in opening.tools]
        return True

    async def generate(self) -> ModelTurn | None:
        request = {
            "messages": self._messages,
            "max_tokens": min(self._limits.max_tokens_per_turn, self._room),
            "temperature": self._sampling.temperature,
            "top_p": self._sampling.top_p,
            "top_k": self._sampling.top_k or None,
            "stop": list(self._sampling.stop) or None,
            "tools": self._tools or None,
        }
        try:
            return await self._client.ask(request, read=self._take)
        except ContextFull:
            return None
        except EndpointFailed as error:
            raise SamplerFailed(f"{self._where}: {error}") from error

    async def add_reply(
        self,
        messages: Sequence[Message],
        *,
        turns_left: int,  # no budget is shown
    ) -> Continuation:
        replies = _chat_messages(messages)
        if self._call_ids:
            tool_replies = [reply for reply in replies if reply["role"] == "tool"]
            if len(tool_replies) != len(self._call_ids):
                raise ConfigError(
                    f"{self._where}: the agent replies to {len(self._call_ids)} calls with "
                    f"{len(tool_replies)} messages of role 'tool'; its `reply` must return one for each call"
                )
            for reply, call_id in zip(tool_replies, self._call_ids, strict=True):
                reply["tool_call_id"] = call_id
            self._call_ids = []
        self._messages += replies
        has_room = self._room >= min(MIN_COMPLETION, self._limits.max_tokens_per_turn)
        return Continuation(has_room=has_room, images=tuple(images_of(messages)))

    def restart(self, summary: str, images: Sequence[Image]) -> bool:
        self._messages = _chat_messages(add_summary(self._opening, summary, images))
        self._call_ids = []
        self._num_tokens = 0
        return True

    @property
    def _room(self) -> int:
        return self._limits.context_length - self._num_tokens

    def _take(self, reply: ChatReply) -> ModelTurn:
        """Append the reply to the conversation. Raises `TryAgain` if it is not a chat message."""
        content, calls = reply.message.get("content"), reply.message.get("tool_calls") or []
        if content is not None and not isinstance(content, str):
            raise TryAgain(f"the reply's content is a {type(content).__name__}, not text")
        if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
            raise TryAgain(f"the reply's tool_calls are not a list of objects: {calls!r:.200}")
        text = "\n".join(filter(None, [content, *map(_format_call, calls)]))
        parsed = _parse(content or "", calls) if self._tools else None
        if parsed is not None and parsed.calls:
            self._messages.append(self._call_message(content, calls, parsed.calls))
        else:
            # Malformed calls are sent back as text: servers parse the arguments again, and reject them.
            self._messages.append({"role": "assistant", "content": text})
        if reply.total_tokens is not None:
            self._num_tokens = reply.total_tokens
        # vLLM's name, then the name that others use
        reasoning = reply.message.get("reasoning") or reply.message.get("reasoning_content")
        return ModelTurn(
            text=text,
            thought=reasoning.strip() if isinstance(reasoning, str) else "",
            parsed=parsed,
            completion=Completion(
                token_ids=(),
                logprobs=(),
                finish_reason=FinishReason.LENGTH if reply.finish_reason == "length" else FinishReason.STOP,
                policy_version=reply.policy_version,
            ),
        )

    def _call_message(
        self, content: str | None, calls: Sequence[Mapping[str, object]], parsed_calls: Sequence[ToolCall]
    ) -> dict[str, object]:
        """The message as it is sent back, with every field that was received: some endpoints sign their
        calls."""
        self._call_ids = [
            str(call.get("id") or f"call_{len(self._messages)}_{index}") for index, call in enumerate(calls)
        ]
        tool_calls = [
            {
                **call,
                "id": call_id,
                "type": "function",
                "function": {
                    "name": parsed_call.name,
                    "arguments": json.dumps(parsed_call.arguments, ensure_ascii=False),
                },
            }
            for call, call_id, parsed_call in zip(calls, self._call_ids, parsed_calls, strict=True)
        ]
        return {"role": "assistant", "content": content, "tool_calls": tool_calls}


def _parse(content: str, calls: Sequence[Mapping[str, object]]) -> ParsedTurn:
    """A malformed call makes the turn a problem; a message without calls is the answer."""
    thinking, prose = split_thinking(content)
    if not calls:
        if prose:
            return ParsedTurn(thought=thinking, answer=prose)
        return ParsedTurn(thought=thinking, problem=f"Your turn says nothing. {_INSTRUCTION}")
    thought = "\n".join(filter(None, (thinking, prose)))
    parsed_calls: list[ToolCall] = []
    for call in map(call_of, calls):
        if not isinstance(call, ToolCall):
            why = call or '"name" and "arguments" are not both there'
            return ParsedTurn(thought=thought, problem=f"A call cannot be read: its {why}. {_INSTRUCTION}")
        parsed_calls.append(call)
    return ParsedTurn(thought=thought, calls=tuple(parsed_calls))


def _format_call(call: Mapping[str, object]) -> str:
    """A call with its arguments as the model wrote them, for reading: `add({"number": 1})`."""
    function = call.get("function")
    if not isinstance(function, Mapping):
        return json.dumps(dict(call), ensure_ascii=False)
    return f"{function.get('name')}({function.get('arguments')})"


def _chat_messages(messages: Sequence[Message]) -> list[dict[str, object]]:
    """`messages` in the protocol's form, in which a tool's message has only text: the images of tools follow
    all of `messages`, in one message of the user."""
    chat_messages: list[dict[str, object]] = []
    tool_images: list[Image] = []
    for message in messages:
        content: str | list[dict[str, object]] = message.content
        if message.role == "tool":
            tool_images += message.images
        elif message.images:
            content = [*_image_parts(message.images), {"type": "text", "text": message.content}]
        chat_messages.append({"role": message.role, "content": content})
    if tool_images:
        parts = [{"type": "text", "text": TOOL_IMAGES}, *_image_parts(tool_images)]
        chat_messages.append({"role": "user", "content": parts})
    return chat_messages


def _image_parts(images: Sequence[Image]) -> list[dict[str, object]]:
    return [{"type": "image_url", "image_url": {"url": image.data_uri}} for image in images]
