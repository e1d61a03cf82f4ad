"""Ends the processes that a command has started, and removes their files, however the command ends.

`guard` gives the command a temporary folder, which becomes `TMPDIR` and whose path is also a mark: every
process started later inherits it in `WINGSPAN_RUN`, Ray's daemons and their workers included. It also starts
a guardian, a small process in its own session, which waits on a pipe whose other end only this process holds.
When the pipe closes, this process has ended or is about to: by return, by a signal or by `kill -9`. The
guardian then ends every process with the mark, by SIGTERM and after `GRACE_S` by SIGKILL, removes what they
left in shared memory, and removes the folder. If this process had not said that it would end, the guardian
prints a line in its place: Ray's client ends a process whose cluster dies without one, as `kill -9` does.

Processes on other nodes of a Ray cluster carry no mark: Ray ends them when their driver is gone.

This file is also the guardian's program. It is run by its path and imports only the standard library, so that
it starts in milliseconds and uses little memory.
"""

import atexit
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

MARK = "WINGSPAN_RUN"
"""The environment variable that marks the processes of a command; its value is the command's folder."""
GRACE_S = 1.5
"""Time between SIGTERM and SIGKILL."""
GIVE_UP_S = 8.0
"""How long the guardian goes on killing, and how long the command waits for it."""
SHARED_MEMORY = Path("/dev/shm")
SHARED_NAMES = ("psm_", "torch_", "plasma", "sem.", "nccl-")
"""Prefixes of the files of Python, torch, Ray and NCCL in shared memory."""

_guardian: tuple[subprocess.Popen[bytes], int] | None = None
"""The guardian, and our end of its pipe."""


def guard(*, prefix: str = "wingspan-", if_killed: str = "") -> None:
    """Guard this process from now on; a second call does nothing. Call it before starting any process.

    `prefix`: of the folder's name. `if_killed`: printed to standard error if this process ends in another way
    than by `end_guarded`, which runs at exit, or after `announce_end`.
    """
    global _guardian
    if _guardian is not None:
        return
    before = tempfile.gettempdir()
    folder = tempfile.mkdtemp(prefix=prefix)
    os.chmod(folder, 0o711)  # sandboxes and browsers run as another user and enter folders in it
    reading, writing = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, folder, if_killed],
        stdin=reading,
        stdout=subprocess.DEVNULL,
        stderr=None if if_killed else subprocess.DEVNULL,
        # without the mark of a command that has started this one, whose guardian would end ours
        env={name: value for name, value in os.environ.items() if name != MARK},
        cwd="/",
        start_new_session=True,
    )
    os.close(reading)
    _guardian = process, writing
    os.register_at_fork(after_in_child=_let_go)  # a fork without exec must not hold the pipe open
    atexit.register(end_guarded)  # registered first, so it runs after Ray's and Prefect's
    os.environ[MARK] = os.environ["TMPDIR"] = folder
    # Ray's processes set their titles; these would overwrite the environment, and so the mark.
    os.environ["SPT_NOENV"] = "1"
    tempfile.tempdir = None  # drop the cached TMPDIR
    # torch compiles into the temporary folder what later runs can use as well.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", os.path.join(before, f"torchinductor_{os.getuid()}"))


def announce_end() -> None:
    """Tell the guardian, if there is one, that this process is about to end on purpose."""
    if _guardian is not None:
        with suppress(OSError):  # it was killed
            os.write(_guardian[1], b"\0")


def end_guarded() -> None:
    """Let the guardian end everything now, and wait for it; does nothing if this process is not guarded."""
    global _guardian
    announce_end()
    if _guardian is not None:
        (process, writing), _guardian = _guardian, None
        os.close(writing)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GIVE_UP_S)


def show_cursor(descriptor: int) -> str:
    """What the terminal of `descriptor` is sent after a display that may have hidden its cursor; empty for
    one on which nothing is drawn, and without a terminal."""
    is_drawn_on = os.isatty(descriptor) and os.environ.get("TERM") not in ("dumb", "unknown")
    return "\x1b[?25h" if is_drawn_on else ""


def marked_processes(mark: str) -> Iterator[int]:
    """Ids of the processes that carry `mark`."""
    entry = f"{MARK}={mark}".encode()
    for name in os.listdir("/proc"):
        if name.isdecimal() and int(name) != os.getpid():
            with suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:  # gone, or another user's
                if entry in file.read().split(b"\0"):
                    yield int(name)


def _let_go() -> None:
    global _guardian
    if _guardian is not None:
        os.close(_guardian[1])
        _guardian = None


def _shared_files(pid: int) -> set[str]:
    """Files of libraries in shared memory that process `pid` maps."""
    files = set()
    with suppress(OSError), open(f"/proc/{pid}/maps", errors="replace") as maps:
        for line in maps:
            path = line.rstrip("\n").split(maxsplit=5)[-1]
            if os.path.dirname(path) == str(SHARED_MEMORY) and os.path.basename(path).startswith(
                SHARED_NAMES
            ):
                files.add(path)
    return files


def _end_marked(mark: str) -> set[str]:
    """End the processes that carry `mark`; returns the files in shared memory that they mapped."""
    start, signalled_pids, files, empty_scans = time.monotonic(), set[int](), set[str](), 0
    # Two empty scans: a process may start while another is examined.
    while empty_scans < 2 and time.monotonic() - start < GIVE_UP_S:
        pids = set(marked_processes(mark))
        empty_scans = 0 if pids else empty_scans + 1
        for pid in pids:
            files |= _shared_files(pid)
        is_overdue = time.monotonic() - start > GRACE_S
        for pid in pids if is_overdue else pids - signalled_pids:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL if is_overdue else signal.SIGTERM)
        signalled_pids |= pids
        time.sleep(0.05)
    return files


def _main(folder: str, if_killed: str) -> None:
    """Wait until standard input is closed, then end the processes marked with `folder`, and remove it.

    Prints `if_killed` unless a byte was read before.
    """
    import shutil

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    began = os.stat(folder).st_mtime
    is_announced = False
    while os.read(0, 1):
        is_announced = True
    if if_killed and not is_announced:
        line = f"{show_cursor(2)}{if_killed}\n"
        with suppress(OSError):  # the terminal may be closed
            os.write(2, line.encode(errors="surrogateescape"))  # an argument may not be UTF-8
    for file in _end_marked(folder):
        with suppress(OSError):  # an older file is not ours
            if os.stat(file).st_mtime >= began:
                os.unlink(file)
    end = time.monotonic() + GIVE_UP_S
    while os.path.exists(folder) and time.monotonic() < end:
        # Again, while the guardian of a command that this one had started ends what writes here.
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.05)


if __name__ == "__main__":
    _main(*sys.argv[1:])
