"""Synchronous functions beside the event loop, with a thread for each call.

There is no pool: functions that hang could take all its threads, and a program waits for its pool when it
ends. A thread takes about 0.1 ms to start.
"""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from envs.errors import WingspanError

MAX_LEFT_BEHIND = 256
"""Threads that still run after their callers were cancelled; nothing can end them."""
_left_behind: set[threading.Thread] = set()

T = TypeVar("T")


async def run_in_thread(function: Callable[[], T], *, name: str) -> T:
    """What `function` returns or raises. If the caller is cancelled, the thread is abandoned and runs on.

    `name`: for errors and debuggers. Raises `WingspanError` if `MAX_LEFT_BEHIND` threads hang.
    """
    _left_behind.difference_update([thread for thread in _left_behind if not thread.is_alive()])
    if len(_left_behind) >= MAX_LEFT_BEHIND:
        raise WingspanError(
            f"{len(_left_behind)} threads hang, and {name} needs another; make the function that hangs "
            "asynchronous, or give it its own time limit"
        )
    context = contextvars.copy_context()
    outcome: Future[tuple[T, None] | tuple[None, BaseException]] = Future()
    outcome.set_running_or_notify_cancel()  # a caller that is cancelled does not cancel the thread

    def work() -> None:
        try:
            outcome.set_result((context.run(function), None))
        except BaseException as error:  # not as the future's exception, which must not be a StopIteration
            outcome.set_result((None, error))

    thread = threading.Thread(target=work, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as refused:
        raise WingspanError(f"no thread for {name} ({refused}); raise ulimit -u") from None
    try:
        ended = await asyncio.wrap_future(outcome)
    except asyncio.CancelledError:
        _left_behind.add(thread)
        raise
    if ended[1] is not None:
        raise ended[1]
    return ended[0]
