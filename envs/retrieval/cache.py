"""Search results cached in Redis: shared by processes and runs, bounded in size.

A key covers everything that decides the result: the retriever's version (method, corpus, model), `top_k` and
the query. Results of a retriever without a version are not cached, nor are empty ones. Without Redis,
searches go on uncached: one warning, and Redis is tried again later.
"""

import asyncio
import atexit
import hashlib
import json
import logging
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from envs.errors import ConfigError, MissingDependency, describe
from envs.redaction import register_url
from envs.requirements.detection import pip_install
from envs.retrieval.redis_server import EmbeddedServer, embedded_server
from envs.retrieval.types import Passage, Retriever

if TYPE_CHECKING:
    from redis.asyncio import Redis

T = TypeVar("T")

VARIABLE = "WINGSPAN_REDIS"
OFF = "off"
"""Value of the variable that disables the cache."""
PREFIX = "wingspan:search:"
TIMEOUT_S = 2.0
"""The time limit of connecting, and of each command."""
CONNECTIONS = 16
"""The most connections per event loop; hundreds of episodes share them."""
EXPIRY_S = 30 * 24 * 3600
"""Lifetime of a result; it bounds servers whose memory limit is not ours too."""
RETRY_S = 5.0
"""Seconds after a failure before Redis is tried again."""

_log = logging.getLogger(__name__)


class SearchCache:
    """JSON values by key; never raises if Redis is unavailable."""

    def __init__(self, server: str | EmbeddedServer) -> None:
        """`server`: a redis-py URL, or a server that is started on first use."""
        self._server = server
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, Redis] = WeakKeyDictionary()
        self._retry_at = 0.0
        self._has_warned = False

    async def get(self, keys: Sequence[str]) -> list[Any]:
        """The values of `keys`, None for each that is missing."""
        values = await self._try(lambda redis: redis.mget([PREFIX + key for key in keys]))
        return [None if value is None else json.loads(value) for value in values or [None] * len(keys)]

    async def put(self, values: Mapping[str, object]) -> None:
        """Store JSON values."""

        async def send(redis: "Redis") -> None:
            pipeline = redis.pipeline(transaction=False)
            for key, value in values.items():
                pipeline.set(PREFIX + key, json.dumps(value), ex=EXPIRY_S)
            await pipeline.execute()

        await self._try(send)

    async def close(self) -> None:
        """Drop this event loop's connections. Idempotent."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.aclose()

    def forget_connections(self) -> None:
        """Drop those of all event loops, which have ended."""
        self._clients.clear()

    async def _try(self, use: "Callable[[Redis], Awaitable[T]]") -> T | None:
        """Return what `use` returns; None if Redis is unavailable."""
        if time.monotonic() < self._retry_at:
            return None
        try:
            from redis.exceptions import RedisError
        except ImportError:
            self._disable(f"the package redis is not installed; {pip_install('redis')}")
            return None
        try:
            return await use(await self._client())
        except (RedisError, OSError, TimeoutError, MissingDependency) as error:
            await self.close()
            self._disable(describe(error))
            return None

    async def _client(self) -> "Redis":
        from redis.asyncio import BlockingConnectionPool, Redis

        loop = asyncio.get_running_loop()
        if loop in self._clients:
            return self._clients[loop]
        server = self._server
        # Starting takes some milliseconds, and waits for other processes that start it.
        url = server if isinstance(server, str) else await asyncio.to_thread(server.url)
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=CONNECTIONS,
            timeout=TIMEOUT_S,
            socket_timeout=TIMEOUT_S,
            socket_connect_timeout=TIMEOUT_S,
        )
        return self._clients.setdefault(loop, Redis.from_pool(pool))  # another call may have come first

    def _disable(self, why: str) -> None:
        self._retry_at = time.monotonic() + RETRY_S
        if not self._has_warned:
            self._has_warned = True
            _log.warning("searches go on without a cache: %s (%s=%s silences this)", why, VARIABLE, OFF)


class CachedRetriever:
    """Wraps a retriever; only queries that are not cached reach it."""

    def __init__(self, retriever: Retriever, cache: SearchCache | None) -> None:
        self._retriever = retriever
        self._cache = cache

    async def version(self) -> str | None:
        return await self._retriever.version()

    async def search(self, queries: Sequence[str], *, top_k: int) -> list[list[Passage]]:
        version = None if self._cache is None else await self._retriever.version()
        if self._cache is None or version is None:
            return await self._retriever.search(queries, top_k=top_k)
        keys = [key_of(version, top_k=top_k, query=query) for query in queries]
        results = dict(zip(keys, await self._cache.get(keys), strict=True))
        new = {key: query for key, query in zip(keys, queries, strict=True) if results[key] is None}
        if new:
            new_results = await self._retriever.search(list(new.values()), top_k=top_k)
            if await self._retriever.version() != version:  # another server has taken its place
                return await self._retriever.search(queries, top_k=top_k)
            entries = {
                key: [[passage.passage_id, passage.contents, passage.score] for passage in passages]
                for key, passages in zip(new, new_results, strict=True)
            }
            # A web search engine whose own sources fail answers that it has found nothing.
            await self._cache.put({key: entry for key, entry in entries.items() if entry})
            results |= entries
        return [[Passage(*fields) for fields in results[key]] for key in keys]

    async def close(self) -> None:
        await self._retriever.close()
        if self._cache is not None:
            await self._cache.close()


def key_of(*parts: str, **more: object) -> str:
    """A hash of all arguments."""
    return hashlib.sha256(json.dumps([parts, more], sort_keys=True).encode()).hexdigest()


@cache
def shared_cache() -> SearchCache | None:
    """The cache of this process, by `WINGSPAN_REDIS`: a URL, `off`, or unset for an embedded server.

    Raises `ConfigError` for an invalid URL.
    """
    location = os.environ.get(VARIABLE, "")
    if location == OFF:
        return None
    register_url(location)
    if location and not location.startswith(("redis://", "rediss://", "unix://")):
        raise ConfigError(
            f"{VARIABLE} is {location!r}; give redis://HOST:PORT, rediss://…, unix:///PATH, or {OFF}"
        )
    shared = SearchCache(location or embedded_server())
    # At exit redis-py would look for an event loop in a dismantled Python, and print that it failed.
    atexit.register(shared.forget_connections)
    return shared
