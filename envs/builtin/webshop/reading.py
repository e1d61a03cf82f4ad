"""Reads a JSON array or object one entry at a time, however large the file is, and says where it is wrong."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from json import JSONDecodeError, JSONDecoder
from pathlib import Path
from typing import Any, TextIO

from envs.errors import ConfigError

CHUNK = 1 << 20
"""Characters that are read at once."""
LONGEST_ENTRY = 1 << 24
"""Characters; where an entry has no end for so long, a quote or a bracket is missing."""
_ERROR_MARGIN = 16
"""Characters: an error so close to the end of what has been read may only mean that more must be read."""
_SPACE = re.compile(r"[ \t\r\n]*")


@dataclass(frozen=True, slots=True)
class Entry:
    """One element of an array, or one member of an object."""

    key: str
    """Of a member; empty for an element."""
    value: Any
    location: str
    """For errors: the file, the line and the number of the entry."""


def elements(path: Path, *, remedy: str) -> Iterator[Entry]:
    """The elements of the array that the file is, in order.

    Raises `ConfigError` with the file, the line, what was expected and `remedy` where it is no such JSON.
    """
    return _entries(path, "[", remedy=remedy)


def members(path: Path, *, remedy: str) -> Iterator[Entry]:
    """The members of the object that the file is, each with its key; raises as `elements` does."""
    return _entries(path, "{", remedy=remedy)


def _entries(path: Path, opening: str, *, remedy: str) -> Iterator[Entry]:
    with path.open(encoding="utf-8") as file:
        yield from _Reader(path, file, remedy).entries(opening)


class _Reader:
    def __init__(self, path: Path, file: TextIO, remedy: str) -> None:
        self._path = path
        self._file = file
        self._remedy = remedy
        self._window = ""
        self._position = 0
        self._line = 1
        self._decode = JSONDecoder().raw_decode

    def entries(self, opening: str) -> Iterator[Entry]:
        self._symbol(opening)
        closing = "]" if opening == "[" else "}"
        number = 0
        while self._peek() != closing:
            if number:
                self._symbol(",", f" or {closing!r}")
            number += 1
            self._peek()  # what comes next begins the entry: its line is the entry's
            location = f"{self._path}, line {self._line}, entry {number}"
            key = ""
            if opening == "{":
                key = self._value()
                if not isinstance(key, str):
                    raise self._wrong(f"a key in quotes, not {json.dumps(key)[:40]}")
                self._symbol(":")
                location += f" ({key})"
            yield Entry(key, self._value(), location)
        self._position += 1
        if self._peek():
            raise self._wrong(f"nothing after the closing {closing!r}")

    def _symbol(self, symbol: str, otherwise: str = "") -> None:
        if self._peek() != symbol:
            raise self._wrong(f"{symbol!r}{otherwise}")
        self._position += 1

    def _peek(self) -> str:
        """The next character that is no space; empty at the end."""
        while True:
            match = _SPACE.match(self._window, self._position)
            assert match is not None
            self._pass(match.end())
            if self._position < len(self._window):
                return self._window[self._position]
            if not self._more():
                return ""

    def _value(self) -> Any:
        self._peek()
        while True:
            try:
                value, end = self._decode(self._window, self._position)
            except JSONDecodeError as error:
                too_short = error.pos >= len(self._window) - _ERROR_MARGIN or "Unterminated" in error.msg
                if too_short and len(self._window) - self._position < LONGEST_ENTRY and self._more():
                    continue
                self._pass(error.pos)
                raise self._wrong(f"JSON ({error.msg})") from None
            if end == len(self._window) and self._more():
                continue  # a number may go on
            self._pass(end)
            return value

    def _pass(self, end: int) -> None:
        self._line += self._window.count("\n", self._position, end)
        self._position = end

    def _more(self) -> bool:
        try:
            chunk = self._file.read(CHUNK)
        except UnicodeDecodeError as error:
            raise self._wrong(f"UTF-8 text ({error.reason})") from None
        self._window = self._window[self._position :] + chunk
        self._position = 0
        return bool(chunk)

    def _wrong(self, expected: str) -> ConfigError:
        ahead = self._window[self._position : self._position + 20]
        actual = repr(ahead) if ahead else "the end of the file"
        return ConfigError(
            f"{self._path}, line {self._line}: expected {expected}, found {actual}; {self._remedy}"
        )
