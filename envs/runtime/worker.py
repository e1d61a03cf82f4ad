"""The process side of a hosted environment: it receives requests, acts, and sends answers.

A request is `[method, argument]`, an answer `{"value": …}` or `{"error": <class>, …}` (`Answer`), both in
JSON, so that reading an answer runs no code of the worker's. Images are data URIs. The answer to a reset or a
step has the key of the state that it led to. On a socket each message is one line, and one request is in
progress at a time.
"""

import asyncio
import json
import socket
from collections.abc import Callable
from dataclasses import asdict
from traceback import format_exception
from typing import Any, TypedDict

from envs.errors import ConfigError, WingspanError, describe, text_with_place
from envs.redaction import redact
from envs.types import (
    Environment,
    HasProcess,
    Inspectable,
    Item,
    Observation,
    StepResult,
    read_state_key,
    reset_env,
    step_env,
)

TRACEBACK_CHARS = 10_000
"""The end of a traceback that is sent."""
CHUNK = 1 << 16
"""Bytes to read at a time."""


class Answer(TypedDict, total=False):
    """What came of a request: its `value`, or an exception's class, the text for the user (the message of a
    `WingspanError`, `describe_with_place` of any other), the same without places in a user's code, and the
    traceback."""

    value: object
    error: str
    text: str
    reason: str
    traceback: str


class Worker:
    """One instance, driven by requests."""

    def __init__(self, make: Callable[[], Environment]) -> None:
        """Makes the instance at the first request, whose answer then reports an exception of `make`."""
        self._make = make
        self._env: Environment | None = None

    async def answer(self, request: list[Any]) -> Answer:
        """Carry out one request; an exception of the environment becomes the answer."""
        try:
            return {"value": await self._call(*request)}
        except Exception as error:
            return answer_error(error)

    async def _call(self, method: str, argument: Any) -> object:
        if self._env is None:
            self._env = self._make()
        match method:
            case "reset":
                return _encode(await reset_env(self._env, Item(**argument)), self._env)
            case "step":
                return _encode(await step_env(self._env, argument), self._env)
            case "inspect":
                if not isinstance(self._env, Inspectable):
                    raise ConfigError(
                        f"{type(self._env).__name__} has no facts to inspect, such as {argument!r}"
                    )
                return await self._env.inspect(argument)
            case "close":
                await self._env.close()
            case _:  # prepare
                if isinstance(self._env, HasProcess):
                    await self._env.prepare()
        return None


def answer_error(error: Exception) -> Answer:
    """The answer with an exception that the caller has caught."""
    return {
        "error": type(error).__name__,
        "text": text_with_place(error),
        "reason": error.reason if isinstance(error, WingspanError) else describe(error),
        "traceback": redact("".join(format_exception(error)))[-TRACEBACK_CHARS:],
    }


def _encode(result: Observation | StepResult, env: Environment) -> dict[str, object]:
    images = [image.data_uri for image in result.images]
    return {**asdict(result), "images": images, "state": read_state_key(env)}


async def serve(worker: Worker, connection: socket.socket) -> None:
    """Answer requests on `connection` until its other end closes."""
    connection.setblocking(False)
    while (request := await receive(connection)) is not None:
        await send(connection, await worker.answer(request))


async def send(connection: socket.socket, message: object) -> None:
    """Write one message; raise `OSError` if the other end is closed."""
    line = json.dumps(message).encode() + b"\n"
    await asyncio.get_running_loop().sock_sendall(connection, line)


async def receive(connection: socket.socket) -> Any:
    """Read one message; return None if the other end is closed."""
    loop = asyncio.get_running_loop()
    line = bytearray()
    while not line.endswith(b"\n"):
        try:
            chunk = await loop.sock_recv(connection, CHUNK)
        except ConnectionError:
            return None
        if not chunk:
            return None
        line += chunk
    return json.loads(line)
