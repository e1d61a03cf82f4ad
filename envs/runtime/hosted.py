"""An environment whose instance lives elsewhere: in a process of its own, on this machine or another.

Owns what every host has in common: one call at a time, exceptions with their class and text, an end that
comes even if the instance hangs. Processes are `envs/runtime/processes.py`'s; Ray's actors, which only a
cluster
needs, are in `tasks/cluster/envs.py`.
"""

import asyncio
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Protocol

from envs import errors
from envs.errors import EnvCrashed, WingspanError
from envs.images import read_image
from envs.types import Item, Observation, StepResult

GRACE_S = 5.0
"""What an instance may take to close by itself before its process is killed."""


class Channel(Protocol):
    """The way to one worker (`envs/runtime/worker.py`)."""

    @property
    def pid(self) -> int:
        """Of the worker's process, on its machine."""
        ...

    @property
    def is_alive(self) -> bool:
        """False once it has died; found out at once."""
        ...

    async def call(self, request: list[Any]) -> dict[str, Any]:
        """The worker's answer; raises `EnvCrashed` at once if it is dead or dies meanwhile."""
        ...

    async def close(self) -> None:
        """Kill it, and all that it has started. Idempotent."""
        ...


class Host(Protocol):
    """Where workers for the instances of one environment are started."""

    async def start(self) -> Channel:
        """A new worker."""
        ...

    async def close(self) -> None:
        """Start no more. Idempotent."""
        ...


class HostedEnv:
    """One instance in a worker of its own; the worker starts with the first `reset`."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._channel: Channel | None = None
        self._is_asked = False
        self._item_id = "no item"

    @property
    def pid(self) -> int | None:
        """Of the worker's process, on its machine; None while there is none."""
        return None if self._channel is None else self._channel.pid

    @property
    def is_alive(self) -> bool:
        return self._channel is None or self._channel.is_alive

    async def prepare(self) -> None:
        await self._call("prepare", None)

    async def reset(self, item: Item) -> str | Observation:
        """Start `item`."""
        self._item_id = item.item_id
        values = _with_images(await self._call("reset", asdict(item)))
        return Observation(**values) if values["images"] else str(values["text"])

    async def step(self, action: str) -> StepResult:
        """Apply one action."""
        if self._channel is None:
            raise RuntimeError("step before reset, or after the end")
        return StepResult(**_with_images(await self._call("step", action)))

    async def inspect(self, name: str) -> Any:
        """See `Inspectable`; raises `ConfigError`, too, where the environment is none."""
        return await self._call("inspect", name)

    async def close(self) -> None:
        """End the worker: by its own means if it listens, by force in any case."""
        channel, self._channel = self._channel, None
        if channel is None:
            return
        try:
            if channel.is_alive and not self._is_asked:
                with suppress(EnvCrashed, TimeoutError):
                    async with asyncio.timeout(GRACE_S):
                        await channel.call(["close", None])
        finally:
            self._is_asked = False
            await channel.close()

    async def _call(self, method: str, argument: Any) -> Any:
        if self._channel is None:
            self._channel = await self._host.start()
        if self._is_asked:
            raise EnvCrashed(f"{self._item_id}: {method} while another call is under way, or was given up")
        self._is_asked = True
        try:
            answer = await self._channel.call([method, argument])
        except EnvCrashed as error:
            raise EnvCrashed(f"{self._item_id}: {error} in {method}") from None
        self._is_asked = False
        if "error" in answer:
            raise restore_error(answer, subject=f"{self._item_id}: {method}")
        return answer["value"]


def _with_images(values: dict[str, Any]) -> dict[str, Any]:
    return {**values, "images": tuple(read_image(uri) for uri in values["images"])}


def restore_error(answer: dict[str, Any], *, subject: str) -> WingspanError:
    """The exception of an answer: as it was if it is one of ours, else `EnvCrashed` with class and text."""
    error_class = getattr(errors, answer["error"], None)
    if isinstance(error_class, type) and issubclass(error_class, WingspanError):
        return error_class(answer["text"])
    return EnvCrashed(f"{subject} raised " + " ".join([f"{answer['error']}:", *answer["text"].split()]))
