"""Lists of an index: trajectories, groups, the values to filter by, an item over the training.

Every function takes a connection of `RunIndex.connect`, and the text of a query (`query.py`).
"""

import json
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agents.types import StopReason
from tasks.runs.lines import TOOL_CALLS, exact_integer
from tasks.viewer.query import InvalidQuery, Where, compile_query, find_key, fold, list_keys

ORDER = "t.step IS NULL, t.step, t.round IS NULL, t.round, t.file, t.line"
"""Training by step, quick evaluations by round, then evaluations; as in the files."""
SORTS = {
    key: f"t.{key}"
    for key in ("step", "reward", "turns", "tokens", "logprob", "unparsed", "seconds", "sample")
} | {"item": "i.item", "version": "t.newest", "stop": "t.stop", "success": "t.success"}
"""What lists are sorted by; with `-` before it, descending."""
GROUP_SORTS = {
    "step": "g.step",
    "item": "i.item",
    "samples": "g.samples",
    "success": "g.successes * 1.0 / g.samples",
    "reward": "g.reward",
    "spread": "g.spread",
    "turns": "g.turns",
}
MAX_VALUES = 30
"""Distinct values of a key that is offered to filter by; one with more is an identifier."""
MAX_HISTORY = 5000
MAX_UNREADABLE = 20
"""Lines that are no trajectories, of which address and reason are shown."""
_IDENTIFIERS = ("parent_digest", "forked_at")
"""Labels of forks by which nobody filters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryRow:
    """A trajectory in a list."""

    address: str
    """`FILE:LINE`, e.g. `step_0003:5`: its file and its line, counted from 1."""
    step: int | None
    round: int | None
    """The number of the round, from 1."""
    phase: str
    item: str
    env: str
    part: str
    metadata: Mapping[str, object]
    labels: Mapping[str, object]
    sample: int
    reward: float | None
    success: bool
    stop: str
    turns: int
    tokens: int
    logprob: float | None
    unparsed: int
    versions: tuple[int, int] | None
    seconds: float
    error: str | None
    images: int
    label: str
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRow:
    """The samples of one item in one step or evaluation that a query selects."""

    first: str
    """The address of its first sample, which names the group."""
    step: int | None
    round: int | None
    phase: str
    item: str
    metadata: Mapping[str, object]
    labels: Mapping[str, object]
    samples: int
    """Those that count: the means and the spread are of them."""
    failed: int
    """Those that ended with an error, which training drops."""
    successes: int
    reward: float | None
    """Mean."""
    spread: float | None
    """Largest minus smallest reward; 0 gives no advantages."""
    turns: float | None
    """Mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facet:
    """A key with its values among the trajectories of a query."""

    key: str
    values: Sequence[tuple[str, int, int]]
    """Value, trajectories that have it, and those of them that succeeded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """Where a trajectory lies in its file."""

    path: str
    line: int
    """The number of the line, from 1."""
    step: int | None
    start: int
    length: int
    digest: str


_COLUMNS = (
    "t.id, t.oldest, t.newest, f.key || ':' || t.line, t.step, t.round, f.phase, i.item, i.env, i.part, "
    "i.metadata, l.json, t.sample, t.reward, t.success, t.stop, t.turns, t.tokens, t.logprob, t.unparsed, "
    "t.seconds, t.error, t.images, ifnull(a.label, ''), ifnull(a.note, '')"
)
"""Id and policy versions of a trajectory, and the other fields of a `TrajectoryRow` in their order."""
_JOINS = (
    "trajectories t JOIN files f ON f.id = t.file JOIN items i ON i.id = t.item "
    "JOIN facts l ON l.id = t.labels "
    "LEFT JOIN annotations a ON a.digest = t.digest AND a.file = f.key"
)


def count_trajectories(connection: sqlite3.Connection, query: str = "") -> int:
    """How many trajectories a query selects."""
    where = compile_query(query, connection)
    select = f"SELECT count(*) FROM {_tables(where.sql)} WHERE {where.sql}"
    row = connection.execute(select, where.values).fetchone()
    return int(row[0])


def list_trajectories(
    connection: sqlite3.Connection, query: str = "", *, sort: str = "", offset: int = 0, limit: int = 100
) -> list[TrajectoryRow]:
    """Some of the trajectories that a query selects, in the order of `SORTS`. Raises `InvalidQuery`."""
    where = compile_query(query, connection)
    select = f"{_select_ids(where, sort)} LIMIT ? OFFSET ?"
    numbers = [row[0] for row in connection.execute(select, (*where.values, limit, offset))]
    return _rows(connection, numbers)


def neighbours(connection: sqlite3.Connection, query: str, *, sort: str, address: str) -> dict[str, object]:
    """The trajectories before and after `address` in a list, with its position (from 1); None where there
    is none."""
    where = compile_query(query, connection)
    numbers = [row[0] for row in connection.execute(_select_ids(where, sort), where.values)]
    trajectory_id = _find(connection, address)
    if trajectory_id is None or trajectory_id not in numbers:
        return {"position": None, "total": len(numbers), "before": None, "after": None}
    position = numbers.index(trajectory_id)
    addresses = {
        name: _rows(connection, [numbers[place]])[0].address if 0 <= place < len(numbers) else None
        for name, place in (("before", position - 1), ("after", position + 1))
    }
    return {"position": position + 1, "total": len(numbers), **addresses}


def list_groups(
    connection: sqlite3.Connection, query: str = "", *, sort: str = "", offset: int = 0, limit: int = 100
) -> tuple[int, list[GroupRow]]:
    """How many groups the trajectories of a query belong to, and some of them. Raises `InvalidQuery`."""
    where = compile_query(query, connection)
    counts = f"FILTER (WHERE t.stop != '{StopReason.ERROR}')"
    group_filter = (
        "SELECT t.file, t.item, t.labels, min(t.line) AS line, t.step AS step, t.round AS round, "
        f"count(*) {counts} AS samples, count(*) AS all_samples, total(t.success) {counts} AS successes, "
        f"avg(t.reward) {counts} AS reward, max(t.reward) {counts} - min(t.reward) {counts} AS spread, "
        f"avg(t.turns) {counts} AS turns "
        f"FROM {_tables(where.sql)} WHERE {where.sql} GROUP BY t.file, t.item, t.labels"
    )
    select = (
        "SELECT f.key || ':' || g.line, g.step, g.round, f.phase, i.item, i.metadata, l.json, g.samples, "
        "g.all_samples - g.samples, CAST(g.successes AS INTEGER), g.reward, g.spread, g.turns "
        f"FROM ({group_filter}) g JOIN files f ON f.id = g.file JOIN items i ON i.id = g.item "
        "JOIN facts l ON l.id = g.labels "
        f"ORDER BY {_order(sort, GROUP_SORTS)}g.step IS NULL, g.step, g.round IS NULL, g.round, "
        "g.file, g.line LIMIT ? OFFSET ?"
    )
    total = connection.execute(f"SELECT count(*) FROM ({group_filter})", where.values).fetchone()[0]
    names = list(GroupRow.__dataclass_fields__)
    rows = connection.execute(select, (*where.values, limit, offset))
    return int(total), [GroupRow(**_read_values(names, row)) for row in rows]


def siblings(connection: sqlite3.Connection, address: str) -> list[TrajectoryRow]:
    """The group of a trajectory, itself included: the samples of its item in the same file with the same
    labels. Empty if there is no such trajectory."""
    trajectory_id = _find(connection, address)
    select = (
        "SELECT s.id FROM trajectories t JOIN trajectories s "
        "ON s.file = t.file AND s.item = t.item AND s.labels = t.labels WHERE t.id = ? "
        "ORDER BY s.sample, s.line"
    )
    return _rows(connection, [row[0] for row in connection.execute(select, (trajectory_id,))])


def item_history(connection: sqlite3.Connection, item: str) -> list[TrajectoryRow]:
    """All trajectories of an item, at most `MAX_HISTORY`: in the evaluation before training, in training by
    step, in quick evaluations by round, then the others."""
    select = f"SELECT t.id FROM {_tables('i.item')} WHERE i.item = ? ORDER BY {ORDER} LIMIT ?"
    rows = _rows(connection, [row[0] for row in connection.execute(select, (item, MAX_HISTORY))])
    return sorted(rows, key=lambda row: (row.phase, row.labels.get("policy")) != ("evaluation", "before"))


def facets(connection: sqlite3.Connection, query: str = "") -> list[Facet]:
    """The keys by which the trajectories of a query can be filtered further."""
    where = compile_query(query, connection)
    connection.execute("DROP TABLE IF EXISTS temp.selected")
    connection.execute("PRAGMA query_only = 0")
    connection.execute(
        "CREATE TEMP TABLE selected AS SELECT t.success, t.stop, t.error, t.item, t.labels, t.metrics, "
        f"t.round, t.file, t.digest, f.key FROM {_tables(where.sql, 'f.key')} WHERE {where.sql}",
        where.values,
    )
    connection.execute("PRAGMA query_only = 1")
    names = list_keys(connection)
    selects = {
        "success": "SELECT CASE success WHEN 1 THEN 'true' ELSE 'false' END, count(*), sum(success) "
        "FROM selected GROUP BY 1",
        "stop": "SELECT stop, count(*), sum(success) FROM selected GROUP BY 1",
        "phase": _by("file", "files", "phase"),
        "round": "SELECT round, count(*), sum(success) FROM selected WHERE round IS NOT NULL GROUP BY 1",
        "env": _by("item", "items", "env"),
        "part": _by("item", "items", "part"),
        "label": "SELECT label, count(*), sum(success) FROM selected s JOIN annotations a "
        "ON a.digest = s.digest AND a.file = s.key "
        "WHERE label != '' GROUP BY 1",
        "error": "SELECT substr(error, 1, instr(error || ':', ':') - 1), count(*), sum(success) "
        "FROM selected WHERE error IS NOT NULL GROUP BY 1",
    }
    result = [Facet(key=key, values=_values(connection.execute(select))) for key, select in selects.items()]
    metadata = {find_key("metadata", name, names): name for name in names["metadata"]}
    result += _fact_facets(connection, "item", "items", "metadata", metadata)
    labels = {find_key("label", name, names): name for name in names["label"] if name not in _IDENTIFIERS}
    result += _fact_facets(connection, "labels", "facts", "json", labels)
    result.append(Facet(key="tool", values=_tools(connection)))
    return [facet for facet in result if 1 < len(facet.values) <= MAX_VALUES or _is_telling(facet)]


def find_location(connection: sqlite3.Connection, address: str) -> Location | None:
    """Where the trajectory `address` lies; None if there is none."""
    select = (
        "SELECT f.path, t.line, t.step, t.start, t.length, t.digest FROM trajectories t "
        "JOIN files f ON f.id = t.file WHERE t.id = ?"
    )
    row = connection.execute(select, (_find(connection, address),)).fetchone()
    return row and Location(**dict(zip(Location.__dataclass_fields__, row, strict=True)))


def find_row(connection: sqlite3.Connection, address: str) -> TrajectoryRow | None:
    """The trajectory `address` as in a list; None if there is none."""
    trajectory_id = _find(connection, address)
    return None if trajectory_id is None else _rows(connection, [trajectory_id])[0]


def count_by_step(connection: sqlite3.Connection) -> list[tuple[int, int, int]]:
    """Step, trajectories, and those of them that succeeded, of the training's trajectories."""
    select = (
        "SELECT step, count(*), sum(success) FROM trajectories WHERE step IS NOT NULL GROUP BY 1 ORDER BY 1"
    )
    return connection.execute(select).fetchall()


def count_by_round(connection: sqlite3.Connection) -> list[tuple[int, int, int]]:
    """Round (from 1), trajectories, and those of them that succeeded, of the quick evaluations."""
    select = (
        "SELECT round, count(*), sum(success) FROM trajectories WHERE round IS NOT NULL GROUP BY 1 ORDER BY 1"
    )
    return connection.execute(select).fetchall()


def generation(connection: sqlite3.Connection) -> int:
    """A number that grows with every change of the index."""
    row = connection.execute("SELECT value FROM state WHERE name = 'generation'").fetchone()
    return int(row[0]) if row else 0


def unreadable_lines(connection: sqlite3.Connection) -> tuple[int, list[tuple[str, str]]]:
    """How many lines are no trajectories, and some of them: address and reason."""
    total = connection.execute("SELECT count(*) FROM unreadable").fetchone()[0]
    select = (
        "SELECT f.key || ':' || u.line, u.reason FROM unreadable u JOIN files f ON f.id = u.file "
        "ORDER BY f.key, u.line LIMIT ?"
    )
    return int(total), connection.execute(select, (MAX_UNREADABLE,)).fetchall()


def _find(connection: sqlite3.Connection, address: str) -> int | None:
    key, _, line = address.rpartition(":")
    if not line.isdecimal() or len(line) > 15:
        return None
    select = "SELECT t.id FROM trajectories t JOIN files f ON f.id = t.file WHERE f.key = ? AND t.line = ?"
    row = connection.execute(select, (key, int(line))).fetchone()
    return None if row is None else int(row[0])


def _rows(connection: sqlite3.Connection, numbers: Sequence[int]) -> list[TrajectoryRow]:
    marks = ", ".join("?" * len(numbers))
    select = f"SELECT {_COLUMNS} FROM {_JOINS} WHERE t.id IN ({marks})"
    names = [name for name in TrajectoryRow.__dataclass_fields__ if name != "versions"]
    rows = {}
    for number, oldest, newest, *row in connection.execute(select, tuple(numbers)):
        values = _read_values(names, row) | {"versions": None if oldest is None else (oldest, newest)}
        rows[number] = TrajectoryRow(**values | {"success": bool(values["success"])})
    return [rows[number] for number in numbers]


def _select_ids(where: Where, sort: str) -> str:
    order = _order(sort, SORTS) + ORDER
    return f"SELECT t.id FROM {_tables(where.sql, order)} WHERE {where.sql} ORDER BY {order}"


def _tables(*parts: str) -> str:
    """What parts of a statement read from: files and items only if they name them, for a join costs time."""
    joins = {"f": " JOIN files f ON f.id = t.file", "i": " JOIN items i ON i.id = t.item"}
    needed_joins = [join for name, join in joins.items() if re.search(rf"\b{name}\.", " ".join(parts))]
    return "trajectories t" + "".join(needed_joins)


def _read_values(names: Sequence[str], row: Sequence[Any]) -> dict[str, Any]:
    """A row by the `names` of its columns, with its facts as objects."""
    values = dict(zip(names, row, strict=True))
    for name in ("metadata", "labels"):
        values[name] = json.loads(values[name], parse_int=exact_integer)
    return values


def _order(sort: str, sorts: Mapping[str, str]) -> str:
    """The beginning of an ORDER BY; missing values come last either way."""
    if not sort:
        return ""
    column = sorts.get(sort.removeprefix("-"))
    if column is None:
        raise InvalidQuery(f"cannot sort by {sort!r}; sort by {', '.join(sorts)}, or -KEY for descending")
    return f"{column} IS NULL, {column} {'DESC' if sort.startswith('-') else 'ASC'}, "


def _by(column: str, table: str, value: str) -> str:
    return (
        f"SELECT x.{value}, sum(s.count), sum(s.successes) FROM (SELECT {column}, count(*) AS count, "
        f"sum(success) AS successes FROM selected GROUP BY 1) s JOIN {table} x ON x.id = s.{column} "
        f"WHERE x.{value} != '' GROUP BY 1"
    )


def _values(rows: Iterator[Sequence[Any]] | sqlite3.Cursor) -> list[tuple[str, int, int]]:
    """Values that one condition selects, such as 1.5 and the text "1.5", are one.

    Nothing is read after `MAX_VALUES` + 1 of them: so many are no filter.
    """
    values: dict[str | float | None, tuple[str, int, int]] = {}
    for value, count, successes in rows:
        if len(values) > MAX_VALUES:
            break
        first, total, solved = values.get(fold(str(value)), (str(value), 0, 0))
        values[fold(str(value))] = (first, total + int(count), solved + int(successes))
    return list(values.values())


def _fact_facets(
    connection: sqlite3.Connection, column: str, table: str, field: str, names: Mapping[str, str]
) -> Iterator[Facet]:
    """`names`: those of facts, by the key of queries that means each."""
    counts = f"SELECT {column} AS id, count(*) AS count, sum(success) AS successes FROM selected GROUP BY 1"
    select = (
        f"SELECT CASE e.type WHEN 'true' THEN 'true' WHEN 'false' THEN 'false' ELSE e.value END AS v, "
        f"sum(s.count), sum(s.successes) FROM ({counts}) s JOIN {table} x USING (id), json_each(x.{field}) e "
        f"WHERE e.key = ? GROUP BY 1 ORDER BY typeof(v) = 'text', v"
    )
    for key, name in names.items():
        yield Facet(key=key, values=_values(connection.execute(select, (name,))))


def _tools(connection: sqlite3.Connection) -> list[tuple[str, int, int]]:
    counts = "SELECT metrics AS id, count(*) AS count, sum(success) AS successes FROM selected GROUP BY 1"
    select = (
        f"SELECT substr(e.key, {len(TOOL_CALLS) + 1}), sum(s.count), sum(s.successes) FROM ({counts}) s "
        "JOIN facts x USING (id), json_each(x.json) e "
        f"WHERE substr(e.key, 1, {len(TOOL_CALLS)}) = ? AND e.value > 0 GROUP BY 1"
    )
    return _values(connection.execute(select, (TOOL_CALLS,)))


def _is_telling(facet: Facet) -> bool:
    """Whether a key with a single value is worth a line all the same."""
    return len(facet.values) == 1 and facet.key in ("success", "stop", "tool", "label", "error")
