"""A corpus: one JSONL file with a passage per line, read by line number.

The format is wiki-18's as Search-R1 uses it: `{"id": "0", "contents": "\\"Title\\"\\nText"}`. The text stays
in the file, which is memory-mapped: processes share it, whatever its size. The offsets of lines are stored
with the index (`envs/retrieval/index_folder.py`) as one file of 64-bit integers.
"""

import hashlib
import json
import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from envs.errors import ConfigError

OFFSETS = "offsets.npy"
FORM = '{"id": "0", "contents": "\\"Title\\"\\nText"}'
_MAX_QUOTE = 80


@dataclass(frozen=True, slots=True)
class CorpusLine:
    """One line of a corpus, checked."""

    passage_id: str
    contents: str


class Reader:
    """Reads a whole corpus once, front to back; has its hash and line offsets afterwards."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._digest = hashlib.sha256()
        self._offsets: list[int] = []

    def __iter__(self) -> Iterator[CorpusLine]:
        """Every line. Raises `ConfigError` for an invalid line, naming file, line and the expected form."""
        offset = 0
        with self._path.open("rb") as file:
            for number, raw in enumerate(file, start=1):
                self._digest.update(raw)
                if raw.strip():
                    self._offsets.append(offset)
                    yield CorpusLine(*_parse(raw, source=f"{self._path}, line {number}"))
                offset += len(raw)
        if not self._offsets:
            raise ConfigError(f"{self._path} holds no passages; a line each is expected: {FORM}")

    @property
    def sha256(self) -> str:
        """Hash of the bytes read so far."""
        return self._digest.hexdigest()

    def save_offsets(self, folder: Path) -> None:
        """Write the line offsets, which `Corpus` needs."""
        np.save(folder / OFFSETS, np.asarray(self._offsets, dtype=np.int64))


class Corpus:
    """Passages by number, from 0 in the order of their lines."""

    def __init__(self, path: Path, *, folder: Path) -> None:
        """`folder` holds the offsets that a `Reader` saved."""
        self._path = path
        self._offsets = np.load(folder / OFFSETS, mmap_mode="r")
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def __len__(self) -> int:
        return len(self._offsets)

    def __getitem__(self, number: int) -> tuple[str, str]:
        """(id, contents)"""
        start = int(self._offsets[number])
        end = int(self._offsets[number + 1]) if number + 1 < len(self) else len(self._map)
        raw = self._map[start:end]
        return _parse(raw.split(b"\n", 1)[0], source=f"{self._path}, passage {number}")


def _parse(raw: bytes, *, source: str) -> tuple[str, str]:
    try:
        record = json.loads(raw)
    except ValueError as error:  # of UTF-8, too
        raise ConfigError(
            f"{source}: not JSON ({error}); expected {FORM}, got {raw[:_MAX_QUOTE]!r}. Was the file cut off?"
        ) from None
    if not isinstance(record, dict):
        raise ConfigError(f"{source}: expected {FORM}, got a {type(record).__name__}")
    contents, passage_id = record.get("contents"), record.get("id")
    if not isinstance(contents, str) or not contents.strip():
        raise ConfigError(f"{source}: expected {FORM}; 'contents' is {str(contents)[:_MAX_QUOTE]!r}")
    if not isinstance(passage_id, str | int) or isinstance(passage_id, bool):
        raise ConfigError(f"{source}: expected {FORM}; 'id' is {str(passage_id)[:_MAX_QUOTE]!r}")
    return str(passage_id), contents
