"""Reads a user's rows: files below `data/`, and Hugging Face's datasets by name.

Owns the file formats; `tasks/config/data.py` checks the name of a source, `files.py` the rows.
"""

import csv
import io
import json
import math
import posixpath
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from envs.errors import ConfigError, boundary, describe
from tasks.config.data import ENDINGS, FOLDER, HUB, HUB_FORM


@dataclass(frozen=True, slots=True)
class SourceRow:
    """One row of a source, unchecked."""

    location: str
    """The place as messages name it: `data/math/train.jsonl, row 3 (line 4)`."""
    number: int
    """The row's number in its source, from 0."""
    value: object
    """The row's value, of JSON's types, and of those that Parquet and Hugging Face add."""


def check_exists(source: str, *, key: str) -> None:
    """Raise `ConfigError`, naming the `key` of pipelines.yaml, for a file that is not there."""
    if not source.startswith(HUB) and not Path(source).is_file():
        raise ConfigError(f"{key}: there is no file {source}; correct the path, or fetch it with dvc pull")


def read_rows(source: str) -> list[SourceRow]:
    """All rows of a source that `check_source` has passed; at least one.

    Raises `ConfigError` for what cannot be read, with the line where there is one.
    """
    if source.startswith(HUB):
        rows = _read_hub(source)
    else:
        rows = _READERS[posixpath.splitext(source)[1]](Path(source))
    if not rows:
        raise ConfigError(f"{source} has no rows; give at least one")
    return rows


def find_foreign(value: object) -> str | None:
    """Describe the part of `value` that JSON cannot hold; None if all of it is a JSON value."""
    match value:
        case None | bool() | int():
            return None
        case float():
            return None if math.isfinite(value) else f"the number {value}"
        case str():
            return None if _encodes(value) else "text with half a surrogate pair"
        case list():
            return next((part for element in value if (part := find_foreign(element))), None)
        case dict():
            if any(not isinstance(key, str) for key in value):
                return "an object whose keys are no texts"
            return next(
                (part for element in (*value, *value.values()) if (part := find_foreign(element))), None
            )
    return f"a {type(value).__name__}"


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _read_json(path: Path) -> list[SourceRow]:
    values = _parse_json(_text(path), path=path)
    if not isinstance(values, list):
        raise ConfigError(f"{path} holds a {type(values).__name__}; give a list of rows, or JSONL")
    return _number_rows(values, source=str(path))


def _read_jsonl(path: Path) -> list[SourceRow]:
    # Not `splitlines`: a JSON text may hold other line ends than this one.
    lines = [(n, line) for n, line in enumerate(_text(path).split("\n"), start=1) if line.strip()]
    return [
        SourceRow(
            f"{path}, row {number} (line {line_number})",
            number,
            _parse_json(line, path=path, line=line_number),
        )
        for number, (line_number, line) in enumerate(lines)
    ]


def _read_csv(path: Path) -> list[SourceRow]:
    """All values are texts: CSV has no types."""
    # Not `splitlines`: a quoted cell may hold line ends.
    reader = csv.reader(io.StringIO(_text(path), newline=""), strict=True)
    rows: list[SourceRow] = []
    line = 1
    try:
        columns = next(reader, [])
        if not all(columns) or len(set(columns)) < len(columns):
            raise ConfigError(
                f"{path}, line 1: the columns are {columns}; give each a name, and none a name twice"
            )
        line = reader.line_num + 1
        for cells in reader:
            if cells and len(cells) != len(columns):
                raise ConfigError(
                    f"{path}, row {len(rows)} (line {line}) has {len(cells)} cells, and line 1 names "
                    f"{len(columns)} columns; quote a cell that holds a comma"
                )
            if cells:  # else the line is blank
                value = dict(zip(columns, cells, strict=True))
                rows.append(SourceRow(f"{path}, row {len(rows)} (line {line})", len(rows), value))
            line = reader.line_num + 1
    except csv.Error as error:
        raise ConfigError(f"{path}, line {line}: malformed CSV: {error}") from None
    return rows


def _read_parquet(path: Path) -> list[SourceRow]:
    import pandas

    with boundary(ConfigError, f"reading {path} as Parquet", remedy="save it again"):
        # Arrow's types: whole numbers stay whole and lists stay lists where values are missing.
        frame = pandas.read_parquet(path, dtype_backend="pyarrow")
        values = frame.to_dict("records")
    return _number_rows(values, source=str(path))


def _read_hub(source: str) -> list[SourceRow]:
    form = HUB_FORM.fullmatch(source)
    assert form is not None
    import datasets

    remedy = f"correct the name, the config or the split, or put the rows in a file below {FOLDER}/"
    with boundary(ConfigError, f"loading {source}", remedy=remedy):
        values = list(datasets.load_dataset(form["name"], form["config"], split=form["split"]))
    return _number_rows(values, source=source)


_READERS: Mapping[str, Callable[[Path], list[SourceRow]]] = dict(
    zip(ENDINGS, (_read_json, _read_jsonl, _read_parquet, _read_csv), strict=True)
)


def _number_rows(values: Sequence[object], *, source: str) -> list[SourceRow]:
    return [SourceRow(f"{source}, row {number}", number, value) for number, value in enumerate(values)]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as UTF-8: {describe(error)}") from None


def _parse_json(text: str, *, path: Path, line: int = 1) -> object:
    def refuse(word: str) -> NoReturn:
        raise ConfigError(
            f"{path}, from line {line} on, contains {word}, which is not valid JSON; write null"
        )

    try:
        return json.loads(text, parse_constant=refuse)
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{path}, line {line + error.lineno - 1}: malformed JSON: {error.msg} (column {error.colno})"
        ) from None
    except (RecursionError, ValueError) as error:  # nested too deeply; a number of thousands of digits
        raise ConfigError(f"{path}, from line {line} on, cannot be read: {describe(error)}") from None
