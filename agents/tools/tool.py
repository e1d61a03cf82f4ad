"""`@tool` makes a function one that an agent may call; `Tool` is the boundary between it and an episode.

Whatever a tool does, its call ends in a `ToolResult` within its time limit. Only two things pass through:
cancellation and `WingspanError`; a failure of the infrastructure must never look like one of the policy.
"""

import copy
import functools
import inspect
import re
import types
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Protocol, TypedDict, TypeVar, Unpack, overload

from agents.clients.rate_limit import ConcurrencyLimiter
from agents.formats.calls import Schema
from agents.tools.functions import check_options, is_async, name_of
from agents.tools.signature import InvalidArguments, read_signature
from agents.tools.threads import run_in_thread
from agents.tools.types import MIN_LENGTH, ToolError, ToolResult, ToolStatus, cut, read_outcome
from envs.errors import ConfigError, WingspanError
from envs.runtime.time_limits import TooSlow, WasCancelled, run_in_time
from envs.types import EnvCheck, Environment

TIMEOUT_S = 60.0
MAX_LENGTH = 2048
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")  # what model servers accept

C = TypeVar("C")


class ToolOptions(TypedDict, total=False):
    """The options of a tool."""

    name: str
    """The name by which an agent calls the tool: 1 to 64 of a-z A-Z 0-9 _ -; by default the function's, or
    the class's in snake case."""
    description: str
    """The description for the agent; by default the docstring without its sections."""
    timeout_s: float | None
    """The time limit of one call in seconds, by default 60; None is the limit of an environment's step. A
    synchronous function that takes longer is abandoned in its thread, because nothing can end it; so is an
    asynchronous one that catches `asyncio.CancelledError` and goes on. A stateful tool that is cancelled
    leaves its environment in whatever state it was."""
    keeps_time: bool
    """The tool ends by itself, as a sandbox does, however long that takes: only the episode's end cancels it,
    and there is no `timeout_s`."""
    max_length: int | None
    """The most characters of an observation, by default 2048 and at least 100; None is no limit."""
    max_concurrency: int | None
    """Concurrent calls in this process, of all episodes and instances; None is no limit. Waiting for a slot
    does not count towards `timeout_s`."""
    finish: bool
    """A call that succeeds ends the episode."""
    stateful: bool
    """The tool works on the episode's environment, and has one parameter for it, annotated as `Environment`
    or named `env`, which the agent does not see."""
    check_env: EnvCheck | None
    """Called before any episode: raises `ConfigError` if the tool cannot work on the environment."""


class Tool:
    """A function for agents, with its limits. Calling the object calls the function itself."""

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
        check_env: EnvCheck | None = None,
    ) -> None:
        self.name = name or name_of(function)
        if not _NAME.fullmatch(self.name):
            raise ConfigError(f"tool {self.name!r}: a name has 1 to 64 of a-z A-Z 0-9 _ -; give it name=")
        if keeps_time and timeout_s not in (None, TIMEOUT_S):
            raise ConfigError(f"tool {self.name!r}: timeout_s {timeout_s} and keeps_time; give only one")
        if timeout_s is not None and not timeout_s > 0:
            raise ConfigError(f"tool {self.name!r}: timeout_s {timeout_s} is not above 0")
        if max_length is not None and max_length < MIN_LENGTH:
            raise ConfigError(f"tool {self.name!r}: max_length {max_length} is less than {MIN_LENGTH}")
        if max_concurrency is not None and max_concurrency < 1:
            raise ConfigError(f"tool {self.name!r}: max_concurrency {max_concurrency} lets no call through")
        if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
            raise ConfigError(f"tool {self.name!r} is a generator; return the whole answer")
        self.is_unbound = (
            inspect.isfunction(function) and next(iter(inspect.signature(function).parameters), "") == "self"
        )
        """Whether it is a method of a class that is being defined: `__get__` binds the instance."""
        self._signature = read_signature(function, tool=self.name, stateful=stateful, method=self.is_unbound)
        self.description = self._signature.description if description is None else description
        self.timeout_s = None if keeps_time else timeout_s
        self.keeps_time = keeps_time or timeout_s is not None
        """Whether a call ends by itself; the caller must end all others."""
        self.max_length = max_length
        self.finish = finish
        self.stateful = stateful
        self.returns_summary = self._signature.returns_summary
        """Whether a call may cut the conversation, by the annotation of what the function returns."""
        self.check_env = check_env
        self.function = function
        self._is_async = is_async(function)
        # Shared by all instances of a class.
        self._limiter = nullcontext() if max_concurrency is None else ConcurrencyLimiter(max_concurrency)

    @property
    def schema(self) -> Schema:
        """The schema for function calling, in OpenAI's form."""
        header = {"name": self.name, "description": self.description}
        return {
            "type": "function",
            "function": {**header, "parameters": copy.deepcopy(self._signature.schema)},
        }

    async def call(self, arguments: Mapping[str, object], *, env: Environment | None = None) -> ToolResult:
        """Run the tool with an agent's arguments. `env`: the episode's, for stateful tools.

        Raises `WingspanError`s of the tool, and `ConfigError` for a stateful tool without an environment.
        """
        result = await self._answer(arguments, env)
        step = result.step
        ends_episode = self.finish or (step is not None and (step.terminated or step.truncated))
        return replace(result, ends_episode=ends_episode and result.status is ToolStatus.OK)

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Call the function itself."""
        return self.function(*args, **kwargs)

    def __get__(self, instance: object | None, owner: type | None = None) -> "Tool":
        """The tool of a method of `instance`."""
        if instance is None or not self.is_unbound:
            return self
        method = copy.copy(self)
        method.function = types.MethodType(self.function, instance)
        method.is_unbound = False
        return method

    async def _answer(self, arguments: object, env: Environment | None) -> ToolResult:
        if self.is_unbound:
            raise ConfigError(f"tool {self.name!r} is a method; give its instance to collect_tools")
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
        async with self._limiter:
            return await self._run(values)

    async def _run(self, values: dict[str, object]) -> ToolResult:
        work = self._work(values)
        try:
            result = await run_in_time(work, timeout_s=self.timeout_s, name=f"tool {self.name!r}")
            return cut(result, max_length=self.max_length)
        except TooSlow:
            return self._observe(
                ToolStatus.TIMED_OUT, f"{self.name} took longer than {self.timeout_s:g} s and was ended"
            )
        except WasCancelled as error:
            return self._observe(ToolStatus.RAISED, f"{self.name} failed: {error}")
        except Exception as error:
            return self._observe_error(error)

    async def _work(self, values: dict[str, object]) -> ToolResult:
        try:
            if self._is_async:
                return read_outcome(await self.function(**values))
            output = await run_in_thread(
                functools.partial(_call_function, self.function, values), name=f"tool {self.name!r}"
            )
            return output if isinstance(output, ToolResult) else read_outcome(await output)
        except SystemExit as error:  # it ends the tool, not this program
            raise ToolError(f"{self.name} failed: it tried to exit with status {error.code}") from None

    def _observe_error(self, error: Exception) -> ToolResult:
        if fault := _infrastructure_fault(error):
            raise fault
        if isinstance(error, ToolError):
            return self._observe(ToolStatus.RAISED, _error_text(error))
        return self._observe(
            ToolStatus.RAISED, f"{self.name} failed: {type(error).__name__}: {_error_text(error)}"
        )

    def _observe(self, status: ToolStatus, text: str) -> ToolResult:
        return replace(cut(read_outcome(text), max_length=self.max_length), status=status)


class Decorator(Protocol):
    """The type of `tool(**options)`."""

    @overload
    def __call__(self, target: type[C], /) -> type[C]: ...  # type: ignore[overload-overlap]  # first wins
    @overload
    def __call__(self, target: Callable[..., object], /) -> Tool: ...


@overload
def tool(target: type[C], /) -> type[C]: ...  # type: ignore[overload-overlap]  # a class is no function here
@overload
def tool(target: Callable[..., object], /) -> Tool: ...
@overload
def tool(**options: Unpack[ToolOptions]) -> Decorator: ...
def tool(target: Callable[..., object] | None = None, /, **options: Unpack[ToolOptions]) -> object:
    """Make a `Tool` of a function, asynchronous or not, of a method in its class, or of a bound method.

    In a class, its `__call__` becomes the tool; the class stays a class, and `collect_tools` finds the tool
    of an instance. The JSON schema is the signature's, with descriptions from the docstring's `Args:` (Google
    style). A tool returns text, a `StepResult`, a mapping (`read_outcome`), or any other value, sent as JSON.

    Raises `ConfigError` for an unknown option, and for a function that no agent can call: a parameter without
    a type, `*args`, a generator.

        @tool(timeout_s=5)
        async def search(query: str, top_k: int = 3) -> str:
            '''Search the library.

            Args:
                query: What to look for.
                top_k: Number of books to return.
            '''
    """
    check_options(options, ToolOptions, decorator="tool")
    return functools.partial(_make, options=options) if target is None else _make(target, options)


def collect_tools(holder: object) -> tuple[Tool, ...]:
    """All tools of an object, in the order in which its classes define them; of a tool, the tool itself.

    Raises `ConfigError` if there are none.
    """
    if isinstance(holder, Tool):
        return (holder,)
    if inspect.isroutine(holder):
        raise ConfigError(f"function {name_of(holder)!r} is no tool; decorate it with @tool")
    if isinstance(holder, type):
        raise ConfigError(f"class {holder.__name__!r} is no tool; give an instance of it")
    names = dict.fromkeys(
        name
        for owner in reversed(type(holder).__mro__)
        for name, value in vars(owner).items()
        if isinstance(value.__func__ if isinstance(value, staticmethod) else value, Tool)
    )
    tools = tuple(member for name in names if isinstance(member := getattr(holder, name), Tool))
    if not tools:
        raise ConfigError(f"{type(holder).__name__} has no tools; decorate its methods with @tool")
    return tools


def _make(target: Callable[..., object], options: ToolOptions) -> object:
    if not isinstance(target, type):
        return Tool(target, **options)
    function = next((vars(owner)["__call__"] for owner in target.__mro__ if "__call__" in vars(owner)), None)
    if function is None:
        raise ConfigError(f"{target.__name__} has no __call__; write one, or decorate its methods with @tool")
    class_options = ToolOptions(name=re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", target.__name__).lower())
    if not function.__doc__ and target.__doc__:
        class_options["description"] = inspect.cleandoc(target.__doc__)
    class_options.update(options)
    setattr(target, "__call__", Tool(function, **class_options))  # noqa: B010  # mypy refuses an assignment
    return target


def _call_function(
    function: Callable[..., object], values: dict[str, object]
) -> ToolResult | Awaitable[object]:
    """Run in a thread, where the value is also read, because it may be large."""
    value = function(**values)
    return value if inspect.isawaitable(value) else read_outcome(value)


def _infrastructure_fault(error: BaseException) -> WingspanError | None:
    """The first `WingspanError` in an exception or group of exceptions."""
    if isinstance(error, BaseExceptionGroup):
        return next((fault for inner in error.exceptions if (fault := _infrastructure_fault(inner))), None)
    return error if isinstance(error, WingspanError) else None


def _error_text(error: Exception) -> str:
    try:
        return str(error)
    except Exception:  # the exception is the tool's own class
        return "(it has no text)"
