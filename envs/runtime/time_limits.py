"""Calls of foreign code, which may resist cancellation, ended in time."""

import asyncio
import logging
from asyncio.tasks import _unregister_task
from collections.abc import Coroutine
from typing import Any, TypeVar

from envs.errors import describe

END_S = 1.0
"""Time for a call that was cancelled to clean up, before it is abandoned."""

_log = logging.getLogger(__name__)

T = TypeVar("T")


class TooSlow(Exception):
    """A call exceeded its limit; `TimeoutError` may be the called function's own."""


class WasCancelled(Exception):
    """A call was cancelled, and not by its caller."""


async def run_in_time(work: Coroutine[Any, Any, T], *, timeout_s: float | None, name: str) -> T:
    """What `work` returns or raises.

    It is cancelled with the caller, and after `timeout_s`, which raises `TooSlow`. If it resists, it is
    abandoned: nobody waits for it, the end of the event loop included, and a warning has its `name`. A
    `SystemExit` ends the call, not this program.
    """
    task = asyncio.create_task(_contain_exit(work), name=name)
    try:
        await asyncio.sleep(0)  # enough for work that never waits; a timer costs more
        if not task.done():
            await asyncio.wait({task}, timeout=timeout_s)
        is_in_time = task.done()
    finally:  # out of time, or cancelled
        await _end(task)
        if task.done():
            work.close()  # the event loop may have ended before it began
    if not is_in_time:
        raise TooSlow(f"it took longer than {timeout_s:g} s")
    if task.cancelled():  # not by the caller: that would have been raised above
        raise WasCancelled("it was cancelled")
    return task.result()


async def _contain_exit(work: Coroutine[Any, Any, T]) -> T:
    try:
        return await work
    except SystemExit as error:
        raise RuntimeError(describe(error)) from error


async def _end(task: asyncio.Task[object]) -> None:
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
