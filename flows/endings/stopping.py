"""Ctrl-C and SIGTERM: a command ends within seconds, says in one line how to go on, and its records say so,
too.

The first signal raises `KeyboardInterrupt` in the main thread, whose `with` blocks then close what they hold.
A thread watches: it learns of signals from the interpreter itself, so also while the main thread is in C
code. When the main thread has come out of its blocks, or after `UNWIND_S`, or on a second signal, it marks
the records of the run as stopped (`on_stop`), prints the line, and ends this process with status 130 or 143;
the guardian then ends all that it has started. Handlers that libraries have registered for the end do not
run: Prefect's and MLflow's retry for minutes.
"""

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import Any, NoReturn, Self

UNWIND_S = 3.0
"""What the main thread has after a signal, to close what it holds; what it leaves, the guardian ends."""
RECORD_S = 6.0
"""What marking the records may take; what is not marked, the next start marks
(`tasks/tracking/recorded_runs.py`)."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_OUT = b"\0"
"""Written to the watcher: the main thread is out of its blocks, or there is nothing to watch any more."""
_STDERR = 2
"""Not `sys.stderr`, which a display that is open has replaced."""
_SHOW_CURSOR = "\x1b[?25h"

_current: "Stoppable | None" = None


def on_stop(record: Callable[[], object]) -> None:
    """Have a `Stoppable` around call `record`, in a thread, when this process is stopped by a signal."""
    if _current is not None:
        _current.records.append(record)


@contextmanager
def claim_signals() -> Iterator[None]:
    """Have the signals come to the `Stoppable` around, if any: Prefect has put its own handler in between.

    After one, the main thread stays here: Prefect's engine would set a state of its own.
    """
    if _current is None:
        yield
        return
    before = _current.install()
    try:
        yield
    finally:
        _current.wait_if_stopped()
        _restore(before)


class Stoppable:
    """What is done within can be stopped by SIGINT and SIGTERM. For the main thread, once at a time."""

    def __init__(self, line: str | None) -> None:
        """`line`: what is printed when it was stopped; None prints nothing."""
        self.records: list[Callable[[], object]] = []
        self._line = line
        self._number: int | None = None
        self._is_out = False

    def __enter__(self) -> Self:
        global _current
        self._signalled, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        self._before = self.install()
        self._wake_before = signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        self._watcher = threading.Thread(target=self._watch, name="stopping", daemon=True)
        self._watcher.start()
        _current = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        global _current
        self.wait_if_stopped()
        os.write(self._wake, _OUT)
        self._watcher.join()
        _current = None
        signal.set_wakeup_fd(self._wake_before)
        _restore(self._before)
        os.close(self._signalled)
        os.close(self._wake)

    def wait_if_stopped(self) -> None:
        """After a signal, wait for the end: the main thread holds nothing any more."""
        if self._number is not None:
            with suppress(Exception):
                sys.stdout.flush()
            os.write(self._wake, _OUT)
            self._watcher.join()

    def install(self) -> dict[int, Any]:
        """Take the signals; returns who had them."""
        # What is ignored stays so: a shell ignores SIGINT for what it starts in the background.
        ours = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        return {number: signal.signal(number, self._handle) for number in ours}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._number is None:
            self._number = number
            raise KeyboardInterrupt

    def _watch(self) -> None:
        number = self._next_signal(None)
        if number is None:
            return
        self._next_signal(UNWIND_S)
        self._mark_records()
        below = "\n" if not self._is_out and os.isatty(_STDERR) else ""  # a display that nobody has closed
        leave(None if self._line is None else below + self._line, status=128 + number)

    def _next_signal(self, timeout: float | None) -> int | None:
        """The number of the next signal; None when the main thread is out, or after `timeout` seconds."""
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if until is None else max(0.0, until - time.monotonic())
            if not select.select([self._signalled], [], [], left)[0]:
                return None
            byte = os.read(self._signalled, 1)
            if byte == _OUT:
                self._is_out = True
                return None
            if byte[0] in _SIGNALS:
                return byte[0]

    def _mark_records(self) -> None:
        until = time.monotonic() + RECORD_S
        threads = [threading.Thread(target=_quietly, args=(record,), daemon=True) for record in self.records]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))


def _restore(handlers: dict[int, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)


def _quietly(record: Callable[[], object]) -> None:
    with suppress(Exception):  # whatever a server says: the next start marks what is not marked
        record()


def leave(line: str | None, *, status: int) -> NoReturn:
    """Print `line` and end this process without what libraries do at exit; the guardian ends the rest."""
    text = (_SHOW_CURSOR if os.isatty(_STDERR) else "") + ("" if line is None else f"{line}\n")
    with suppress(OSError):  # nobody may read it any more
        os.write(_STDERR, text.encode())
    # The guardian ends the rest when this process is gone, not before: Ray's client aborts a process whose
    # cluster dies, and the status would be that of the abort.
    os._exit(status)
