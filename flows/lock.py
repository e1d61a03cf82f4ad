"""The lock on the folder in which a command works: a workspace, or that of a sweep or an evaluation."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from envs.errors import ConfigError
from envs.files import try_lock
from tasks.runs.folders import LOCK


@contextmanager
def lock(folder: Path, *, option: str = "--workspace") -> Iterator[None]:
    """Lock `folder` for this process; the system releases it however the process ends.

    `option` names another folder. Raises `ConfigError` if another live process holds the lock.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("a+") as file:
        if not try_lock(file):
            file.seek(0)
            raise ConfigError(
                f"{folder} is in use by process {file.read().strip() or 'unknown'}; wait for it, stop it, "
                f"or give another {option}"
            )
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
