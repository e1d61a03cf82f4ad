"""Writing files so that a reader, or a run that is killed, never sees half of one."""

import os
from pathlib import Path


def write_atomically(path: Path, text: str) -> None:
    """Write `text` to `path`, whole or not at all; folders are made as needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
