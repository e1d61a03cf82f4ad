"""Functions of users, asynchronous or not, called without blocking the event loop.

Tools, rewards and agent programs are such functions; what their failures mean is for each of these to say.
`envs/runtime/time_limits.py` ends them in time.
"""

import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from agents.tools.threads import run_in_thread
from envs.errors import ConfigError, suggest

T = TypeVar("T")


def name_of(function: Callable[..., object]) -> str:
    """The function's name; of an object, its class's."""
    return str(getattr(function, "__name__", type(function).__name__))


def is_async(function: Callable[..., object]) -> bool:
    """Whether to call it in the event loop. A decorated one may be asynchronous even if this is false."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def check_options(options: Iterable[str], known: type, *, decorator: str) -> None:
    """Raise `ConfigError` for an option of `@decorator` that is not a key of the `TypedDict` `known`."""
    names = list(known.__annotations__)
    for name in options:
        if name not in names:
            hint = suggest(name, names)
            raise ConfigError(f"@{decorator} has no option {name!r}; {hint}it has: {', '.join(names)}")


async def call_function(call: Callable[[], T | Awaitable[T]], *, in_thread: bool, name: str) -> T:
    """What `call` returns, awaited if it can be. `name`: for errors and debuggers."""
    value = await run_in_thread(call, name=name) if in_thread else call()
    return await value if inspect.isawaitable(value) else value
