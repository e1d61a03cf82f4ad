"""Synchronous functions beside the event loop, a thread for each call.

No pool: threads of a pool can all be taken by functions that hang, so that no other ever runs, and a pool is
waited for when the program ends. A thread takes some 0.1 ms to start.
"""

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable
from typing import TypeVar

from envs.errors import WingspanError

MAX_LEFT_BEHIND = 256
"""Threads whose callers have given them up and that still run; nothing can end them."""
_left_behind: set[threading.Thread] = set()

T = TypeVar("T")


async def run_in_thread(function: Callable[[], T], *, name: str) -> T:
    """What `function` returns or raises. Cancelled, it leaves the thread behind, to end when it may.

    `name` is the caller's, for errors and debuggers. Raises `WingspanError` if more than
    `MAX_LEFT_BEHIND` hang.
    """
    _left_behind.difference_update([thread for thread in _left_behind if not thread.is_alive()])
    if len(_left_behind) >= MAX_LEFT_BEHIND:
        raise WingspanError(
            f"{len(_left_behind)} threads hang, and {name} asks for one more; make the function that hangs "
            "asynchronous, or give it a time limit of its own"
        )
    loop = asyncio.get_running_loop()
    # Not the future's own exception, which may not be a StopIteration.
    answer: asyncio.Future[tuple[T, None] | tuple[None, BaseException]] = loop.create_future()
    context = contextvars.copy_context()

    def tell(outcome: tuple[T, None] | tuple[None, BaseException]) -> None:
        if not answer.done():
            answer.set_result(outcome)

    def work() -> None:
        outcome: tuple[T, None] | tuple[None, BaseException]
        try:
            outcome = context.run(function), None
        except BaseException as error:  # the caller's to judge
            outcome = None, error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(tell, outcome)

    thread = threading.Thread(target=work, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as refused:
        raise WingspanError(f"no thread for {name} ({refused}); raise ulimit -u") from None
    try:
        value, error = await answer
    except asyncio.CancelledError:
        _left_behind.add(thread)
        raise
    if error is not None:
        raise error
    return value  # type: ignore[return-value]  # one of the two is None
