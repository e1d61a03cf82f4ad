"""What an LLM judge remembers: the replies that it received, and what it has spent of its budget.

It is an SQLite database: in memory, or in a file that processes share and that outlives them.
"""

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from envs.errors import BudgetSpent, ConfigError

_BUSY_S = 60.0
"""How long one process waits for others that write."""
_TABLES = (
    "create table if not exists replies (key text primary key, reply text)",
    "create table if not exists spent (name text primary key, requests int, tokens int)",
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Spending:
    """What one judge has spent."""

    requests: int = 0
    """Requests that were sent, including those that failed."""
    tokens: int = 0
    """Tokens as the endpoint reports them, prompts and replies together."""


class JudgeStore:
    """Replies by the hash of their request, and the budget of one judge.

    Any number of processes of one machine may use a file at the same time. Keep it on a local disk: network
    file systems lock badly.
    """

    def __init__(
        self,
        path: Path | None = None,
        *,
        name: str,
        max_requests: int | None = None,
        max_tokens: int | None = None,
        max_replies: int = 100_000,
    ) -> None:
        """`path`: None keeps everything in memory, with the `max_replies` replies that were used last.
        `name`: the judge's, by which a file counts what it spent."""
        self._path = path
        self._name = name
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._max_replies = max_replies
        self._lock = threading.Lock()
        self._database: sqlite3.Connection | None = None

    def check(self) -> None:
        """Create the file if it does not exist. Raises `ConfigError` if it cannot be used."""
        with self._lock:
            self._open()

    async def get(self, key: str) -> str | None:
        """The reply to a request; None if it is not known."""

        def read(database: sqlite3.Connection) -> str | None:
            row = database.execute("select reply from replies where key = ?", (key,)).fetchone()
            if row is not None and self._path is None:
                self._write(database, key, row[0])  # it becomes the newest
            return None if row is None else str(row[0])

        return await self._run(read)

    async def put(self, key: str, reply: str) -> None:
        """Keep a reply."""
        await self._run(lambda database: self._write(database, key, reply))

    async def take_request(self) -> None:
        """Count a request that is about to be sent; raises `BudgetSpent` if the budget does not allow it.

        Tokens are known only afterwards: concurrent requests may exceed the limit.
        """

        def take(database: sqlite3.Connection) -> None:
            spending = self._read_spending(database)
            for amount, limit, unit in (
                (spending.requests, self._max_requests, "requests"),
                (spending.tokens, self._max_tokens, "tokens"),
            ):
                if limit is not None and amount >= limit:
                    raise BudgetSpent(
                        f"the judge's budget of {limit} {unit} is spent ({spending.requests} requests, "
                        f"{spending.tokens} tokens so far); raise its max_{unit} and go on"
                    )
            self._add(database, Spending(requests=1))

        await self._run(take)

    async def add_tokens(self, num_tokens: int | None) -> None:
        """Count the tokens that a reply reports; raises `ConfigError` for None if tokens are limited."""
        if num_tokens is None and self._max_tokens is not None:
            raise ConfigError(
                "the judge reports no usage.total_tokens; limit max_requests instead of max_tokens"
            )
        if num_tokens:
            await self._run(lambda database: self._add(database, Spending(tokens=num_tokens)))

    async def read_spending(self) -> Spending:
        """The sum so far."""
        return await self._run(self._read_spending)

    def _write(self, database: sqlite3.Connection, key: str, reply: str) -> None:
        database.execute("insert or replace into replies values (?, ?)", (key, reply))
        if self._path is None:
            database.execute(
                "delete from replies where rowid in (select rowid from replies order by rowid "
                "limit max(0, (select count(*) from replies) - ?))",
                (self._max_replies,),
            )

    def _read_spending(self, database: sqlite3.Connection) -> Spending:
        query = "select requests, tokens from spent where name = ?"
        row = database.execute(query, (self._name,)).fetchone()
        return Spending() if row is None else Spending(*row)

    def _add(self, database: sqlite3.Connection, more: Spending) -> None:
        database.execute(
            "insert into spent values (?, ?, ?) on conflict (name) do update set "
            "requests = requests + excluded.requests, tokens = tokens + excluded.tokens",
            (self._name, more.requests, more.tokens),
        )

    async def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return await asyncio.to_thread(self._run_transaction, work)

    def _run_transaction(self, work: Callable[[sqlite3.Connection], T]) -> T:
        with self._lock:
            database = self._open()
            try:
                with database:  # commits, or rolls back after an exception
                    # `immediate` locks for writing: what was read must not have changed when it is written.
                    database.execute("begin immediate")
                    return work(database)
            except sqlite3.Error as error:
                raise ConfigError(f"the judge's file {self._path}: {error}; repair or remove it") from error

    def _open(self) -> sqlite3.Connection:
        if self._database is None:
            try:
                if self._path is not None:
                    self._path.parent.mkdir(parents=True, exist_ok=True)
                database = sqlite3.connect(
                    self._path or ":memory:", timeout=_BUSY_S, isolation_level=None, check_same_thread=False
                )
                with database:
                    # No write-ahead log: a process that turns it on does not wait for others that do.
                    database.execute("begin immediate")
                    for statement in _TABLES:
                        database.execute(statement)
            except (sqlite3.Error, OSError) as error:
                raise ConfigError(
                    f"the judge's file {self._path} cannot be used: {error}; name another"
                ) from error
            self._database = database
        return self._database
