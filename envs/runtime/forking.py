"""What fork servers have in common: a process with one thread, and forks that end with it."""

import ctypes
import os
import signal
import sys
from contextlib import suppress

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def has_one_thread() -> bool:
    """Whether this process may fork: a fork has only the thread that forks, and the locks of all."""
    return len(os.listdir("/proc/self/task")) == 1


def watch_children() -> int:
    """Return a file descriptor that is readable when a child has ended."""
    wake, signal_pipe = os.pipe()
    os.set_blocking(signal_pipe, False)
    signal.set_wakeup_fd(signal_pipe)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return wake


def begin_fork(parent_pid: int) -> None:
    """Make a new fork independent, but for its end: the kernel kills it when `parent_pid` ends.

    It gets its own process group and random numbers, and its parent's handling of children ends.
    """
    os.setpgid(0, 0)
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it has ended already
        os._exit(1)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    numpy = sys.modules.get("numpy")
    if numpy is not None:  # `random` reseeds itself after a fork
        numpy.random.seed()


def kill_group(group: int) -> None:
    """Kill a process group, if it is still there."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
