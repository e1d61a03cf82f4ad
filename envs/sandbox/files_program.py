"""The program with which a `Workspace` operates on files in its sandbox; it imports only the standard
library.

It reads one request from standard input and answers `{"text"}` or `{"error"}`. Relative paths start at
`/work`.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path("/work")
HISTORY = Path("/tmp/.history")
MAX_FILE = 8 << 20
MAX_MATCHES = 100
MAX_ENTRIES = 300
MAX_LINE = 500
MAX_CHARS = 8_000
"""The most characters of an answer."""


class PathRejected(Exception):
    """An operation is impossible; the agent reads the text."""


def resolve(path: str | Path) -> Path:
    """Return the absolute path."""
    return ROOT / path


def read_text(path: str | Path) -> str:
    """Return the text of a file, with its line ends."""
    file = resolve(path)
    if not file.exists():
        near = [p.name for p in file.parent.glob("*") if p.is_file()][:20] if file.parent.is_dir() else []
        siblings = f"; beside it are: {', '.join(sorted(near))}" if near else ""
        raise PathRejected(f"there is no file {path}{siblings}")
    if not file.is_file():
        raise PathRejected(f"{path} is a folder; list it" if file.is_dir() else f"{path} is no regular file")
    if file.stat().st_size > MAX_FILE:
        raise PathRejected(f"{path} has {file.stat().st_size} bytes; files up to {MAX_FILE} are read")
    try:
        return file.read_bytes().decode()
    except UnicodeDecodeError:
        raise PathRejected(f"{path} is no text in UTF-8") from None


def versions(path: str) -> tuple[Path, int]:
    """Return the folder with a file's versions before each edit, and their number."""
    folder = HISTORY / hashlib.sha256(os.fsencode(os.path.realpath(resolve(path)))).hexdigest()
    folder.mkdir(parents=True, exist_ok=True)
    return folder, len(list(folder.iterdir()))


def write(path: str, text: str) -> None:
    """Replace a file atomically; its last version is kept."""
    file = resolve(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    folder, count = versions(path)
    new = file.with_name(f".{file.name[:200]}.new")
    backup = folder / f"{count:06}{'' if file.exists() else '.none'}"
    try:
        new.write_bytes(text.encode())
        if file.exists():
            shutil.copyfile(file, backup)
            shutil.copymode(file, new)
        else:
            backup.touch()
        os.replace(new, os.path.realpath(file))
    except BaseException:
        with contextlib.suppress(OSError):
            new.unlink()
        with contextlib.suppress(OSError):
            backup.unlink()
        raise


def put(files: dict[str, str]) -> str:
    """Write files without a way to undo it."""
    for path, text in files.items():
        file = resolve(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode())
    return f"{len(files)} files are written"


def read(path: str, first: int, last: int | None) -> str:
    """Return lines with their numbers."""
    lines = read_text(path).split("\n")
    if lines[-1] == "":
        lines.pop()
    if not lines:
        return f"{path} is empty"
    if first > len(lines):
        raise PathRejected(f"{path} has {len(lines)} lines")
    end = len(lines) if last is None else min(last, len(lines))
    lines_shown, size = [], 0
    for number in range(first, end + 1):
        line = lines[number - 1].rstrip("\r")
        lines_shown.append(f"{number:6}\t{line[:MAX_LINE]}{'...' if len(line) > MAX_LINE else ''}")
        size += len(lines_shown[-1]) + 1
        if size > MAX_CHARS - 100:
            lines_shown.pop()
            end = number - 1
            break
    left = len(lines) - end
    return "\n".join(lines_shown) + (f"\n({left} more lines, from {end + 1})" if left else "")


def create(path: str, text: str, overwrite: bool) -> str:
    """Write a new file."""
    if resolve(path).is_dir():
        raise PathRejected(f"{path} is a folder")
    if resolve(path).exists() and not overwrite:
        raise PathRejected(f"{path} exists; edit it, or say overwrite")
    write(path, text)
    return f"{path} is written, {len(text)} characters"


def edit(path: str, old: str, new: str) -> str:
    """Replace a text that occurs exactly once."""
    text = read_text(path)
    if not old:
        raise PathRejected("the text to be replaced is empty")
    position = text.find(old)
    if position < 0:
        raise PathRejected(f"{path} does not hold this text; it must be the same to the last space")
    positions = [position]
    while (position := text.find(old, position + 1)) >= 0 and len(positions) < 10:
        positions.append(position)
    lines = [str(text.count("\n", 0, start) + 1) for start in positions]
    if len(lines) > 1:
        raise PathRejected(
            f"{path} holds this text at lines {', '.join(lines)}; give more of what surrounds one of them"
        )
    write(path, text[: positions[0]] + new + text[positions[0] + len(old) :])
    return f"{path} is edited at line {lines[0]}"


def undo(path: str) -> str:
    """Undo the last edit or creation."""
    folder, count = versions(path)
    if not count:
        raise PathRejected(f"nothing was changed in {path}")
    backup = sorted(folder.iterdir())[-1]
    if backup.suffix == ".none":
        resolve(path).unlink(missing_ok=True)
    else:
        shutil.copyfile(backup, resolve(path))
    backup.unlink()
    return f"the last change of {path} is undone" + ("; there is no such file now" if backup.suffix else "")


def files_under(path: str) -> Iterator[Path]:
    """Yield all regular files in order, except those in hidden folders."""
    if resolve(path).is_file():
        yield resolve(path)
        return
    for folder, folders, names in os.walk(resolve(path)):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (p for name in sorted(names) if (p := Path(folder, name)).is_file())


def display_path(path: Path) -> str:
    """Return the path relative to `/work`, if it is there."""
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def list_folder(path: str) -> str:
    """List a folder, two levels deep."""
    top = resolve(path)
    if not top.is_dir():
        raise PathRejected(f"there is no folder {path}")
    entries = []
    for entry in sorted(top.iterdir()):
        entries.append(entry)
        if entry.is_dir() and not entry.is_symlink() and not entry.name.startswith("."):
            with contextlib.suppress(OSError):
                entries += sorted(entry.iterdir())
    lines = [
        display_path(p) + ("/" if p.is_dir() else f"  {p.lstat().st_size} bytes")
        for p in entries[:MAX_ENTRIES]
    ]
    if len(entries) > MAX_ENTRIES:
        lines.append(f"({len(entries) - MAX_ENTRIES} more)")
    return "\n".join(lines) or f"{path} is empty"


def grep(pattern: str, path: str) -> str:
    """Return the lines that match a regular expression."""
    if not resolve(path).exists():
        raise PathRejected(f"there is no {path}")
    try:
        regex = re.compile(pattern)
    except re.error as error:
        raise PathRejected(f"{pattern[:80]!r} is no regular expression: {error}") from None
    entries: list[str] = []
    for file in files_under(path):
        try:
            lines = read_text(file).split("\n")
        except (PathRejected, OSError):
            continue
        for number, line in enumerate(lines, 1):
            if regex.search(line):
                if len(entries) == MAX_MATCHES:
                    return "\n".join([*entries, f"(there are more than {MAX_MATCHES})"])
                entries.append(f"{display_path(file)}:{number}: {line[:MAX_LINE].rstrip()}")
    return "\n".join(entries) or "nothing is found"


OPERATIONS: dict[str, Callable[..., str]] = {
    operation.__name__: operation for operation in (put, read, create, edit, undo, list_folder, grep)
}


def main() -> None:
    """Answer one request."""
    request = json.load(sys.stdin)
    operation = request.pop("operation")
    # The kernel's signal ends this process even during a regular expression search.
    signal.setitimer(signal.ITIMER_REAL, request.pop("seconds"))
    try:
        text = OPERATIONS[operation](**request)
        left = len(text) - MAX_CHARS
        answer = {"text": text if left <= 0 else f"{text[:MAX_CHARS]}\n({left} more characters)"}
    except PathRejected as error:
        answer = {"error": str(error)[:MAX_CHARS]}
    except (OSError, ValueError) as error:
        path = request.get("path") or getattr(error, "filename", None) or operation
        answer = {"error": f"{str(path)[:MAX_LINE]}: {getattr(error, 'strerror', None) or error}"}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
