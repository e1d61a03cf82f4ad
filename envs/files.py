"""Files that several processes share, or that a killed run must not leave half-written."""

import errno
import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, TypeVar

import msgspec

from envs.errors import ConfigError, DamagedFile

T = TypeVar("T")

RESTORE = "restore it, or delete it and run its pipeline again"
"""What to do about a damaged file of a run."""
_MAX_NAME_BYTES = 255
"""NAME_MAX of Linux's file systems."""
_MAX_PATH_BYTES = 4096 - 512
"""PATH_MAX of Linux, less what the files of a run have below its workspace."""
_LOCK_TRIES, _LOCK_WAIT_S = 5, 0.02
"""`is_locked` in another process holds a lock for microseconds, which is no reason to give up."""


def read_path(path: str | Path) -> Path:
    """A path that a user gives, with the home folder in place of `~`; forms and configuration have no shell.

    Raises `ConfigError` for a user who does not exist, and for a path that no file system takes.
    """
    try:
        expanded = Path(path).expanduser()
    except RuntimeError as error:
        raise ConfigError(f"{path}: {error}; give the whole path") from None
    for name in expanded.parts:
        if len(os.fsencode(name)) > _MAX_NAME_BYTES:
            raise ConfigError(
                f"{name[:40]}… is a name of {len(os.fsencode(name))} bytes, and a file system takes "
                f"{_MAX_NAME_BYTES}; give a shorter one"
            )
    if len(os.fsencode(expanded.absolute())) > _MAX_PATH_BYTES:
        raise ConfigError(
            f"{str(path)[:40]}… is a path of more than {_MAX_PATH_BYTES} bytes, which leaves no room for the "
            "files below it; give a shorter one"
        )
    return expanded


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
    """An empty folder that replaces `folder` as a whole at the end; if the block raises, `folder` stays.

    Missing folders above it are created.
    """
    new, old = (folder.with_name(f".{folder.name}.{word}") for word in ("making", "replaced"))
    for leftover in (new, old):
        shutil.rmtree(leftover, ignore_errors=True)
    new.mkdir(parents=True)
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


def drop_incomplete_line(path: Path) -> None:
    """Remove the last line if it has no end: its writer was stopped, or the disk was full."""
    if not path.exists():
        return
    content = path.read_bytes()
    if not content.endswith(b"\n"):
        write_atomically(path, content[: content.rfind(b"\n") + 1])


def read_json(path: Path, *, remedy: str = RESTORE) -> dict[str, Any]:
    """The object in a JSON file; empty if there is no such file.

    Raises `DamagedFile`, whose text ends with `remedy`.
    """
    if not path.exists():
        return {}
    try:
        return _parse_object(path.read_bytes())
    except ValueError as error:
        raise DamagedFile(f"{path} is damaged ({error}); {remedy}") from None


def read_json_lines(path: Path, *, is_growing: bool = False) -> list[dict[str, Any]]:
    """`iterate_json_lines`; none if there is no such file."""
    return list(iterate_json_lines(path, is_growing=is_growing)) if path.exists() else []


def iterate_json_lines(path: Path, *, is_growing: bool = False) -> Iterator[dict[str, Any]]:
    """The objects of a file that has one a line, which may be too large to be read at once.

    `is_growing`: a last line without an end is being written, and is left out. Raises `DamagedFile` for a
    line that is not an object.
    """
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if is_growing and not line.endswith(b"\n"):
                return
            try:
                values = _parse_object(line)
            except ValueError as error:
                raise damaged_line(number, path, str(error)) from None
            yield values


def read_as(kind: type[T], path: Path, *, remedy: str = RESTORE) -> T | None:
    """The object in a JSON file as a `kind`: a dataclass, or a `dict` or a `TypedDict` of known values. None
    if there is no such file.

    Keys that `kind` does not have are ignored. Raises `DamagedFile`, whose text ends with `remedy`.
    """
    if not path.exists():
        return None
    try:
        return msgspec.convert(read_json(path, remedy=remedy), kind)
    except msgspec.ValidationError as error:
        raise DamagedFile(f"{path} is damaged ({error}); {remedy}") from None


def read_lines_as(kind: type[T], path: Path) -> list[T]:
    """The objects of a file that has one a line, each as a `kind`, as in `read_as`; none if there is no such
    file. Raises `DamagedFile`."""
    lines = []
    for number, values in enumerate(read_json_lines(path), start=1):
        try:
            lines.append(msgspec.convert(values, kind))
        except msgspec.ValidationError as error:
            raise damaged_line(number, path, str(error)) from None
    return lines


def check_keys(values: Mapping[str, object], keys: Iterable[str], *, file: Path, at: str = "") -> None:
    """Raise `DamagedFile` if `values`, those `at` this key of a JSON file, lack one of `keys`."""
    for key in keys:
        if key not in values:
            raise DamagedFile(f"{file} is damaged (it has no {at}{'.' if at else ''}{key}); {RESTORE}")


def damaged_line(number: int, file: Path, reason: str) -> DamagedFile:
    """The error of line `number`, from 1, of a file that has an object a line."""
    return DamagedFile(f"line {number} of {file} is damaged ({reason}); restore the file, or delete the line")


def _parse_object(text: bytes) -> dict[str, Any]:
    """Raises `ValueError`, which says what is wrong."""
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError(str(error)) from None
    if not isinstance(value, dict):
        raise ValueError("it is no JSON object")
    return value


def check_writable(folder: Path, *, remedy: str) -> None:
    """Raise `ConfigError`, whose text ends with `remedy`, unless `folder`, or its nearest existing parent, is
    writable."""
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    try:
        with TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise ConfigError(f"{existing} cannot be written to ({error.strerror or error}); {remedy}") from None


def try_lock(file: IO[str]) -> bool:
    """Hold an exclusive lock on an open file, until it is closed, unless it is locked already.

    The kernel releases it however this process ends.
    """
    for _ in range(_LOCK_TRIES):
        if _flock(file, fcntl.LOCK_EX):
            return True
        time.sleep(_LOCK_WAIT_S)
    return False


def is_locked(path: Path) -> bool:
    """Whether a process holds a lock on `path`; False if there is no such file."""
    try:
        with path.open() as file:
            return not _flock(file, fcntl.LOCK_SH)
    except OSError:
        return False


def _flock(file: IO[str], kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            raise
        return False
    return True


@contextmanager
def lock_file(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on `path`, a file that is created and stays; waits for other processes."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # the kernel releases it however this process ends
        yield
