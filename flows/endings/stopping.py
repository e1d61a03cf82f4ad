"""Ctrl-C and SIGTERM: a command ends within seconds, prints how to resume, and marks its records as stopped.

The first signal raises `KeyboardInterrupt` in the main thread, whose `with` blocks then close what they hold.
A watcher thread learns of signals from the interpreter itself, so also while the main thread is in C code.
When the main thread has left its blocks, or after `UNWIND_S`, or on a second signal, the watcher marks the
records of the run as stopped (`on_stop`), prints the line, and ends this process with status 130 or 143; the
guardian then ends everything that it has started. Exit handlers of libraries do not run: those of Prefect and
MLflow retry for minutes.
"""

import os
import select
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn, Self

from envs.redaction import redact
from flows.endings.guardian import announce_end, show_cursor

UNWIND_S = 3.0
"""Time for the main thread to close what it holds after a signal; the guardian ends the rest."""
RECORD_S = 6.0
"""Time for marking the records; the next run marks the others (`tasks/tracking/recorded_runs.py`)."""
SIGNALS = (signal.SIGINT, signal.SIGTERM)
DIED = "the process died unexpectedly"
"""Printed by the guardian, with `resume_hint`, if the process was killed or a library has ended it."""
_OUT = b"\0"
"""Written to the watcher: the main thread has left its blocks, or there is nothing left to watch."""
_STDERR = 2
"""Not `sys.stderr`, which an open display replaces."""

Handler = Callable[[int, FrameType | None], object] | int | signal.Handlers | None
"""Of a signal, as `signal.signal` takes and returns it."""

_current: "Stoppable | None" = None


def on_stop(record: Callable[[], object]) -> None:
    """Let the enclosing `Stoppable`, if any, call `record` in a thread when a signal stops this process."""
    if _current is not None:
        _current.records.append(record)


@contextmanager
def claim_signals() -> Iterator[None]:
    """Return the signals to the enclosing `Stoppable`, if any: Prefect has installed its own handler.

    After a signal, the main thread waits here: Prefect's engine would set another state.
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
    """Context that SIGINT and SIGTERM can stop. For the main thread; contexts do not nest."""

    def __init__(self, line: str | None, *, handled: Sequence[int] = SIGNALS) -> None:
        """`line`: printed after a stop; None prints nothing. `handled`: signals whose handlers we replace;
        that of the other must raise an exception by itself."""
        self.records: list[Callable[[], object]] = []
        self._line = line
        self._handled = handled
        self._number: int | None = None
        self._is_out = False

    def __enter__(self) -> Self:
        global _current
        self._signal_pipe, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        self._before = self.install()
        self._wake_before = signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        self._watcher = threading.Thread(target=self._watch, name="stopping", daemon=True)
        self._watcher.start()
        _current = self
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        global _current
        self.wait_if_stopped()
        os.write(self._wake, _OUT)
        self._watcher.join()
        _current = None
        signal.set_wakeup_fd(self._wake_before)
        _restore(self._before)
        os.close(self._signal_pipe)
        os.close(self._wake)

    def wait_if_stopped(self) -> None:
        """After a signal, wait for the end of the process: the main thread holds nothing."""
        if self._number is not None:
            with suppress(Exception):
                sys.stdout.flush()
            os.write(self._wake, _OUT)
            self._watcher.join()

    def install(self) -> dict[int, Handler]:
        """Install our handlers; returns the previous ones."""
        # Ignored signals stay ignored: a shell ignores SIGINT for background processes.
        ours = [number for number in self._handled if signal.getsignal(number) is not signal.SIG_IGN]
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
        line_start = "\n" if not self._is_out and os.isatty(_STDERR) else ""  # the display is still open
        leave(None if self._line is None else line_start + self._line, status=128 + number)

    def _next_signal(self, timeout: float | None) -> int | None:
        """The number of the next signal; None if the main thread has left, or after `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not select.select([self._signal_pipe], [], [], left)[0]:
                return None
            byte = os.read(self._signal_pipe, 1)
            if byte == _OUT:
                self._is_out = True
                return None
            if byte[0] in SIGNALS:
                return byte[0]

    def _mark_records(self) -> None:
        deadline = time.monotonic() + RECORD_S
        threads = [threading.Thread(target=_quietly, args=(record,), daemon=True) for record in self.records]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))


def _restore(handlers: dict[int, Handler]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)


def _quietly(record: Callable[[], object]) -> None:
    with suppress(Exception):  # the next run marks what is not marked
        record()


def resume_hint(verb: str = "resumes") -> str:
    """The end of a line about a command that may be given again; `verb`: what it does then."""
    return redact(f"the same command {verb}: {shlex.join(['wingspan', *sys.argv[1:]])}")


def leave(line: str | None, *, status: int) -> NoReturn:
    """Print `line` and end this process without exit handlers; the guardian ends the rest."""
    text = show_cursor(_STDERR) + ("" if line is None else f"{line}\n")
    with suppress(OSError):  # the terminal may be closed
        os.write(_STDERR, text.encode(errors="surrogateescape"))  # an argument may not be UTF-8
    announce_end()
    # The guardian acts after this process has ended: Ray's client aborts a process whose cluster dies, which
    # would change the exit status.
    os._exit(status)
