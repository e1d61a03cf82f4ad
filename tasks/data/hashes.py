"""Hashes of files and folders, the same as in `dvc.lock`."""

import hashlib
import json
import os
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

IGNORE_FILE = Path(".dvcignore")


def path_md5(path: Path) -> str:
    """The MD5 of a file or folder as DVC writes it in `dvc.lock`."""
    if path.is_file():
        status = path.stat()
        return _file_md5(path, status.st_size, status.st_mtime_ns)
    entries = [
        {"md5": path_md5(file), "relpath": file.relative_to(path).as_posix()} for file in _files_of(path)
    ]
    entries.sort(key=lambda entry: entry["relpath"])
    return text_md5(json.dumps(entries, sort_keys=True)) + ".dir"


def has_md5(path: Path, md5: str) -> bool:
    """Whether there is a file or folder at `path`, with this hash."""
    return path.exists() and path_md5(path) == md5


@cache
def _file_md5(path: Path, size: int, mtime_ns: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def text_md5(text: str) -> str:
    """The MD5 of a text in UTF-8."""
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


def _files_of(folder: Path) -> Iterator[Path]:
    patterns = _ignore_patterns()

    def filter_names(names: list[str]) -> list[str]:
        return [name for name in names if not any(fnmatch(name, pattern) for pattern in patterns)]

    for root, folders, files in os.walk(folder):
        folders[:] = filter_names(folders)  # in place: os.walk descends into what is left
        yield from (Path(root, name) for name in filter_names(files))


def _ignore_patterns() -> list[str]:
    lines = IGNORE_FILE.read_text().splitlines() if IGNORE_FILE.exists() else []
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]
