"""The program that represents an interpreter and asks the fork server (`fork_server.py`) for a fork.

It passes on its arguments, environment, files, limits and priorities, and ends when the fork ends, in the
same way. Without a fork server it becomes an interpreter. It is run by its path and imports only the standard
library, so that it starts in milliseconds and uses little memory.
"""

import json
import os
import resource
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypedDict

MESSAGE_BYTES = 1 << 18
FORKED = b"forked"
"""The first answer; the second is the exit status. The fork server may end before it sends one of them."""


class ForkRequest(TypedDict):
    """What a fork takes over from the program that asks for it."""

    arguments: Sequence[str]
    """A script, or `-m` and a module, and their arguments."""
    environment: dict[str, str]
    folder: str
    umask: int
    niceness: int
    open_files: tuple[int, int]
    """The soft and the hard limit."""
    oom_score_adj: str


def _main(address: str, arguments: Sequence[str]) -> None:
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(address)
        socket.send_fds(connection, [json.dumps(_request(arguments)).encode()], [0, 1, 2])
        if connection.recv(MESSAGE_BYTES) == FORKED:
            _end(int(connection.recv(MESSAGE_BYTES) or 1))
    os.execv(sys.executable, [sys.executable, *arguments])


def _request(arguments: Sequence[str]) -> ForkRequest:
    umask = os.umask(0)
    os.umask(umask)
    return {
        "arguments": arguments,
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "umask": umask,
        "niceness": os.getpriority(os.PRIO_PROCESS, 0),
        "open_files": resource.getrlimit(resource.RLIMIT_NOFILE),
        "oom_score_adj": Path("/proc/self/oom_score_adj").read_text(),
    }


def _end(status: int) -> None:
    """End as the fork has: with its status or, if that is negative, by its signal."""
    if status < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with suppress(OSError):  # SIGKILL has no handler
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    raise SystemExit(status)


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2:])
