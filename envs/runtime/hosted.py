"""An environment whose instance lives in another process, on this machine or another.

Implements what all hosts share: one call at a time, exceptions with their class and text, and an end even if
the instance hangs. `envs/runtime/processes.py` has local processes, `tasks/cluster/envs.py` Ray actors.
"""

import asyncio
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Protocol

from envs import errors
from envs.errors import EnvCrashed, WingspanError
from envs.runtime.worker import Answer
from envs.types import Image, Item, Observation, StepResult

GRACE_S = 5.0
"""Seconds an instance may take to close before its process is killed."""


class Channel(Protocol):
    """The connection to one worker (`envs/runtime/worker.py`)."""

    @property
    def pid(self) -> int:
        """The worker's process id, on its machine."""

    @property
    def is_alive(self) -> bool:
        """False as soon as the worker has died."""

    async def call(self, request: list[object]) -> Answer:
        """Return the worker's answer; raise `EnvCrashed` at once if it is dead or dies."""

    async def close(self) -> int | None:
        """Kill the worker and its child processes; return its exit status, if known. Idempotent."""


class Host(Protocol):
    """Starts workers for the instances of one environment."""

    async def start(self) -> Channel:
        """Start a worker."""

    async def close(self) -> None:
        """Stop starting workers. Idempotent."""


class HostedEnv:
    """One instance in its own worker, which starts with the first `reset` or `prepare`."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._channel: Channel | None = None
        self._is_busy = False
        self._item_id = "no item"
        self._state: str | None = None

    @property
    def pid(self) -> int | None:
        """The worker's process id, on its machine; None while there is no worker."""
        return None if self._channel is None else self._channel.pid

    @property
    def is_alive(self) -> bool:
        return self._channel is None or self._channel.is_alive

    async def prepare(self) -> None:
        await self._call("prepare", None)

    async def reset(self, item: Item) -> str | Observation:
        self._item_id = item.item_id
        values = self._decode(await self._call("reset", asdict(item)))
        return Observation(**values) if values["images"] else str(values["text"])

    async def step(self, action: str) -> StepResult:
        if self._channel is None:
            raise RuntimeError("step before reset, or after the end")
        return StepResult(**self._decode(await self._call("step", action)))

    def state_key(self) -> str | None:
        """The key that came with the last answer."""
        return self._state

    async def inspect(self, name: str) -> object:
        """Return a fact of the episode; raises `ConfigError` too if the environment is not `Inspectable`."""
        return await self._call("inspect", name)

    async def close(self) -> None:
        """Let an idle worker close its instance, then kill the worker."""
        channel, self._channel, self._state = self._channel, None, None
        if channel is None:
            return
        try:
            if channel.is_alive and not self._is_busy:
                with suppress(EnvCrashed, TimeoutError):
                    async with asyncio.timeout(GRACE_S):
                        await channel.call(["close", None])
        finally:
            self._is_busy = False
            await channel.close()

    async def _call(self, method: str, argument: object) -> Any:
        if self._channel is None:
            self._channel = await self._host.start()
        if self._is_busy:
            raise EnvCrashed(f"{self._item_id}: {method} while another call is running or was cancelled")
        self._is_busy = True
        try:
            answer = await self._channel.call([method, argument])
        except EnvCrashed as error:
            raise EnvCrashed(f"{self._item_id}: {error} in {method}") from None
        self._is_busy = False
        if "error" in answer:
            raise restore_error(answer, subject=f"{self._item_id}: {method}")
        return answer["value"]

    def _decode(self, values: dict[str, Any]) -> dict[str, Any]:
        self._state = values.pop("state")
        return {**values, "images": tuple(Image.read(uri) for uri in values["images"])}


def restore_error(answer: Answer, *, subject: str) -> WingspanError:
    """Return the exception of an answer: a Wingspan error as it was, any other as `EnvCrashed`.

    Its note is the traceback in the other process.
    """
    error_class = getattr(errors, answer["error"], None)
    if isinstance(error_class, type) and issubclass(error_class, WingspanError):
        error: WingspanError = error_class(answer["text"], reason=answer["reason"])
    else:
        error = EnvCrashed(
            f"{subject} raised {answer['text']}", reason=f"{subject} raised {answer['reason']}"
        )
    error.add_note(f"in its process:\n{answer['traceback']}")
    return error
