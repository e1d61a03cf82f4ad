"""verl's server of one vLLM engine, as far as a client sees it: what Ray starts as an actor.

In a module that imports nothing large: the actor's process imports all that its module does.
"""

import asyncio


class EngineDeadError(Exception):
    """As vLLM names it."""


class EngineGenerateError(Exception):
    """As vLLM names what may work at the next try."""


class EngineServer:
    """Never answers, unless it was told how to fail."""

    def __init__(self) -> None:
        self._failure = ""
        self._running = 0
        self._num_aborted = 0
        self._calls: list[object] = []

    async def start(self, failure: str) -> None:
        """Fail so from now on, and count from zero; `failure` is empty for an engine that works."""
        self._failure, self._running, self._num_aborted = failure, 0, 0

    async def generate(self, *, request_id: str, **_: object) -> None:
        """verl's call."""
        if self._failure == "dead":
            raise EngineDeadError
        if self._failure == "dead elsewhere":
            from engine_there import EngineDeadError as Theirs  # type: ignore[import-not-found]

            raise Theirs
        if self._failure == "dead beneath":
            try:
                raise EngineDeadError
            except EngineDeadError as error:
                raise EngineGenerateError from error
        if self._failure:
            raise EngineGenerateError(self._failure)
        self._running += 1
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:  # where vLLM aborts the request
            self._num_aborted += 1
            raise
        finally:
            self._running -= 1

    async def collective_rpc(self, method: str, *, kwargs: dict[str, object]) -> None:
        """verl's call, which reaches vLLM's workers."""
        await asyncio.sleep(0.01)
        self._calls.append((method, kwargs))

    async def clear_kv_cache(self) -> None:
        """verl's call."""
        self._calls.append("clear_kv_cache")

    async def calls(self) -> list[object]:
        """The calls of the last two methods, in order."""
        return self._calls

    async def state(self) -> tuple[int, int]:
        """(requests that run, requests that were aborted)."""
        return self._running, self._num_aborted
