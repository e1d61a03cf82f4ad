"""What an LLM judge keeps: replies that it has had, and what it may still spend.

In memory, or in a file that processes share and that outlives them.
"""

import asyncio
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from envs.errors import BudgetSpent, ConfigError

_BUSY_S = 60.0
"""How long one process waits for others that write."""

T = TypeVar("T")


class Cache(Protocol):
    """Replies by the hash of their request. Another store (Redis) is another of these."""

    async def get(self, key: str) -> str | None:
        """The reply; None where it is not known."""
        ...

    async def put(self, key: str, reply: str) -> None:
        """Keep a reply."""
        ...


class MemoryCache:
    """The last `most` replies that were asked for, in this process."""

    def __init__(self, most: int = 100_000) -> None:
        self._most = most
        self._replies: OrderedDict[str, str] = OrderedDict()

    async def get(self, key: str) -> str | None:
        if key in self._replies:
            self._replies.move_to_end(key)
        return self._replies.get(key)

    async def put(self, key: str, reply: str) -> None:
        self._replies[key] = reply
        self._replies.move_to_end(key)
        while len(self._replies) > self._most:
            self._replies.popitem(last=False)


@dataclass(frozen=True, slots=True)
class Spending:
    """By one judge."""

    requests: int = 0
    """Sent, those that failed included."""
    tokens: int = 0
    """As the endpoint reports them, prompts and replies together."""


class Ledger(Protocol):
    """Where what was spent is written down."""

    async def add(
        self, more: Spending, *, below: tuple[int | None, int | None] = (None, None)
    ) -> Spending | None:
        """The sum with `more`; None, and nothing is added, where the sum so far is not `below` these numbers
        of requests and of tokens. None is no limit."""
        ...

    async def read(self) -> Spending:
        """The sum so far."""
        ...


class MemoryLedger:
    """Of this process."""

    def __init__(self) -> None:
        self._spending = Spending()

    async def add(
        self, more: Spending, *, below: tuple[int | None, int | None] = (None, None)
    ) -> Spending | None:
        if not _is_below(self._spending, below):
            return None
        self._spending = Spending(
            self._spending.requests + more.requests, self._spending.tokens + more.tokens
        )
        return self._spending

    async def read(self) -> Spending:
        return self._spending


class JudgeFile:
    """A file of replies and of what was spent: a `Cache` and, by a judge's name, a `Ledger`.

    Any number of processes of one machine may use it at the same time. It is an SQLite database; keep it on a
    disk of the machine's own, for file systems of a network lock badly.
    """

    def __init__(self, path: Path, *, name: str) -> None:
        """`name`: whose spending it is."""
        self._path = path
        self._name = name
        self._lock = threading.Lock()
        self._database: sqlite3.Connection | None = None

    def check(self) -> None:
        """Make the file where there is none. Raises `ConfigError` where it cannot be used."""
        with self._lock:
            self._open()

    async def get(self, key: str) -> str | None:
        row = await self._ask(
            lambda db: db.execute("select reply from replies where key = ?", (key,)).fetchone()
        )
        return None if row is None else str(row[0])

    async def put(self, key: str, reply: str) -> None:
        await self._ask(lambda db: db.execute("insert or replace into replies values (?, ?)", (key, reply)))

    async def add(
        self, more: Spending, *, below: tuple[int | None, int | None] = (None, None)
    ) -> Spending | None:
        """See `Ledger`; processes that ask at the same time are told one after the other."""

        def work(database: sqlite3.Connection) -> Spending | None:
            spending = self._spending(database)
            if not _is_below(spending, below):
                return None
            spending = Spending(spending.requests + more.requests, spending.tokens + more.tokens)
            row = (self._name, spending.requests, spending.tokens)
            database.execute("insert or replace into spent values (?, ?, ?)", row)
            return spending

        return await self._ask(work)

    async def read(self) -> Spending:
        return await self._ask(self._spending)

    def _spending(self, database: sqlite3.Connection) -> Spending:
        query = "select requests, tokens from spent where name = ?"
        row = database.execute(query, (self._name,)).fetchone()
        return Spending() if row is None else Spending(*row)

    async def _ask(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return await asyncio.to_thread(self._done, work)

    def _done(self, work: Callable[[sqlite3.Connection], T]) -> T:
        with self._lock:
            database = self._open()
            try:
                # At once for writing: what was read must not have changed when it is written.
                database.execute("begin immediate")
                try:
                    result = work(database)
                except BaseException:
                    database.execute("rollback")
                    raise
                database.execute("commit")
            except sqlite3.Error as error:
                raise ConfigError(f"the judge's file {self._path}: {error}; mend or remove it") from error
            return result

    def _open(self) -> sqlite3.Connection:
        if self._database is None:
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                database = sqlite3.connect(
                    self._path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
                )
                # No write-ahead log: who turns it on does not wait for others who do.
                database.execute("begin immediate")
                database.execute("create table if not exists replies (key text primary key, reply text)")
                database.execute(
                    "create table if not exists spent (name text primary key, requests int, tokens int)"
                )
                database.execute("commit")
            except (sqlite3.Error, OSError) as error:
                raise ConfigError(
                    f"the judge's file {self._path} cannot be used: {error}; name another"
                ) from error
            self._database = database
        return self._database


class Budget:
    """Holds requests and tokens against what may be spent."""

    def __init__(
        self, *, max_requests: int | None, max_tokens: int | None, ledger: Ledger | None = None
    ) -> None:
        """`ledger`: of this process by default."""
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._ledger = MemoryLedger() if ledger is None else ledger

    async def read_spending(self) -> Spending:
        """The sum so far."""
        return await self._ledger.read()

    async def take_request(self) -> None:
        """Count one that is about to be sent; raises `BudgetSpent` where it may not be.

        Tokens are known afterwards only: requests under way at the same time may go beyond.
        """
        limits = (self._max_requests, self._max_tokens)
        if await self._ledger.add(Spending(requests=1), below=limits) is not None:
            return
        spending = await self._ledger.read()
        for so_far, most, unit in (
            (spending.requests, self._max_requests, "requests"),
            (spending.tokens, self._max_tokens, "tokens"),
        ):
            if most is not None and so_far >= most:
                raise BudgetSpent(
                    f"the judge's budget of {most} {unit} is spent ({spending.requests} requests, "
                    f"{spending.tokens} tokens so far); raise its max_{unit} and go on"
                )

    async def add_tokens(self, num_tokens: int | None) -> None:
        """Count what a reply says it took; raises `ConfigError` for none where tokens are limited."""
        if num_tokens is None and self._max_tokens is not None:
            raise ConfigError(
                "the judge reports no usage.total_tokens; limit max_requests instead of max_tokens"
            )
        if num_tokens:
            await self._ledger.add(Spending(tokens=num_tokens))


def _is_below(spending: Spending, limits: tuple[int | None, int | None]) -> bool:
    return all(
        most is None or so_far < most
        for so_far, most in zip((spending.requests, spending.tokens), limits, strict=True)
    )
