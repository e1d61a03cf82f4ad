"""The language in which trajectories are searched: one line of conditions that all hold.

    step:10..20 depth:3 success:false turns>8 "could not find" -stop:max_turns

A condition is `key:value`, `key:a,b` (any of them), `key:low..high` (both included, either may be missing),
`key>value` (also `>=`, `<`, `<=`), or a text. `-` before a condition negates it. Keys, values and texts with
spaces are quoted; `""` within quotes is a quote. A text occurs in what the policy wrote, in an observation,
in the prompt, in an annotation's note, or in the item's id; `response:`, `observation:` and `prompt:` search
one of these. A text is words in their order, without regard to case and punctuation; `*` at its end continues
the last word.

`parse_query` knows the form, `compile_query` the keys: those of `KEYS`, and the metadata, labels and metrics
that a run's trajectories have.
"""

import math
import re
import sqlite3
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from envs.errors import ConfigError, suggest
from tasks.runs.lines import TOOL_CALLS

MAX_CONDITIONS = 50
KEYS: Mapping[str, str] = {
    "step": "training step",
    "round": "round whose quick evaluation it is of",
    "phase": 'train, "quick evaluation", evaluation, rollout or fork',
    "file": "file of trajectories, e.g. step_0003",
    "item": "item id",
    "env": "environment",
    "part": "part of the pipeline's data",
    "sample": "index in the group",
    "success": "true or false",
    "reward": "reward of the episode",
    "stop": "why it stopped",
    "error": "class of the error of a dropped episode",
    "turns": "number of turns",
    "tokens": "tokens that the policy sampled",
    "logprob": "mean log-prob of the sampled tokens",
    "unparsed": "turns not in the agent's format",
    "version": "policy version of any turn",
    "seconds": "duration of the episode",
    "attempts": "1 + retries",
    "tool": "a tool that was called",
    "images": "number of images",
    "label": "label of an annotation",
    "has": "note or label",
    "response": "text of the policy",
    "observation": "text of an observation",
    "prompt": "text of the prompt",
}
"""Keys that every run has, with what they mean."""
_NUMBERS = {
    "step", "round", "sample", "reward", "turns", "tokens", "logprob", "unparsed", "seconds", "attempts",
    "images",
}  # fmt: skip
_SCOPES = ("", "response", "observation", "prompt")
"""Keys of what a text occurs in; empty for a text without a key."""
_TEXTS = {
    # Of each file and each item once, not of each trajectory.
    "phase": "t.file IN (SELECT id FROM files WHERE fold(phase) = fold(?))",
    "file": "t.file IN (SELECT id FROM files WHERE fold(key) = fold(?))",
    "item": "t.item IN (SELECT id FROM items WHERE fold(item) = fold(?))",
    "env": "t.item IN (SELECT id FROM items WHERE fold(env) = fold(?))",
    "part": "t.item IN (SELECT id FROM items WHERE fold(part) = fold(?))",
    "stop": "t.stop = ? COLLATE NOCASE",
}
_KINDS = ("metadata", "label", "metric")
"""A name that several of these have means the first one."""
_NO_TEXTS = "('integer', 'real', 'null')"
"""Types of JSON, as SQLite names them."""
_ANNOTATED = "(t.digest, f.key) IN (SELECT digest, file FROM annotations"
_QUOTED = r'"(?:[^"]|"")*+"'
_PATTERN = re.compile(
    rf"""(?P<negated>-)?
        (?: (?P<key>{_QUOTED}|[^\s":<>=-][^\s":<>=]*) (?P<op>>=|<=|[:<>=]) (?P<values>(?:{_QUOTED}|[^\s"])+)
          | (?P<quoted>{_QUOTED})(?P<star>\*)? | (?P<word>\S+) )""",
    re.VERBOSE,
)
_VALUES = re.compile(rf'(?P<quoted>{_QUOTED})(?P<star>\*)?|(?P<bare>[^,"]+)')


class InvalidQuery(ConfigError):
    """The text of a query is not in the language; one line says what is wrong, and what there is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One condition of a query."""

    key: str
    """Empty for a text."""
    op: str
    """`:`, `>`, `>=`, `<` or `<=`."""
    values: tuple[str, ...]
    is_negated: bool = False


@dataclass(frozen=True, slots=True)
class Where:
    """A condition of SQL on trajectories `t`, their files `f` and items `i`, and its parameters."""

    sql: str
    values: tuple[object, ...] = ()


def parse_query(text: str) -> list[Condition]:
    """The conditions of `text`. Raises `InvalidQuery`."""
    if text.count('"') % 2:
        raise InvalidQuery('a quote (") is not closed; close it')
    conditions = []
    for match in _PATTERN.finditer(text):
        if match["key"] is None:
            word = match["word"] if match["quoted"] is None else _unquote(match)
            conditions.append(Condition(key="", op=":", values=(word,), is_negated=bool(match["negated"])))
            continue
        values = tuple(
            part["bare"] if part["quoted"] is None else _unquote(part)
            for part in _VALUES.finditer(match["values"])
        )
        key = _without_quotes(match["key"]) if match["key"].startswith('"') else match["key"]
        op = ":" if match["op"] == "=" else match["op"]
        if not key or not values or (op != ":" and len(values) > 1):
            raise InvalidQuery(f"{match[0]!r} has no single value; write {match['key']}{op}VALUE")
        conditions.append(Condition(key=key, op=op, values=values, is_negated=bool(match["negated"])))
    if len(conditions) > MAX_CONDITIONS:
        raise InvalidQuery(f"a query has at most {MAX_CONDITIONS} conditions, not {len(conditions)}")
    return conditions


def compile_query(text: str, connection: sqlite3.Connection) -> Where:
    """What `text` asks of a run's index. Raises `InvalidQuery`, for an unknown key as well."""
    parts, values = ["1"], list[object]()
    for condition in parse_query(text):
        where = _compile(condition, connection)
        # NOT of an unknown value is unknown in SQL; here what has no value does not meet the condition.
        parts.append(f"NOT ifnull({where.sql}, 0)" if condition.is_negated else f"({where.sql})")
        values += where.values
    return Where(" AND ".join(parts), tuple(values))


def list_keys(connection: sqlite3.Connection) -> dict[str, list[str]]:
    """The names that the trajectories of an index have, by kind: `metadata`, `label`, `metric` and `tool`."""
    names: dict[str, list[str]] = {"metadata": [], "label": [], "metric": [], "tool": []}
    for kind, name in connection.execute("SELECT kind, name FROM names ORDER BY kind, name"):
        names[kind].append(name)
    return names


def fold(value: str | float | None) -> str | float | None:
    """The text by which a query compares `value`, regardless of case and of the form of accented letters;
    numbers and None are returned unchanged."""
    return unicodedata.normalize("NFC", value.casefold()) if isinstance(value, str) else value


def quote(text: str) -> str:
    """`text` as a query has it in quotes."""
    return '"' + text.replace('"', '""') + '"'


def find_key(kind: str, name: str, names: Mapping[str, Sequence[str]]) -> str:
    """The key of queries that means the `name` of a `kind`; `names`: as of `list_keys`."""
    first_kind = next(other for other in _KINDS if name in names[other])
    return name if first_kind == kind and name not in KEYS else f"{kind}.{name}"


def _unquote(match: re.Match[str]) -> str:
    return _without_quotes(match["quoted"]) + (match["star"] or "")


def _without_quotes(text: str) -> str:
    return text[1:-1].replace('""', '"')


def _compile(condition: Condition, connection: sqlite3.Connection) -> Where:
    key = condition.key
    if key in _SCOPES and condition.op == ":":
        return _any(condition.values, lambda value: _text(value, scope=key))
    if key in _NUMBERS:
        return _any(condition.values, lambda value: _number(f"t.{key}", condition, value))
    if key == "version":
        return _any(condition.values, lambda value: _version(condition, value))
    if condition.op == ":":
        if key in _TEXTS:
            return _any(condition.values, lambda value: Where(_TEXTS[key], (value,)))
        if key in _CHOICES:
            return _any(condition.values, _CHOICES[key])
    elif key in _TEXTS or key in _CHOICES or key in _SCOPES:
        raise InvalidQuery(f"{key!r} has no order; write {key}:VALUE")
    return _fact(condition, connection)


def _any(values: Sequence[str], compile_value: Callable[[str], Where]) -> Where:
    return _join([compile_value(value) for value in values])


def _join(wheres: Sequence[Where]) -> Where:
    """The condition that one of `wheres` holds."""
    return Where(
        "(" + " OR ".join(where.sql for where in wheres) + ")",
        tuple(value for where in wheres for value in where.values),
    )


def _number(column: str, condition: Condition, value: str) -> Where:
    low, high = _range(condition, value)
    if condition.op != ":":
        return Where(f"{column} {condition.op} ?", (low,))
    if ".." not in value:
        return Where(f"{column} = ?", (low,))
    return _between(f"{column} IS NOT NULL", (f"{column} <= ?", high), (f"{column} >= ?", low))


def _range(condition: Condition, value: str) -> tuple[float | None, float | None]:
    first, dots, last = value.partition("..")
    low: float | None = None
    high: float | None = None
    with suppress(ValueError):
        low, high = (float(end) if end else None for end in (first, last))
    ends = [end for end in (low, high) if end is not None]
    if not ends or any(map(math.isnan, ends)) or (dots and condition.op != ":"):
        example = f"{condition.key}:3, {condition.key}:3..8 or {condition.key}>3"
        raise InvalidQuery(f"{condition.key}{condition.op}{value} needs a number; write e.g. {example}")
    return low, high


def _version(condition: Condition, value: str) -> Where:
    """Any turn's version; in between those of an episode, every version is taken to have a turn."""
    low, high = _range(condition, value)
    if condition.op != ":":
        column = "t.newest" if condition.op.startswith(">") else "t.oldest"
        return Where(f"{column} {condition.op} ?", (low,))
    high = high if ".." in value else low
    return _between("t.oldest IS NOT NULL", ("t.newest >= ?", low), ("t.oldest <= ?", high))


def _between(exists: str, *bounds: tuple[str, float | None]) -> Where:
    """`exists`, and each of `bounds` that has a limit."""
    limits = {sql: limit for sql, limit in bounds if limit is not None}
    return Where(f"({' AND '.join([exists, *limits])})", tuple(limits.values()))


def _success(value: str) -> Where:
    if value.lower() not in ("true", "false"):
        raise InvalidQuery(f"success:{value} is neither true nor false; write success:true or success:false")
    return Where("t.success = ?", (int(value.lower() == "true"),))


def _error(value: str) -> Where:
    whole, cause = "fold(t.error) = fold(?)", "fold(substr(t.error, 1, ?)) = fold(?)"
    return Where(f"(t.error IS NOT NULL AND ({whole} OR {cause}))", (value, len(value) + 1, f"{value}:"))


def _tool(value: str) -> Where:
    start, rest = f"substr(e.key, 1, {len(TOOL_CALLS)}) = ?", f"substr(e.key, {len(TOOL_CALLS) + 1})"
    test = f"{start} AND e.value > 0 AND fold({rest}) = fold(?)"  # `fold`, which is slow, comes last
    return _among("t.metrics", "facts", "json", test, (TOOL_CALLS, value))


def _label(value: str) -> Where:
    return Where(f"{_ANNOTATED} WHERE fold(label) = fold(?))", (value,))


def _has(value: str) -> Where:
    if value not in ("note", "label"):
        raise InvalidQuery(f"has:{value} is not known; write has:note or has:label")
    return Where(f"{_ANNOTATED} WHERE {value} != '')")


_CHOICES: Mapping[str, Callable[[str], Where]] = {
    "success": _success,
    "error": _error,
    "tool": _tool,
    "label": _label,
    "has": _has,
}


def _fact(condition: Condition, connection: sqlite3.Connection) -> Where:
    """A condition on metadata, a label or a metric; `metadata.KEY` and so on where a name is ambiguous."""
    names = list_keys(connection)
    kind, dot, name = condition.key.partition(".")
    kinds = [kind] if dot and name in names.get(kind, ()) and kind != "tool" else []
    if not kinds:
        name = condition.key
        kinds = [kind for kind in _KINDS if name in names[kind]]
    if not kinds:
        raise _unknown_key(condition.key, names)
    column, table, field = {
        "metadata": ("t.item", "items", "metadata"),
        "label": ("t.labels", "facts", "json"),
        "metric": ("t.metrics", "facts", "json"),
    }[kinds[0]]

    find_text = (
        f"SELECT 1 FROM {table} x, json_each(x.{field}) e"
        f" WHERE e.key = ? AND e.type NOT IN {_NO_TEXTS} LIMIT 1"
    )
    has_only_numbers = kinds[0] == "metric" or connection.execute(find_text, (name,)).fetchone() is None

    def compile_value(value: str) -> Where:
        test = _fact_value(condition, value, has_only_numbers=has_only_numbers)
        return _among(column, table, field, f"e.key = ? AND {test.sql}", (name, *test.values))

    return _any(condition.values, compile_value)


def _fact_value(condition: Condition, value: str, *, has_only_numbers: bool) -> Where:
    """`has_only_numbers`: the key, in this run; else a value that is no number is a text, even with dots."""
    alternatives = list[Where]()
    if condition.op == ":" and not has_only_numbers:
        alternatives.append(Where("(e.type = 'text' AND fold(e.value) = fold(?))", (value,)))
        if value.lower() in ("true", "false"):
            alternatives.append(Where("e.type = ?", (value.lower(),)))
    try:
        test = _number("e.value", condition, value)
        alternatives.append(Where(f"(e.type IN ('integer', 'real') AND {test.sql})", test.values))
    except InvalidQuery:
        if not alternatives:
            raise
    return _join(alternatives)


def _among(column: str, table: str, field: str, test: str, values: tuple[object, ...]) -> Where:
    select = f"SELECT x.id FROM {table} x, json_each(x.{field}) e WHERE {test}"
    return Where(f"{column} IN ({select})", values)


def _text(value: str, *, scope: str) -> Where:
    if not any(character.isalnum() for character in value):
        raise InvalidQuery(f"{value!r} has no letter and no digit to search for")
    # SQLite takes it apart as it took the texts; NUL would end it.
    phrase = quote(value.replace("\0", " ")) + ("*" if value.endswith("*") else "")
    in_texts = "t.id IN (SELECT rowid FROM texts WHERE texts MATCH ?)"
    in_prompt = "t.prompt IN (SELECT rowid FROM prompt_texts WHERE prompt_texts MATCH ?)"
    if scope == "prompt":
        return Where(in_prompt, (phrase,))
    if scope:
        return Where(in_texts, (f"{scope} : {phrase}",))
    in_note = f"{_ANNOTATED} WHERE instr(fold(note), fold(?)))"
    in_item = "t.item IN (SELECT id FROM items WHERE instr(fold(item), fold(?)))"
    prefix = value.rstrip("*")
    return Where(f"({in_texts} OR {in_prompt} OR {in_note} OR {in_item})", (phrase, phrase, prefix, prefix))


def _unknown_key(key: str, names: Mapping[str, Sequence[str]]) -> InvalidQuery:
    known_keys = [*KEYS, *names["metadata"], *names["label"], *names["metric"]]
    hint = suggest(key, known_keys) or f"keys are {', '.join(known_keys[:40])}. "
    return InvalidQuery(f'unknown key {key!r}; {hint}A text with a colon is quoted: "…"')
