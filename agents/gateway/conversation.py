"""Conversations in the form in which they are compared, without the details that frameworks change.

A framework sends the whole history with every request. Fields may be dropped or added, `null` may replace
`""`, arguments may be reformatted: it is still the same conversation.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate
from typing import Any

from pydantic_core import from_json

from envs.types import Image, Role

Tool = Mapping[str, Any]
"""A tool's JSON schema in OpenAI's wrapper, as chat templates take it."""


@dataclass(frozen=True, slots=True)
class WrittenCall:
    """A tool call in a message, without its id, which some frameworks replace."""

    name: str
    arguments: str
    """JSON as `canonical` writes it."""


@dataclass(frozen=True, slots=True)
class ChatTurn:
    """One message; equal to another if role, text, calls and images are."""

    role: Role
    content: str
    calls: tuple[WrittenCall, ...] = ()
    images: tuple[Image, ...] = ()
    """Shown before the content."""


def digest_prefixes(messages: Sequence[ChatTurn], tools: Sequence[Tool]) -> list[bytes]:
    """Digests of the conversation up to each message, tools included; equal ones are equal conversations."""
    digests = accumulate(messages, extend_digest, initial=_hash(b"", list(tools)))
    return list(digests)[1:]


def extend_digest(digest: bytes, message: ChatTurn) -> bytes:
    """The digest of a conversation that goes on with `message`."""
    calls = [(call.name, call.arguments) for call in message.calls]
    images = [blake2b(image.data, digest_size=16).hexdigest() for image in message.images]
    return _hash(digest, [message.role, message.content, calls, images])


def canonical(arguments: str) -> str:
    """JSON with sorted keys and no choices left; text that is no JSON stays as it is."""
    try:
        value = from_json(arguments, allow_inf_nan=False)
    except ValueError:
        return arguments
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def _hash(before: bytes, value: object) -> bytes:
    return blake2b(before + json.dumps(value, sort_keys=True).encode(), digest_size=16).digest()
