"""Files that several processes, or a run that is killed, may meet in."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile

from envs.errors import ConfigError


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


def check_writable(folder: Path, *, remedy: str) -> None:
    """Raise `ConfigError`, ending with `remedy`, unless files can be written into `folder`, or into the
    nearest folder above that exists."""
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    try:
        with TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise ConfigError(f"{existing} cannot be written to ({error.strerror or error}); {remedy}") from None


@contextmanager
def lock_file(path: Path) -> Iterator[None]:
    """Wait until no other process is within the same `path`, a file that is made for this and stays."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # the system lets go of it however this process ends
        yield
