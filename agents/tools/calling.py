"""One tool, and the call of it.

Owns the boundary between a tool and an episode: whatever a tool does, it ends in a `ToolResult`, within its
time. Two things pass through: being cancelled, and `WingspanError`, for a failure of the infrastructure must
never look like play. Making tools is `tool.py`'s, which of them an episode has `toolbox.py`'s.
"""

import asyncio
import copy
import functools
import inspect
import re
import time
import types
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from agents.clients.rate_limit import ConcurrencyLimiter
from agents.tools.faults import error_text, infrastructure_fault
from agents.tools.outcome import SHORTEST, ToolOutput, cut, read_outcome
from agents.tools.signature import InvalidArguments, read_signature
from agents.tools.threads import run_in_thread
from agents.tools.types import ToolError, ToolResult, ToolStatus
from envs.base import Environment
from envs.errors import ConfigError

TIMEOUT_S = 60.0
MAX_LENGTH = 2048
END_S = 1.0
"""What a call that ran out of time has to clean up, before it is left behind."""
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")  # what the servers of models take


class Tool:
    """A function for agents, with its limits. Called as an object it is the function itself."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        timeout_s: float | None = TIMEOUT_S,
        keeps_time: bool = False,
        max_length: int | None = MAX_LENGTH,
        max_concurrency: int | None = None,
        finish: bool = False,
        stateful: bool = False,
    ) -> None:
        self.name = name or str(getattr(function, "__name__", type(function).__name__))
        if not _NAME.fullmatch(self.name):
            raise ConfigError(f"tool {self.name!r}: a name is 1 to 64 of a-z A-Z 0-9 _ -; give it name=")
        if keeps_time and timeout_s not in (None, TIMEOUT_S):
            raise ConfigError(f"tool {self.name!r}: timeout_s {timeout_s} and keeps_time; give one of them")
        if timeout_s is not None and not timeout_s > 0:
            raise ConfigError(f"tool {self.name!r}: timeout_s {timeout_s} is no time; None is without limit")
        if max_length is not None and max_length < SHORTEST:
            raise ConfigError(f"tool {self.name!r}: max_length {max_length} is less than {SHORTEST}")
        if max_concurrency is not None and max_concurrency < 1:
            raise ConfigError(f"tool {self.name!r}: max_concurrency {max_concurrency} lets no call through")
        if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
            raise ConfigError(f"tool {self.name!r} is a generator; return the whole answer")
        # A method of a class that is being made: the instance comes later, see `__get__`.
        self._unbound = (
            inspect.isfunction(function) and next(iter(inspect.signature(function).parameters), "") == "self"
        )
        self._signature = read_signature(function, tool=self.name, stateful=stateful, method=self._unbound)
        self.description = self._signature.description if description is None else description
        self.timeout_s = None if keeps_time else timeout_s
        self.keeps_time = keeps_time or timeout_s is not None
        """Whether a call ends by itself; the others are for the caller to end."""
        self.max_length = max_length
        self.max_concurrency = max_concurrency
        self.finish = finish
        self.stateful = stateful
        self._function = function
        self._is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            type(function).__call__
        )
        # Shared by all instances of a class.
        self._limiter = None if max_concurrency is None else ConcurrencyLimiter(max_concurrency)

    @property
    def schema(self) -> dict[str, Any]:
        """As function calling takes it (OpenAI's form)."""
        about = {"name": self.name, "description": self.description}
        return {"type": "function", "function": {**about, "parameters": copy.deepcopy(self.parameters)}}

    @property
    def parameters(self) -> Mapping[str, Any]:
        """JSON schema of the arguments, an object."""
        return self._signature.schema

    async def call(self, arguments: Mapping[str, Any], *, env: Environment | None = None) -> ToolResult:
        """Run the tool on what an agent gave it. `env`: the episode's own, for stateful tools.

        Raises `WingspanError`s of the tool, and `ConfigError` for a stateful tool without an environment.
        """
        start = time.perf_counter()
        status, outcome = await self._answer(arguments, env)
        step = outcome.step
        ends = self.finish or (step is not None and (step.terminated or step.truncated))
        return ToolResult(
            observation=outcome.observation,
            status=status,
            ends_episode=status is ToolStatus.OK and ends,
            images=outcome.images,
            metrics=outcome.metrics,
            summary=outcome.summary,
            step=step,
            seconds=time.perf_counter() - start,
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function, as it was written."""
        return self._function(*args, **kwargs)

    def __get__(self, instance: object | None, owner: type | None = None) -> "Tool":
        """A method's tool, of `instance`."""
        if instance is None or not self._unbound:
            return self
        method = copy.copy(self)
        method._function = types.MethodType(self._function, instance)
        method._unbound = False
        return method

    def __repr__(self) -> str:
        return f"<Tool {self.name}>"

    async def _answer(self, arguments: Any, env: Environment | None) -> tuple[ToolStatus, ToolOutput]:
        if self._unbound:
            raise ConfigError(f"tool {self.name!r} is a method; call it of an instance, see collect_tools")
        try:
            values = self._signature.values(arguments)
        except InvalidArguments as error:
            return self._observe(ToolStatus.BAD_ARGUMENTS, f"{self.name} was not run: {error}")
        except Exception as error:  # a parameter's type may have validators of its own
            return self._observe_error(error)
        if self._signature.env is not None:
            if env is not None:
                values[self._signature.env] = env
            elif self._signature.env_required:
                raise ConfigError(f"tool {self.name!r} is stateful and was called without an environment")
        if self._limiter is None:
            return await self._run(values)
        async with self._limiter:
            return await self._run(values)

    async def _run(self, values: dict[str, Any]) -> tuple[ToolStatus, ToolOutput]:
        work = asyncio.create_task(self._work(values), name=f"tool {self.name}")
        try:
            await asyncio.sleep(0)  # enough for a tool that waits for nothing; a timer costs more than that
            if not work.done():
                await asyncio.wait({work}, timeout=self.timeout_s)
            in_time = work.done()
        finally:  # out of time, or cancelled
            await _end(work)
        if not in_time:
            return self._observe(
                ToolStatus.TIMED_OUT, f"{self.name} took longer than {self.timeout_s:g} s and was ended"
            )
        if work.cancelled():  # not by whoever called: that would have been raised above
            return self._observe(ToolStatus.RAISED, f"{self.name} failed: it was cancelled")
        try:
            return ToolStatus.OK, cut(work.result(), max_length=self.max_length)
        except Exception as error:
            return self._observe_error(error)

    async def _work(self, values: dict[str, Any]) -> ToolOutput:
        try:
            if self._is_async:
                return read_outcome(await self._function(**values))
            output = await run_in_thread(
                functools.partial(_call_function, self._function, values), name=f"tool {self.name!r}"
            )
            return output if isinstance(output, ToolOutput) else read_outcome(await output)
        except SystemExit as error:  # a program's way to end; this one goes on
            raise ToolError(f"{self.name} failed: it tried to exit with status {error.code}") from None

    def _observe_error(self, error: Exception) -> tuple[ToolStatus, ToolOutput]:
        if fault := infrastructure_fault(error):
            raise fault
        if isinstance(error, ToolError):
            return self._observe(ToolStatus.RAISED, error_text(error))
        return self._observe(
            ToolStatus.RAISED, f"{self.name} failed: {type(error).__name__}: {error_text(error)}"
        )

    def _observe(self, status: ToolStatus, text: str) -> tuple[ToolStatus, ToolOutput]:
        return status, cut(read_outcome(text), max_length=self.max_length)


def _call_function(function: Callable[..., Any], values: dict[str, Any]) -> ToolOutput | Awaitable[Any]:
    """In a thread; a value is read there, too, for it may be large."""
    value = function(**values)
    return value if inspect.isawaitable(value) else read_outcome(value)


async def _end(work: asyncio.Task[Any]) -> None:
    """Cancel what still runs; what does not let itself be cancelled is left behind."""
    if not work.done():
        work.cancel()
        await asyncio.wait({work}, timeout=END_S)
    if work.done() and not work.cancelled():
        work.exception()  # else the loop would complain that nobody asked
