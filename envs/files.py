"""Files that several processes share, or that a killed run must not leave half-written."""

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from envs.errors import ConfigError


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write `content` to `path`, completely or not at all; missing folders are created."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: object, *, indent: int | None = 2) -> None:
    """Write `value` to `path` as JSON, completely or not at all; missing folders are created."""
    write_atomically(path, json.dumps(value, indent=indent) + "\n")


def copy_over(source: Path, target: Path) -> None:
    """Copy a file or a folder, and replace a folder at `target` as a whole; missing folders are created."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.is_dir():
        shutil.rmtree(target)
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copy2(source, target)


@contextmanager
def replaced_folder(folder: Path) -> Iterator[Path]:
    """An empty folder that replaces `folder` as a whole at the end; if the block raises, `folder` stays."""
    new, old = (folder.with_name(f".{folder.name}.{word}") for word in ("making", "replaced"))
    for leftover in (new, old):
        shutil.rmtree(leftover, ignore_errors=True)
    new.mkdir()
    yield new
    if folder.exists():
        folder.rename(old)
    new.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def append_line(path: Path, line: str) -> None:
    """Append it as a line of its own, whatever the file ends with. Raises `ConfigError`."""
    try:
        with path.open("ab+") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                start = "" if file.read(1) == b"\n" else "\n"
            else:
                start = ""
            file.write((start + line + "\n").encode())
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(f"{path} cannot be written to ({reason}); make its folder writable") from None


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty if there is no such file."""
    values: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return values


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a file that has one a line; none if there is no such file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def check_writable(folder: Path, *, remedy: str) -> None:
    """Raise `ConfigError`, whose text ends with `remedy`, unless `folder`, or its nearest existing parent, is
    writable."""
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    try:
        with TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise ConfigError(f"{existing} cannot be written to ({error.strerror or error}); {remedy}") from None


@contextmanager
def lock_file(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on `path`, a file that is created and stays; waits for other processes."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # the kernel releases it however this process ends
        yield
