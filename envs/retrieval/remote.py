"""A retriever that lives on a server: Search-R1's protocol, from the asking side.

`POST /retrieve {"queries": […], "topk": 3, "return_scores": true}` answers `{"result": [[{"document": {"id",
"contents"}, "score"}]]}`. Sources: search_r1/search/retrieval_server.py and retrieval_request.py of
PeterGriffinJin/Search-R1.
"""

import asyncio
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

import aiohttp

from envs.errors import ConfigError, SearchFailed, describe
from envs.retrieval.types import Passage

ATTEMPTS = 4
PAUSE_S = 0.5
"""Before the second attempt; doubled before each further one."""
TIMEOUT_S = 60.0
"""Of one request: a flat index of 64 GB takes seconds on a CPU."""
BATCH = 64
"""Queries of one request."""


class RemoteRetriever:
    """A server's retriever."""

    def __init__(self, url: str, *, pause_s: float = PAUSE_S) -> None:
        """`url`: the server's, with or without `/retrieve`."""
        self._url = url.removesuffix("/").removesuffix("/retrieve")
        self._pause_s = pause_s
        self._version: str | None = None
        self._sessions: WeakKeyDictionary[asyncio.AbstractEventLoop, aiohttp.ClientSession] = (
            WeakKeyDictionary()
        )

    async def version(self) -> str:
        """See `Retriever`; a server that does not tell it is known by its URL."""
        if self._version is None:
            answer = await self._ask("GET", "/version", optional=True)
            known = answer.get("version") if isinstance(answer, dict) else None
            self._version = f"at {self._url}" if known is None else str(known)
        return self._version

    async def search(self, queries: Sequence[str], *, top_k: int) -> list[list[Passage]]:
        """See `Retriever`."""
        found: list[list[Passage]] = []
        for start in range(0, len(queries), BATCH):
            asked = list(queries[start : start + BATCH])
            body = {"queries": asked, "topk": top_k, "return_scores": True}
            answer = await self._ask("POST", "/retrieve", body)
            try:
                lists = [[_passage(entry) for entry in own[:top_k]] for own in answer["result"]]
            except (KeyError, TypeError, ValueError) as error:
                raise SearchFailed(
                    f"{self._url}/retrieve: expected {{'result': [[{{'document': …, 'score': …}}]]}}, got "
                    f"{str(answer)[:120]!r} ({describe(error)})"
                ) from None
            if len(lists) != len(asked):
                raise SearchFailed(f"{self._url}/retrieve: {len(lists)} results for {len(asked)} queries")
            found += lists
        return found

    async def close(self) -> None:
        """See `Retriever`."""
        session = self._sessions.pop(asyncio.get_running_loop(), None)
        if session is not None:
            await session.close()

    async def _ask(self, method: str, path: str, body: Any = None, *, optional: bool = False) -> Any:
        """The answer, as JSON; None for a client's error (4xx) where it is optional."""
        problem = ""
        for attempt in range(ATTEMPTS):
            if attempt:
                await asyncio.sleep(self._pause_s * 2 ** (attempt - 1))
            try:
                async with self._session().request(method, self._url + path, json=body) as response:
                    if response.status < 400:
                        return await response.json(content_type=None)
                    problem = f"HTTP {response.status}: {(await response.text())[:120]!r}"
                    if response.status < 500 and response.status != 429:
                        if optional:
                            return None
                        break
            except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                problem = describe(error)
        raise SearchFailed(f"the retriever {self._url}{path} does not answer: {problem}")

    def _session(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        if loop not in self._sessions:
            self._sessions[loop] = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_S))
        return self._sessions[loop]


def checked_url(url: str) -> str:
    """`url`, if it is one of a server; raises `ConfigError`."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"the retriever {url!r} is no http:// or https:// URL; correct it")
    return url


def _passage(entry: Any) -> Passage:
    document = entry["document"]
    return Passage(str(document.get("id", "")), str(document["contents"]), float(entry["score"]))
