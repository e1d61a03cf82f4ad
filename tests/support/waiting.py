"""Waiting for conditions without a notification: on another process, a thread, a file, a counter."""

import asyncio
import time
from collections.abc import Awaitable, Callable

POLL_S = 0.01


def wait_until(condition: Callable[[], bool], *, timeout_s: float = 60.0, poll_s: float = POLL_S) -> None:
    """Return as soon as `condition()` is true; fail after `timeout_s`.

    `poll_s`: longer for a condition that takes milliseconds itself, such as a search of all processes.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"still not true after {timeout_s:g} s"
        time.sleep(poll_s)


async def wait_until_async(
    condition: Callable[[], bool | Awaitable[bool]], *, timeout_s: float = 60.0, poll_s: float = POLL_S
) -> None:
    """Like `wait_until`, while the event loop runs; `condition` may be asynchronous."""
    deadline = time.monotonic() + timeout_s
    while not (is_true if isinstance(is_true := condition(), bool) else await is_true):
        assert time.monotonic() < deadline, f"still not true after {timeout_s:g} s"
        await asyncio.sleep(poll_s)
