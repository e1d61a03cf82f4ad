"""Results of searches, kept in Redis: shared by processes and runs, bounded in size.

A key is made of all that decides the result: the retriever's version (method, corpus, model), `top_k` and the
query. Without Redis everything goes on uncached; that is said once, and tried again after a while.
"""

import asyncio
import hashlib
import json
import logging
import os
import time
from collections.abc import Awaitable, Callable, Sequence
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
"""What the variable says to go without."""
PREFIX = "wingspan:search:"
TIMEOUT_S = 2.0
"""Of connecting, and of one command."""
CONNECTIONS = 16
"""Of one event loop; hundreds of episodes share them."""
KEPT_S = 30 * 24 * 3600
"""A result is forgotten then, on a server whose bound is not ours, too."""
RETRY_S = 5.0
"""Of going on uncached before Redis is tried again."""

_log = logging.getLogger(__name__)


class SearchCache:
    """Values by key; never raises for want of Redis."""

    def __init__(self, server: str | EmbeddedServer) -> None:
        """`server`: a URL as redis-py takes it, or one that is started when it is first needed."""
        self._server = server
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, Redis] = WeakKeyDictionary()
        self._closed_until = 0.0
        self._has_said = False

    async def get(self, keys: Sequence[str]) -> list[Any]:
        """The values of `keys`, None for each that is not there."""
        found = await self._try(lambda redis: redis.mget([PREFIX + key for key in keys]))
        return [None if one is None else json.loads(one) for one in found or [None] * len(keys)]

    async def put(self, values: dict[str, Any]) -> None:
        """Keep JSON values."""

        async def send(redis: "Redis") -> None:
            pipeline = redis.pipeline(transaction=False)
            for key, value in values.items():
                pipeline.set(PREFIX + key, json.dumps(value), ex=KEPT_S)
            await pipeline.execute()

        await self._try(send)

    async def close(self) -> None:
        """Drop this event loop's connections. Idempotent."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.aclose()

    async def _try(self, use: "Callable[[Redis], Awaitable[T]]") -> T | None:
        """What `use` returns; None where there is no Redis now."""
        if time.monotonic() < self._closed_until:
            return None
        try:
            from redis.exceptions import RedisError
        except ImportError:
            self._go_without(f"the package redis is not installed; {pip_install('redis')}")
            return None
        try:
            return await use(await self._client())
        except (RedisError, OSError, TimeoutError, MissingDependency) as error:
            await self.close()
            self._go_without(describe(error))
            return None

    async def _client(self) -> "Redis":
        from redis.asyncio import BlockingConnectionPool, Redis

        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            server = self._server
            # Starting takes some milliseconds, and waits for whoever else is starting it.
            url = server if isinstance(server, str) else await asyncio.to_thread(server.url)
            pool = BlockingConnectionPool.from_url(
                url,
                max_connections=CONNECTIONS,
                timeout=TIMEOUT_S,
                socket_timeout=TIMEOUT_S,
                socket_connect_timeout=TIMEOUT_S,
            )
            self._clients[loop] = Redis.from_pool(pool)
        return self._clients[loop]

    def _go_without(self, why: str) -> None:
        self._closed_until = time.monotonic() + RETRY_S
        if not self._has_said:
            self._has_said = True
            _log.warning("searches go on without a cache: %s (%s=%s silences this)", why, VARIABLE, OFF)


class CachedRetriever:
    """A retriever that asks another only what is not cached."""

    def __init__(self, retriever: Retriever, cache: SearchCache | None) -> None:
        """`cache`: None is none."""
        self._retriever = retriever
        self._cache = cache

    async def version(self) -> str:
        """See `Retriever`."""
        return await self._retriever.version()

    async def search(self, queries: Sequence[str], *, top_k: int) -> list[list[Passage]]:
        """See `Retriever`."""
        if self._cache is None:
            return await self._retriever.search(queries, top_k=top_k)
        version = await self._retriever.version()
        keys = [key_of(version, top_k=top_k, query=query) for query in queries]
        known = dict(zip(keys, await self._cache.get(keys), strict=True))
        new = {key: query for key, query in zip(keys, queries, strict=True) if known[key] is None}
        if new:
            found = await self._retriever.search(list(new.values()), top_k=top_k)
            told = {
                key: [[one.passage_id, one.contents, one.score] for one in own]
                for key, own in zip(new, found, strict=True)
            }
            await self._cache.put(told)
            known |= told
        return [[Passage(*one) for one in known[key]] for key in keys]

    async def close(self) -> None:
        """See `Retriever`."""
        await self._retriever.close()
        if self._cache is not None:
            await self._cache.close()


def key_of(*parts: str, **more: Any) -> str:
    """A key of all that is given."""
    return hashlib.sha256(json.dumps([parts, more], sort_keys=True).encode()).hexdigest()


@cache
def shared_cache() -> SearchCache | None:
    """This process's cache, as `WINGSPAN_REDIS` says: a URL, `off`, or nothing for an embedded server.

    Raises `ConfigError` for a URL that is none.
    """
    wanted = os.environ.get(VARIABLE, "")
    if wanted == OFF:
        return None
    register_url(wanted)
    if wanted and not wanted.startswith(("redis://", "rediss://", "unix://")):
        raise ConfigError(
            f"{VARIABLE} is {wanted!r}; give redis://HOST:PORT, rediss://…, unix:///PATH, or {OFF}"
        )
    return SearchCache(wanted or embedded_server())
