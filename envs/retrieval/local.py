"""What retrievers over a corpus on disk share: the index is opened, and built if necessary, by the first
search."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from envs.retrieval.types import Passage


class Index(Protocol):
    """An open index."""

    version: str
    """Identifies everything that decides its results: method, corpus, model."""

    def search(self, queries: Sequence[str], *, top_k: int) -> list[list[Passage]]:
        """The best passages of each query; blocks."""


class LocalRetriever:
    """A `Retriever` over one corpus."""

    def __init__(self, open_index: Callable[[], Index]) -> None:
        """`open_index` builds the index first if necessary; blocks."""
        self._open_index = open_index
        self._lock = threading.Lock()
        self._index: Index | None = None

    async def version(self) -> str:
        return (await asyncio.to_thread(self._open_once)).version

    async def search(self, queries: Sequence[str], *, top_k: int) -> list[list[Passage]]:
        """Raises `ConfigError` for an invalid corpus or index, `MissingDependency`."""
        return await asyncio.to_thread(self.search_sync, queries, top_k=top_k)

    def search_sync(self, queries: Sequence[str], *, top_k: int) -> list[list[Passage]]:
        """`search`, for synchronous callers."""
        return self._open_once().search(queries, top_k=top_k) if queries else []

    async def close(self) -> None:
        """Do nothing: the index stays open for other episodes."""

    def _open_once(self) -> Index:
        with self._lock:
            if self._index is None:
                self._index = self._open_index()
            return self._index
