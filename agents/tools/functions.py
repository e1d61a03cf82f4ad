"""Functions of users, asynchronous or not: called without blocking the event loop, and ended in time.

Tools, rewards and agent programs are such functions; what their failures mean is for each of these to say.
"""

import asyncio
import inspect
import logging
from asyncio.tasks import _unregister_task
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from agents.tools.threads import run_in_thread
from envs.errors import describe

END_S = 1.0
"""Time for a call that was cancelled to clean up, before it is abandoned."""

_log = logging.getLogger(__name__)

T = TypeVar("T")


class TooSlow(Exception):
    """A call exceeded its limit; `TimeoutError` may be the called function's own."""


class WasCancelled(Exception):
    """A call was cancelled, and not by its caller."""


def name_of(function: Callable[..., Any]) -> str:
    """The function's name; of an object, its class's."""
    return str(getattr(function, "__name__", type(function).__name__))


def is_async(function: Callable[..., Any]) -> bool:
    """Whether to call it in the event loop. A decorated one may be asynchronous even if this is false."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


async def call_function(call: Callable[[], Any], *, in_thread: bool, name: str) -> Any:
    """What `call` returns, awaited if it can be.

    `name`: for errors and debuggers. A `SystemExit` ends the call, not this program.
    """
    try:
        value = await run_in_thread(call, name=name) if in_thread else call()
        return await value if inspect.isawaitable(value) else value
    except SystemExit as error:
        raise RuntimeError(f"it raised {describe(error)}") from error


async def run_in_time(work: Coroutine[Any, Any, T], *, timeout_s: float | None, name: str) -> T:
    """What `work` returns or raises.

    It is cancelled with the caller, and after `timeout_s`, which raises `TooSlow`. If it resists, it is
    abandoned: nobody waits for it, the end of the event loop included, and a warning has its `name`.
    """
    task = asyncio.create_task(work, name=name)
    try:
        await asyncio.sleep(0)  # enough for work that never waits; a timer costs more
        if not task.done():
            await asyncio.wait({task}, timeout=timeout_s)
        is_in_time = task.done()
    finally:  # out of time, or cancelled
        await _end(task)
    if not is_in_time:
        raise TooSlow(f"it took longer than {timeout_s:g} s")
    if task.cancelled():  # not by the caller: that would have been raised above
        raise WasCancelled("it was cancelled")
    return task.result()


async def _end(task: asyncio.Task[Any]) -> None:
    if not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=END_S)
    if not task.done():
        _log.warning(
            "%s runs on after it was cancelled, and is abandoned; have it raise asyncio.CancelledError",
            task.get_name(),
        )
        _unregister_task(task)  # `asyncio.run` waits for all registered tasks
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # the warning above has been given
    elif not task.cancelled():
        task.exception()  # otherwise the loop reports it as never retrieved
