"""The program that stands for an interpreter and asks the fork server (`fork_server.py`) for a fork.

It passes on its arguments, environment, files and priorities, and ends when the fork ends, with the same
status. Without a fork server it becomes an interpreter. It is run by its path and imports only the standard
library, so that it starts in milliseconds and uses little memory.
"""

import json
import os
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypedDict

MESSAGE_BYTES = 1 << 18
FORKED = b"forked"
"""The first answer; the second is the exit status. The fork server may end before it sends one of them."""


class Request(TypedDict):
    """What a fork takes over from the program that asks for it."""

    arguments: Sequence[str]
    """A script, or `-m` and a module, and their arguments."""
    environment: dict[str, str]
    folder: str
    niceness: int
    oom_score_adj: str


def _main(address: str, arguments: Sequence[str]) -> None:
    request: Request = {
        "arguments": arguments,
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "niceness": os.getpriority(os.PRIO_PROCESS, 0),
        "oom_score_adj": Path("/proc/self/oom_score_adj").read_text(),
    }
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(address)
        socket.send_fds(connection, [json.dumps(request).encode()], [0, 1, 2])
        if connection.recv(MESSAGE_BYTES) == FORKED:
            raise SystemExit(json.loads(connection.recv(MESSAGE_BYTES) or "1"))
    os.execv(sys.executable, [sys.executable, *arguments])


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2:])
