"""A model behind an OpenAI-compatible endpoint, as a `Conversation`: the conversation is kept as messages.

No tokens are known, so completions are empty and nothing of it can be trained on. Where the opening has
tools, the server is given them and reads the calls (function calling); else the agent reads the text. How
the endpoint is reached is `agents/clients/endpoint.py`'s.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from agents.agent import Opening
from agents.clients.endpoint import ChatClient, ContextFull, EndpointFailed, Reply
from agents.formats.calls import ParsedTurn, ToolCall
from agents.formats.json_values import call_of
from agents.formats.scan import split_thinking
from agents.limits import MIN_COMPLETION, EpisodeLimits
from agents.prompting.renderer import images_of
from agents.rollout.context import summarized_opening
from agents.rollout.conversation import Continuation, ModelTurn
from agents.types import Completion, FinishReason, SamplingParams, Turn
from envs.errors import ConfigError, SamplerFailed
from envs.images import data_uri
from envs.network.client import TryAgain
from envs.types import Image, Message

OF_TOOLS = "Pictures from the tools, in the order of their answers:"
_EXPECTED = "Call a tool with its arguments as one JSON object, or answer in plain text."


class ChatConversation:
    """A `Conversation` that is kept as messages, with the model of an endpoint.

    The endpoint reports after each turn how many tokens the conversation has: the next completion gets what
    is left of `context_length`. Where it reports nothing, its own limit is the only one.
    """

    prompt_ids: list[int]
    prompt_images: tuple[Image, ...]

    def __init__(
        self,
        episode_id: str,  # an endpoint keeps no cache by episode
        *,
        where: str,
        limits: EpisodeLimits,
        client: ChatClient,
        sampling: SamplingParams,
    ) -> None:
        """`sampling`: its `max_tokens` is set for each turn; `top_k`, which not every endpoint takes, is sent
        where it is not 0. Raises `ConfigError` for `stop_token_ids`, which no endpoint takes."""
        if sampling.stop_token_ids:
            raise ConfigError(
                f"stop_token_ids={sampling.stop_token_ids}: an endpoint takes no tokens; leave them out"
            )
        self.prompt_ids = []
        self.prompt_images = ()
        self._client = client
        self._sampling = sampling
        self._where = where
        self._limits = limits
        self._opening: Sequence[Message] = ()
        self._messages: list[dict[str, Any]] = []
        self._tools: list[dict[str, Any]] = []
        self._used = 0  # tokens of the conversation up to the last completion
        self._call_ids: list[str] = []  # of the last completion's calls, while they wait for their replies

    def open(self, opening: Opening) -> bool:
        """See `Conversation`; how long the opening is only the endpoint can tell."""
        self._opening = opening.messages
        self._messages = _said(opening.messages)
        self.prompt_images = tuple(images_of(opening.messages))
        self._tools = [dict(schema) for schema in opening.tools]
        return True

    async def generate(self) -> ModelTurn | None:
        """See `Conversation`; None where the endpoint says that the conversation is too long for it."""
        asked = {
            "messages": self._messages,
            "max_tokens": min(self._limits.max_tokens_per_turn, self._room),
            "temperature": self._sampling.temperature,
            "top_p": self._sampling.top_p,
            "top_k": self._sampling.top_k or None,
            "tools": self._tools or None,
        }
        try:
            return await self._client.ask(asked, read=self._take)
        except ContextFull:
            return None
        except EndpointFailed as error:
            raise SamplerFailed(f"{self._where}: {error}") from error

    async def add_reply(
        self, turns: Sequence[Turn], messages: Sequence[Message], *, turns_left: int
    ) -> Continuation:
        """See `Conversation`."""
        replies = _said(messages)
        turns[-1].images[:] = images_of(messages)
        if self._call_ids:
            told = [reply for reply in replies if reply["role"] == "tool"]
            if len(told) != len(self._call_ids):
                raise ConfigError(
                    f"{self._where}: the agent answers {len(self._call_ids)} calls with {len(told)} messages "
                    "of role 'tool'; have its `reply` give one for each call"
                )
            for reply, call_id in zip(told, self._call_ids, strict=True):
                reply["tool_call_id"] = call_id
            self._call_ids = []
        self._messages += replies
        return Continuation(goes_on=self._room >= min(MIN_COMPLETION, self._limits.max_tokens_per_turn))

    def restart(self, summary: str, images: Sequence[Image]) -> bool:
        """See `Conversation`; how long it is only the endpoint can tell."""
        self._messages = _said(summarized_opening(self._opening, summary, images))
        self._call_ids = []
        self._used = 0
        return True

    @property
    def _room(self) -> int:
        return self._limits.context_length - self._used

    def _take(self, reply: Reply) -> ModelTurn:
        """Put the reply behind the conversation. Raises `TryAgain` for one that is no chat message."""
        content, calls = reply.message.get("content"), reply.message.get("tool_calls") or []
        if content is not None and not isinstance(content, str):
            raise TryAgain(f"the reply's content is a {type(content).__name__}, not text")
        if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
            raise TryAgain(f"the reply's tool_calls are no list of objects: {calls!r:.200}")
        text = "\n".join(filter(None, [content, *map(_written, calls)]))
        parsed = _parsed(content or "", calls) if self._tools else None
        if parsed is not None and parsed.calls:
            self._messages.append(self._called(content, calls, parsed.calls))
        else:
            # Calls that cannot be read go back as text: servers read the arguments again, and refuse them.
            self._messages.append({"role": "assistant", "content": text})
        if reply.total_tokens is not None:
            self._used = reply.total_tokens
        # vLLM's name, then that of others
        reasoning = reply.message.get("reasoning") or reply.message.get("reasoning_content")
        cut = reply.finish_reason == "length"
        return ModelTurn(
            text=text,
            thought=reasoning.strip() if isinstance(reasoning, str) else "",
            parsed=parsed,
            completion=Completion(
                token_ids=[],
                logprobs=[],
                finish_reason=FinishReason.LENGTH if cut else FinishReason.STOP,
                policy_version=reply.policy_version,
            ),
        )

    def _called(
        self, content: str | None, calls: Sequence[Mapping[str, Any]], read: Sequence[ToolCall]
    ) -> dict[str, Any]:
        """The message as it goes back: with all that came, as some endpoints sign their calls."""
        self._call_ids = [
            str(call.get("id") or f"call_{len(self._messages)}_{place}") for place, call in enumerate(calls)
        ]
        sent = [
            {
                **call,
                "id": call_id,
                "type": "function",
                "function": {"name": one.name, "arguments": json.dumps(one.arguments, ensure_ascii=False)},
            }
            for call, call_id, one in zip(calls, self._call_ids, read, strict=True)
        ]
        return {"role": "assistant", "content": content, "tool_calls": sent}


def _parsed(content: str, calls: Sequence[Mapping[str, Any]]) -> ParsedTurn:
    """One call that cannot be read spoils the turn; a message without calls is the answer."""
    thinking, prose = split_thinking(content)
    if not calls:
        if prose:
            return ParsedTurn(thought=thinking, answer=prose)
        return ParsedTurn(thought=thinking, problem=f"Your turn says nothing. {_EXPECTED}")
    thought = "\n".join(filter(None, (thinking, prose)))
    read = [call_of(call) for call in calls]
    for call in read:
        if not isinstance(call, ToolCall):
            why = call or '"name" and "arguments" are not both there'
            return ParsedTurn(thought=thought, problem=f"A call cannot be read: its {why}. {_EXPECTED}")
    return ParsedTurn(thought=thought, calls=tuple(call for call in read if isinstance(call, ToolCall)))


def _written(call: Mapping[str, Any]) -> str:
    """A call for reading, its arguments as the model wrote them: `add({"number": 1})`."""
    function = call.get("function")
    if not isinstance(function, Mapping):
        return json.dumps(dict(call), ensure_ascii=False)
    return f"{function.get('name')}({function.get('arguments')})"


def _said(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """As the protocol has them. A tool's message can only be text in it: its pictures follow behind all of
    `messages`, in one of the user's."""
    said: list[dict[str, Any]] = []
    of_tools: list[Image] = []
    for message in messages:
        if message.images and message.role != "tool":
            content: str | list[dict[str, Any]] = [*map(_shown, message.images), _text(message.content)]
        else:
            content = message.content
            of_tools += message.images
        said.append({"role": message.role, "content": content})
    if of_tools:
        said.append({"role": "user", "content": [_text(OF_TOOLS), *map(_shown, of_tools)]})
    return said


def _shown(image: Image) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data_uri(image)}}


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}
