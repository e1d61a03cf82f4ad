"""Which processes belong to a command: what it started inherits its environment, orphans included."""

from contextlib import suppress
from pathlib import Path

import psutil


def processes_with(variable: str) -> dict[int, str]:
    """Command lines of the processes that were started with `variable`, `NAME=value`, by their ids."""
    lines = {}
    for process in psutil.process_iter():
        with suppress(OSError, psutil.Error):
            if variable.encode() in Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0"):
                lines[process.pid] = " ".join(process.cmdline())
    return lines
