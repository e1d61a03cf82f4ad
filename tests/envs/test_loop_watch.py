"""Who blocks the event loop is named, once, and nobody else is."""

import asyncio
import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from envs.runtime.loop_watch import watch_loop

NAME = "envs.runtime.loop_watch"


class Warned(logging.Handler):
    """Sets `event` at a warning."""

    def __init__(self) -> None:
        super().__init__()
        self.event = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.event.set()


@pytest.fixture
def warned() -> Iterator[threading.Event]:
    handler = Warned()
    logging.getLogger(NAME).addHandler(handler)
    yield handler.event
    logging.getLogger(NAME).removeHandler(handler)


def join_watch() -> None:
    """What the watching thread has to log is logged."""
    for thread in threading.enumerate():
        if thread.name == "loop watch":
            thread.join(30)
            assert not thread.is_alive()


async def test_a_users_line_that_blocks_the_loop_is_named_once(
    warned: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    def block() -> bool:
        return warned.wait(30)

    with watch_loop(blocked_s=0.05):
        assert block()
        for _ in range(3):
            await asyncio.sleep(0)
    join_watch()
    line = block.__code__.co_firstlineno + 1
    [record] = caplog.records
    assert f"tests/envs/{Path(__file__).name}:{line} has blocked the event loop for 0.05 s" in record.message
    assert "await what takes time, or run it by asyncio.to_thread" in record.message


async def test_a_blocked_loop_without_a_users_code_in_it_names_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The caller of `asyncio.run` is a user, and waits for the loop."""
    loop, is_over = asyncio.get_running_loop(), threading.Event()
    threading.Timer(2.5, is_over.set).start()
    with watch_loop(blocked_s=0.05):
        loop.call_soon(is_over.wait)  # a method of Python's own, right under the loop
        await asyncio.sleep(0.01)
    join_watch()
    assert is_over.is_set()
    assert not caplog.records


async def test_what_awaits_is_never_named(caplog: pytest.LogCaptureFixture) -> None:
    with watch_loop(blocked_s=0.05):
        await asyncio.sleep(1.2)
    join_watch()
    assert not caplog.records
