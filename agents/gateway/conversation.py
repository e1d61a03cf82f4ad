"""Conversations in the form in which they are compared: what frameworks change in passing is left out.

A framework sends the whole history with every request. It comes back with fields dropped or added, `null`
for `""`, arguments written anew: none of this makes it another conversation.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from pydantic_core import from_json

from envs.types import Image, Role

Tool = Mapping[str, Any]
"""A tool's JSON schema in OpenAI's wrapper, as chat templates take it."""


@dataclass(frozen=True, slots=True)
class WrittenCall:
    """A call of a tool, as a message has it. Its id is not kept: some frameworks give it another."""

    name: str
    arguments: str
    """JSON as `canonical` writes it."""


@dataclass(frozen=True, slots=True)
class Said:
    """One message. Two are equal where their role, text, calls and pictures are."""

    role: Role
    content: str
    calls: tuple[WrittenCall, ...] = ()
    images: tuple[Image, ...] = ()
    """Shown before the content."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a request shows the policy."""

    messages: Sequence[Said]
    """The last is not the assistant's: it is the policy's turn."""
    tools: Sequence[Tool] = ()

    def digests(self) -> list[bytes]:
        """Of the conversation up to each message, with the tools; equal ones are the same conversation."""
        found: list[bytes] = []
        digest = _hash(b"", list(self.tools))
        for message in self.messages:
            digest = extended(digest, message)
            found.append(digest)
        return found


def extended(digest: bytes, message: Said) -> bytes:
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
