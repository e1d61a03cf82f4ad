"""The inside of a hosted environment: requests come in, the environment acts, answers go out.

A request is `[method, argument]`, an answer `{"value": …}` or `{"error": <class>, "text": <message>}`, in
JSON: whoever reads an answer runs nothing of the worker's making; pictures are data URIs. Over a socket each
is one line, and one request is under way at a time.
"""

import asyncio
import json
import socket
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from envs.base import Environment, HasProcess, Inspectable
from envs.errors import ConfigError
from envs.images import data_uri
from envs.types import Image, Item, Observation, StepResult

CHUNK = 1 << 16
"""Bytes read at a time."""


class Worker:
    """One instance, by requests."""

    def __init__(self, make: Callable[[], Environment]) -> None:
        """Makes the instance with the first request, so that what it raises is an answer, too."""
        self._make = make
        self._env: Environment | None = None

    async def answer(self, request: list[Any]) -> dict[str, Any]:
        """Carry out one request; what the environment raises becomes part of the answer."""
        method, argument = request
        try:
            if self._env is None:
                self._env = self._make()
            if method == "reset":
                return {
                    "value": _encode_observation(Observation.wrap(await self._env.reset(Item(**argument))))
                }
            if method == "step":
                return {"value": _encode_result(await self._env.step(argument))}
            if method == "inspect":
                if not isinstance(self._env, Inspectable):
                    raise ConfigError(f"{type(self._env).__name__} tells nothing of {argument!r}")
                return {"value": await self._env.inspect(argument)}
            if method == "close":
                await self._env.close()
            elif isinstance(self._env, HasProcess):
                await self._env.prepare()
            return {"value": None}
        except Exception as error:
            return {"error": type(error).__name__, "text": str(error)}


def _encode_observation(observation: Observation) -> dict[str, Any]:
    return _encode_images(asdict(observation), observation.images)


def _encode_result(result: StepResult) -> dict[str, Any]:
    return _encode_images(asdict(result), result.images)


def _encode_images(values: dict[str, Any], images: Sequence[Image]) -> dict[str, Any]:
    return {**values, "images": [data_uri(image) for image in images]}


async def serve(worker: Worker, connection: socket.socket) -> None:
    """Answer what comes over `connection` until its other end is closed."""
    connection.setblocking(False)
    while (request := await receive(connection)) is not None:
        await send(connection, await worker.answer(request))


async def send(connection: socket.socket, message: Any) -> None:
    """Write one message; raises `OSError` if nobody can read it any more."""
    line = json.dumps(message).encode() + b"\n"
    await asyncio.get_running_loop().sock_sendall(connection, line)


async def receive(connection: socket.socket) -> Any:
    """Read one message; None if the other end has gone."""
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
