"""Reads a JSON array or object of any size one entry at a time, and reports where it is malformed."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from json import JSONDecodeError, JSONDecoder
from pathlib import Path
from typing import Literal, TextIO

from envs.errors import ConfigError

CHUNK = 1 << 20
"""Characters read at a time."""
MAX_ENTRY_LENGTH = 1 << 24
"""Characters; an entry without an end for so long lacks a quote or a bracket."""
_ERROR_MARGIN = 16
"""Characters; an error this close to the end of the window may only mean that more must be read."""
_SPACE = re.compile(r"[ \t\r\n]*")


@dataclass(frozen=True, slots=True)
class Entry:
    """One element of an array, or one member of an object."""

    key: str
    """The key of a member; empty for an element."""
    value: object
    location: str
    """The place that errors name: the file, the line and the number of the entry."""


def read_entries(path: Path, opening: Literal["[", "{"]) -> Iterator[Entry]:
    """The elements of a file that is an array (`[`), or the members of one that is an object (`{`), in order.

    Raises `ConfigError`, with the file, the line and what was expected, if the file is not such JSON.
    """
    with path.open(encoding="utf-8") as file:
        yield from _Reader(path, file).read(opening)


class _Reader:
    def __init__(self, path: Path, file: TextIO) -> None:
        self._path = path
        self._file = file
        self._window = ""
        self._position = 0
        self._line = 1
        self._decode = JSONDecoder().raw_decode

    def read(self, opening: str) -> Iterator[Entry]:
        self._expect(opening)
        closing = "]" if opening == "[" else "}"
        number = 0
        while self._peek() != closing:
            if number:
                self._expect(",", f" or {closing!r}")
            number += 1
            self._peek()  # skip spaces: the entry's line is that of its first character
            location = f"{self._path}, line {self._line}, entry {number}"
            key = ""
            if opening == "{":
                value = self._read_value()
                if not isinstance(value, str):
                    raise self._wrong(f"a key in quotes, not {json.dumps(value)[:40]}")
                key = value
                self._expect(":")
                location += f" ({key})"
            yield Entry(key, self._read_value(), location)
        self._position += 1
        if self._peek():
            raise self._wrong(f"nothing after the closing {closing!r}")

    def _expect(self, symbol: str, otherwise: str = "") -> None:
        if self._peek() != symbol:
            raise self._wrong(f"{symbol!r}{otherwise}")
        self._position += 1

    def _peek(self) -> str:
        """The next character that is not a space; empty at the end."""
        while True:
            match = _SPACE.match(self._window, self._position)
            assert match is not None
            self._advance(match.end())
            if self._position < len(self._window):
                return self._window[self._position]
            if not self._read_more():
                return ""

    def _read_value(self) -> object:
        self._peek()
        while True:
            try:
                value, end = self._decode(self._window, self._position)
            except JSONDecodeError as error:
                too_short = error.pos >= len(self._window) - _ERROR_MARGIN or "Unterminated" in error.msg
                if too_short and len(self._window) - self._position < MAX_ENTRY_LENGTH and self._read_more():
                    continue
                self._advance(error.pos)
                raise self._wrong(f"JSON ({error.msg})") from None
            if end == len(self._window) and self._read_more():
                continue  # a number may continue
            self._advance(end)
            return value

    def _advance(self, end: int) -> None:
        self._line += self._window.count("\n", self._position, end)
        self._position = end

    def _read_more(self) -> bool:
        try:
            chunk = self._file.read(CHUNK)
        except UnicodeDecodeError as error:
            raise self._wrong(f"UTF-8 text ({error.reason})") from None
        self._window = self._window[self._position :] + chunk
        self._position = 0
        return bool(chunk)

    def _wrong(self, expectation: str) -> ConfigError:
        ahead = self._window[self._position : self._position + 20]
        actual = repr(ahead) if ahead else "the end of the file"
        return ConfigError(f"{self._path}, line {self._line}: expected {expectation}, found {actual}")
