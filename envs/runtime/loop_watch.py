"""A warning when a user's code blocks the event loop, on which every episode and every time limit depends."""

import asyncio
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from sys import _current_frames

from envs.errors import find_running_place

BLOCKED_S = 10.0
_PERIOD_S = 1.0
"""The time between two looks at the loop."""

_log = logging.getLogger(__name__)


@contextmanager
def watch_loop(*, blocked_s: float = BLOCKED_S) -> Iterator[None]:
    """While inside, a thread warns when a user's code holds the running event loop for more than `blocked_s`
    seconds, once each time, with the line that does. Code of Python, of packages and of this project is not
    named: a busy machine may keep it waiting, too."""
    loop, thread_id = asyncio.get_running_loop(), threading.get_ident()
    has_left = threading.Event()

    def watch() -> None:
        while not has_left.wait(_PERIOD_S):
            turn = threading.Event()
            try:
                loop.call_soon_threadsafe(turn.set)
            except RuntimeError:  # the loop is closed
                return
            if turn.wait(blocked_s):
                continue
            frame = _current_frames().get(thread_id)
            place = frame and find_running_place(frame)
            if place:
                _log.warning(
                    "%s has blocked the event loop for %g s; until it returns, no episode goes on and no "
                    "time limit holds: await what takes time, or run it by asyncio.to_thread",
                    place,
                    blocked_s,
                )
            while not turn.wait(_PERIOD_S) and not has_left.is_set():
                pass

    thread = threading.Thread(target=watch, name="loop watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        has_left.set()
