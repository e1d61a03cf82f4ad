"""The index of a run's trajectories: one SQLite file in a cache folder, which may be deleted at any time.

It holds, for each trajectory, where its line lies (byte offset and length) and what lists and searches need;
the trajectories themselves stay in the run's files. `RunIndex.update` reads what has been appended since the
last time. A file that was replaced, shortened or rewritten is noticed by the lines that were indexed before,
and indexed anew. A line that is not complete yet is left for the next time.

`query.py` and `browse.py` read the index, each with a connection of its own (`RunIndex.connect`).
"""

import hashlib
import json
import math
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from envs.errors import ConfigError
from envs.types import replace_surrogates
from tasks.runs.folders import ANNOTATIONS, RunFolder, TrajectoryFile
from tasks.runs.lines import TOOL_CALLS, TrajectoryLine, UnreadableLine, digest_of, finite, read_line
from tasks.viewer.annotations import read_annotations
from tasks.viewer.query import fold

VERSION = 5
"""The version of the tables below: a file of another version is made anew."""
BATCH_S = 0.5
"""The time between two commits: how often a long indexing shows what it has so far."""
CHECKED_LINES = 16
"""Trajectories that are compared with a file that has changed, the first and the last among them; and as many
of the lines that were none, for these are mended."""
_MAX_REASON = 300  # characters
_HASH_BYTES = 16
_MAX_ROWS = 50_000  # remembered while a file is read

_TABLES = """
CREATE TABLE files(
    id INTEGER PRIMARY KEY, key TEXT UNIQUE, path TEXT, phase TEXT,
    inode INTEGER, size INTEGER, mtime_ns INTEGER, consumed INTEGER, lines INTEGER);
CREATE TABLE items(
    id INTEGER PRIMARY KEY, item TEXT, env TEXT, part TEXT, metadata TEXT, UNIQUE(item, env, part, metadata));
CREATE TABLE facts(id INTEGER PRIMARY KEY, json TEXT UNIQUE);
CREATE TABLE names(kind TEXT, name TEXT, PRIMARY KEY(kind, name)) WITHOUT ROWID;
CREATE TABLE prompts(id INTEGER PRIMARY KEY, hash BLOB UNIQUE);
CREATE TABLE trajectories(
    id INTEGER PRIMARY KEY AUTOINCREMENT, file INTEGER, line INTEGER, start INTEGER, length INTEGER,
    digest TEXT, item INTEGER, step INTEGER, round INTEGER, sample INTEGER, reward REAL, success INTEGER,
    stop TEXT, turns INTEGER, tokens INTEGER, logprob REAL, unparsed INTEGER, oldest INTEGER, newest INTEGER,
    seconds REAL, attempts INTEGER, error TEXT, labels INTEGER, metrics INTEGER, prompt INTEGER,
    images INTEGER, UNIQUE(file, line));
CREATE INDEX by_order ON trajectories(step IS NULL, step, round IS NULL, round, file, line);
CREATE INDEX by_group ON trajectories(file, item, labels);
CREATE INDEX by_item ON trajectories(item);
CREATE INDEX by_digest ON trajectories(digest);
CREATE TABLE unreadable(
    file INTEGER, line INTEGER, start INTEGER, length INTEGER, digest TEXT, reason TEXT);
CREATE TABLE annotations(
    digest TEXT, file TEXT, label TEXT, note TEXT, at TEXT, PRIMARY KEY(digest, file)) WITHOUT ROWID;
CREATE TABLE state(name TEXT PRIMARY KEY, value);
-- Without their contents, which are in the run's files. A removed trajectory leaves its words behind; no id
-- is used twice, so they lead nowhere.
CREATE VIRTUAL TABLE texts USING fts5(response, observation, content='', columnsize=0);
CREATE VIRTUAL TABLE prompt_texts USING fts5(prompt, content='', columnsize=0);
"""

Decode = Callable[[Sequence[int]], str | None]
"""Tokens to text; None where there is no tokenizer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexProgress:
    """How far an update is, in bytes of the files that it has to read."""

    done: int
    total: int


def cache_folder() -> Path:
    """Where indexes are kept: `wingspan/viewer` in `$XDG_CACHE_HOME`, by default `~/.cache`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "wingspan" / "viewer"


class RunIndex:
    """The index of one run. `update` may be called by one thread at a time; reading is free."""

    def __init__(self, run: RunFolder, *, cache: Path, decode: Decode = lambda _: None) -> None:
        """`decode`: for prompts, which files hold as tokens alone; without it they cannot be searched."""
        self.run = run
        self._decode = decode
        identity = str(run.identity.resolve())
        digest = hashlib.blake2b(identity.encode("utf-8", "replace"), digest_size=6).hexdigest()
        self.file = cache / f"{run.identity.resolve().name}-{digest}.sqlite"
        self.progress: IndexProgress | None = None
        """None while nothing is read."""
        self._ensure()

    @contextmanager
    def connect(self) -> Iterator[sqlite3.Connection]:
        """A connection that only reads; it sees one state of the index. It has the
        function `fold` of `query.py`."""
        with closing(self._open()) as connection:
            connection.create_function("fold", 1, fold, deterministic=True)
            connection.execute("PRAGMA query_only = 1")
            connection.execute("BEGIN")
            yield connection

    def update(self) -> bool:
        """Read what is new in the run's files; returns whether anything was."""
        if not self.file.exists():
            self._ensure()  # somebody has deleted it
        with closing(self._open()) as connection:
            try:
                return _Update(self, connection, decode=self._decode).run()
            except _Overtaken:
                return True
            finally:
                self.progress = None

    def _ensure(self) -> None:
        """Make the file if there is none that can be used."""
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            if not self._is_usable():
                for suffix in ("", "-wal", "-shm"):
                    self.file.with_name(self.file.name + suffix).unlink(missing_ok=True)
                with closing(self._open()) as connection:
                    connection.execute("PRAGMA journal_mode = WAL")
                    connection.executescript(
                        f"BEGIN IMMEDIATE; {_TABLES} PRAGMA user_version = {VERSION}; COMMIT;"
                    )
            # Stays open: as the last connection is closed, SQLite cleans up, which takes longer than a query.
            self._connection = self._open()
            self._connection.execute("PRAGMA user_version").fetchone()
        except (OSError, sqlite3.OperationalError) as error:
            raise ConfigError(
                f"no index can be written to {self.file.parent} ({error}); "
                "name another folder by XDG_CACHE_HOME"
            ) from None

    def _is_usable(self) -> bool:
        if not self.file.exists():
            return False
        try:
            with closing(self._open()) as connection:
                return bool(connection.execute("PRAGMA user_version").fetchone()[0] == VERSION)
        except sqlite3.DatabaseError:
            return False

    def _open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.file, isolation_level=None, timeout=30, check_same_thread=False)
        connection.execute("PRAGMA synchronous = NORMAL")  # no fsync at each commit: it can be made anew
        return connection


class _Overtaken(Exception):
    """Another process reads the same file and is ahead: it has added what this one was about to add."""


class _Update:
    """One pass over the files of a run."""

    def __init__(self, index: RunIndex, connection: sqlite3.Connection, *, decode: Decode) -> None:
        self._index = index
        self._connection = connection
        self._decode = decode
        self._committed_s = time.monotonic()
        self._done = 0
        self._total = 0
        self._is_changed = False
        self._rows: dict[tuple[str, ...], int] = {}
        self._known_names: set[tuple[str, str]] = set()

    def run(self) -> bool:
        files = {file.key: (file, _stat(file.path)) for file in self._index.run.files()}
        self._begin()
        known_files = {
            row[0]: row[1:] for row in self._execute("SELECT key, path, inode, size, mtime_ns FROM files")
        }
        for key in known_files.keys() - files.keys():
            self._forget(key)
        changed_files = [
            (file, status)
            for key, (file, status) in files.items()
            if status
            and known_files.get(key) != (_text(file.path), status.st_ino, status.st_size, status.st_mtime_ns)
        ]
        self._total = sum(status.st_size for _, status in changed_files)
        for file, status in changed_files:
            self._read(file, status)
        self._read_annotations()
        if self._is_changed:
            self._count_change()
        self._execute("COMMIT")
        return self._is_changed

    def _begin(self) -> None:
        self._execute("BEGIN IMMEDIATE")

    def _execute(self, statement: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        return self._connection.execute(statement, values)

    def _read(self, file: TrajectoryFile, status: os.stat_result) -> None:
        try:
            stream = file.path.open("rb")
        except OSError:
            return  # gone since it was listed
        with stream:
            file_id, consumed_bytes, number = self._resume(file, status, stream)
            before = self._done
            for line in stream:
                if not line.endswith(b"\n") and not _is_whole(line):
                    break  # it is still being written
                number += 1
                if line.strip():
                    self._add(file_id, file, number=number, start=consumed_bytes, line=line.rstrip(b"\r\n"))
                consumed_bytes += len(line)
                self._done = before + consumed_bytes
                self._commit_if_due(file_id, consumed=consumed_bytes, number=number)
        # Its state before it was read: if something was written meanwhile, the next update finds a change.
        state = (status.st_ino, status.st_size, status.st_mtime_ns, consumed_bytes, number, file_id)
        self._execute(
            "UPDATE files SET inode = ?, size = ?, mtime_ns = ?, consumed = ?, lines = ? WHERE id = ?", state
        )
        self._done = before + status.st_size
        self._is_changed = True

    def _resume(self, file: TrajectoryFile, status: os.stat_result, stream: BinaryIO) -> tuple[int, int, int]:
        """The file's id, and the bytes and lines of it that are indexed; `stream` stands after them."""
        select = "SELECT id, path, inode, consumed, lines FROM files WHERE key = ?"
        row = self._execute(select, (file.key,)).fetchone()
        if row is not None:
            file_id, path, inode, consumed, lines = row
            if (path, inode) == (_text(file.path), status.st_ino) and self._is_prefix(
                file_id, consumed_bytes=consumed, stream=stream
            ):
                # A whole line may have lacked its end; only that may follow.
                has_end = _read_at(stream, max(0, consumed - 1), 1) in (b"", b"\n")
                following = _read_at(stream, consumed, 1)
                if has_end or following in (b"", b"\n"):
                    consumed += 0 if has_end else len(following)
                    stream.seek(consumed)
                    return file_id, consumed, lines
            self._forget(file.key)
        values = (file.key, _text(file.path), file.phase, status.st_ino)
        insert = "INSERT INTO files(key, path, phase, inode, consumed, lines) VALUES (?, ?, ?, ?, 0, 0)"
        file_id = self._execute(insert, values).lastrowid
        assert file_id is not None
        stream.seek(0)
        return file_id, 0, 0

    def _is_prefix(self, file_id: int, *, consumed_bytes: int, stream: BinaryIO) -> bool:
        """Whether the file still begins with what was indexed, as some of its lines tell."""
        if os.fstat(stream.fileno()).st_size < consumed_bytes:
            return False
        count = self._execute("SELECT count(*) FROM trajectories WHERE file = ?", (file_id,)).fetchone()[0]
        if count == 0:
            return bool(consumed_bytes == 0)
        select = (
            "SELECT start, length, digest FROM trajectories WHERE file = ? ORDER BY line LIMIT 1 OFFSET ?"
        )
        places = {(count - 1) * part // (CHECKED_LINES - 1) for part in range(CHECKED_LINES)}
        lines = [self._execute(select, (file_id, place)).fetchone() for place in places]
        select = "SELECT start, length, digest FROM unreadable WHERE file = ? LIMIT ?"
        lines += self._execute(select, (file_id, CHECKED_LINES))
        return all(digest_of(_read_at(stream, start, length)) == digest for start, length, digest in lines)

    def _add(self, file_id: int, file: TrajectoryFile, *, number: int, start: int, line: bytes) -> None:
        digest = digest_of(line)
        try:
            record = read_line(line)
        except UnreadableLine as error:
            values = (file_id, number, start, len(line), digest, str(error)[:_MAX_REASON])
            self._execute("INSERT INTO unreadable VALUES (?, ?, ?, ?, ?, ?)", values)
            return
        row = {
            "file": file_id,
            "line": number,
            "start": start,
            "length": len(line),
            "digest": digest,
            "item": self._item(record),
            "step": file.step,
            "round": file.round,
            "sample": record.sample_index,
            "reward": finite(record.reward),
            "success": record.success,
            "stop": record.stop_reason,
            "turns": len(record.turns),
            "tokens": record.tokens,
            "logprob": record.logprob,
            "unparsed": sum(turn.is_malformed for turn in record.turns),
            "oldest": min(record.versions, default=None),
            "newest": max(record.versions, default=None),
            "seconds": finite(record.seconds) or 0.0,
            "attempts": record.attempts,
            "error": record.error,
            "labels": self._facts(record.labels, kind="label"),
            "metrics": self._facts(record.metrics, kind="metric"),
            "prompt": self._prompt(record.prompt_ids),
            "images": record.num_images,
        }
        insert = f"INSERT INTO trajectories({', '.join(row)}) VALUES ({', '.join('?' * len(row))})"
        number = self._execute(insert, tuple(row.values())).lastrowid or 0
        insert = "INSERT INTO texts(rowid, response, observation) VALUES (?, ?, ?)"
        self._execute(insert, (number, record.response_text, record.observation_text))

    def _item(self, record: TrajectoryLine) -> int:
        item = record.item
        metadata = self._names(item.metadata, kind="metadata")
        return self._intern("items", item=item.item_id, env=item.env, part=item.part, metadata=metadata)

    def _facts(self, facts: Mapping[str, object], *, kind: str) -> int:
        tools = {
            key.removeprefix(TOOL_CALLS): 1 for key, calls in facts.items() if key.startswith(TOOL_CALLS)
        }
        if kind == "metric" and tools:
            self._names(tools, kind="tool")
        return self._intern("facts", json=self._names(facts, kind=kind))

    def _names(self, facts: Mapping[str, object], *, kind: str) -> str:
        """The plain values of `facts` as JSON; their names become keys of queries."""
        values = dict(sorted(_plain_values(facts)))
        for name in values:
            if (kind, name) not in self._known_names:
                self._known_names.add((kind, name))
                self._execute("INSERT OR IGNORE INTO names VALUES (?, ?)", (kind, name))
        return json.dumps(values)

    def _prompt(self, ids: Sequence[int]) -> int:
        text = repr(ids).encode()
        digest = hashlib.blake2b(text, digest_size=_HASH_BYTES).digest()
        row = self._execute("SELECT id FROM prompts WHERE hash = ?", (digest,)).fetchone()
        if row is not None:
            return int(row[0])
        number = self._execute("INSERT INTO prompts(hash) VALUES (?)", (digest,)).lastrowid or 0
        values = (number, self._decode(ids) or "")
        self._execute("INSERT INTO prompt_texts(rowid, prompt) VALUES (?, ?)", values)
        return number

    def _intern(self, table: str, **values: str) -> int:
        """The row of `table` that has `values`, made if there is none."""
        key = (table, *values.values())
        if key not in self._rows:
            if len(self._rows) >= _MAX_ROWS:
                self._rows.clear()
            where = " AND ".join(f"{column} = ?" for column in values)
            row = self._execute(f"SELECT id FROM {table} WHERE {where}", tuple(values.values())).fetchone()
            if row is None:
                marks = ", ".join("?" * len(values))
                insert = f"INSERT INTO {table}({', '.join(values)}) VALUES ({marks}) RETURNING id"
                row = self._execute(insert, tuple(values.values())).fetchone()
            self._rows[key] = row[0]
        return self._rows[key]

    def _forget(self, key: str) -> None:
        row = self._execute("SELECT id FROM files WHERE key = ?", (key,)).fetchone()
        for table, column in (("trajectories", "file"), ("unreadable", "file"), ("files", "id")):
            self._execute(f"DELETE FROM {table} WHERE {column} = ?", row)
        self._is_changed = True

    def _commit_if_due(self, file_id: int, *, consumed: int, number: int) -> None:
        if time.monotonic() - self._committed_s < BATCH_S:
            return
        # Without size and time, so that it counts as changed until all of it is read.
        update = "UPDATE files SET consumed = ?, lines = ?, size = NULL, mtime_ns = NULL WHERE id = ?"
        self._execute(update, (consumed, number, file_id))
        self._count_change()
        self._execute("COMMIT")
        self._index.progress = IndexProgress(done=self._done, total=self._total)
        self._committed_s = time.monotonic()
        self._begin()
        now = self._execute("SELECT consumed FROM files WHERE id = ?", (file_id,)).fetchone()
        if now != (consumed,):
            raise _Overtaken

    def _count_change(self) -> None:
        self._execute(
            "INSERT INTO state VALUES ('generation', 1) ON CONFLICT DO UPDATE SET value = value + 1"
        )

    def _read_annotations(self) -> None:
        path = self._index.run.folder / ANNOTATIONS
        status = _stat(path)
        mark = f"{status.st_ino} {status.st_size} {status.st_mtime_ns}" if status else ""
        row = self._execute("SELECT value FROM state WHERE name = 'annotations'").fetchone()
        if mark == (row[0] if row else ""):
            return
        self._execute("DELETE FROM annotations")
        for annotation in read_annotations(path):
            facts = (
                annotation.digest,
                annotation.file,
                annotation.label,
                annotation.note,
                annotation.written_at,
            )
            self._execute("INSERT OR REPLACE INTO annotations VALUES (?, ?, ?, ?, ?)", facts)
        self._execute("INSERT OR REPLACE INTO state VALUES ('annotations', ?)", (mark,))
        self._is_changed = True


def _plain_values(facts: Mapping[str, object]) -> Iterator[tuple[str, str | float | bool]]:
    """Texts, finite numbers and truth values as they are, everything else as text; without nulls."""
    for name, value in facts.items():
        if isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value)):
            yield name, value
        elif value is not None:
            yield name, json.dumps(value)


def _is_whole(line: bytes) -> bool:
    """Whether a line without an end is complete: no beginning of a JSON object is one itself."""
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _read_at(stream: BinaryIO, start: int, length: int) -> bytes:
    stream.seek(start)
    return stream.read(length)


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None


def _text(path: Path) -> str:
    return replace_surrogates(str(path), by="?")
