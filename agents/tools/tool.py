"""`@tool` makes a function one that an agent may call.

Owns what may be decorated, and how the tools of an object are found. What a call does is `calling.py`'s.
"""

import inspect
import re
from collections.abc import Callable
from typing import Any, Protocol, TypedDict, TypeVar, Unpack, overload

from agents.tools.calling import Tool
from envs.errors import ConfigError

C = TypeVar("C")


class Options(TypedDict, total=False):
    """What `tool` may be given."""

    name: str
    """As an agent calls it: 1 to 64 of a-z A-Z 0-9 _ -; else the function's, or the class's in snake case."""
    description: str
    """For the agent; else the docstring, without its sections."""
    timeout_s: float | None
    """Of one call, in seconds, 60 if not given; None is without limit. A synchronous function that takes
    longer is left behind in its thread, for nothing can end it. A stateful tool that is ended leaves its
    environment wherever it was."""
    keeps_time: bool
    """It ends by itself, however long that takes, as a sandbox does: nothing else ends it but the episode's
    end, and there is no `timeout_s`. Without either, a call has the time of an environment's step."""
    max_length: int | None
    """Of an observation, in characters, 2048 if not given and 100 at least; None is without limit."""
    max_concurrency: int | None
    """Calls at once in this process, of all episodes and instances; None is without limit. Waiting for a
    place is not part of `timeout_s`."""
    finish: bool
    """A call that succeeds ends the episode."""
    stateful: bool
    """It works on the episode's environment, and has one parameter for it, annotated as `Environment` or
    named `env`, which the agent does not see."""


class Decorator(Protocol):
    """What `tool` with keywords is."""

    @overload
    def __call__(self, target: type[C], /) -> type[C]: ...  # type: ignore[overload-overlap]  # first wins
    @overload
    def __call__(self, target: Callable[..., Any], /) -> Tool: ...


@overload
def tool(target: type[C], /) -> type[C]: ...  # type: ignore[overload-overlap]  # a class is no function here
@overload
def tool(target: Callable[..., Any], /) -> Tool: ...
@overload
def tool(**options: Unpack[Options]) -> Decorator: ...
def tool(target: Any = None, /, **options: Unpack[Options]) -> Any:
    """Make a `Tool` of a function, asynchronous or not, of a method in its class, or of a bound method.

    Of a class, its `__call__` is made one; the class stays a class, and an instance has the tool
    (`collect_tools`).
    The JSON schema is the signature's, with descriptions from the docstring's `Args:` (Google style). A tool
    answers text, a `StepResult`, a mapping (see `read_outcome`), or any other value, told as JSON.

    Raises `ConfigError` for what cannot be put to an agent: a parameter without a type, `*args`, a generator.

        @tool(timeout_s=5)
        async def search(query: str, top_k: int = 3) -> str:
            '''Search the library.

            Args:
                query: What to seek.
                top_k: How many books to tell.
            '''
    """
    if target is None:
        return lambda target: _make(target, options)
    return _make(target, options)


def collect_tools(holder: object) -> tuple[Tool, ...]:
    """All tools of an object, in the order in which its classes define them; a tool is its own only one.

    Raises `ConfigError` where there are none.
    """
    if isinstance(holder, Tool):
        return (holder,)
    names: dict[str, None] = {}
    for owner in reversed(type(holder).__mro__):
        for name, value in vars(owner).items():
            if isinstance(value.__func__ if isinstance(value, staticmethod) else value, Tool):
                names[name] = None
    found = tuple(member for name in names if isinstance(member := getattr(holder, name), Tool))
    if not found:
        raise ConfigError(f"{type(holder).__name__} has no tools; decorate its methods with @tool")
    return found


def _make(target: Any, options: Options) -> Any:
    if not isinstance(target, type):
        return Tool(target, **options)
    function = next((vars(owner)["__call__"] for owner in target.__mro__ if "__call__" in vars(owner)), None)
    if function is None:
        raise ConfigError(f"{target.__name__} has no __call__; write one, or decorate its methods with @tool")
    about = Options(name=re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", target.__name__).lower())
    if not function.__doc__ and target.__doc__:
        about["description"] = inspect.cleandoc(target.__doc__)
    about.update(options)
    setattr(target, "__call__", Tool(function, **about))  # noqa: B010  # else mypy takes it for a mistake
    return target
