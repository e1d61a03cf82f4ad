"""A retriever on a server: the client of Search-R1's protocol.

`POST /retrieve {"queries": […], "topk": 3, "return_scores": true}` answers `{"result": [[{"document": {"id",
"contents"}, "score"}]]}`; our server adds its `version`. Sources: search_r1/search/retrieval_server.py and
retrieval_request.py of PeterGriffinJin/Search-R1.
"""

import asyncio
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import httpx

from envs.errors import ConfigError, SearchFailed, describe
from envs.network.client import DENIALS, Backoff, TryAgain, describe_response, is_http_url, send, tls_context
from envs.retrieval.types import Passage

ATTEMPTS = 4
PAUSE_S, MAX_PAUSE_S = 0.5, 30.0
TIMEOUT_S = 60.0
"""The time limit of one request: a flat index of 64 GB takes seconds on a CPU."""
BATCH = 64
"""Queries of one request."""


class RemoteRetriever:
    """A server's retriever; each event loop that uses it keeps its own connections."""

    def __init__(self, url: str, *, pause_s: float = PAUSE_S) -> None:
        """`url`: the server's, with or without `/retrieve`."""
        self._url = url.removesuffix("/").removesuffix("/retrieve")
        self._backoff = Backoff(max_attempts=ATTEMPTS, first_s=pause_s, max_s=MAX_PAUSE_S)
        self._version: str | None = None
        self._has_asked_version = False
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient] = WeakKeyDictionary()

    async def version(self) -> str | None:
        """The version that the server named last, at `GET /version` or in an answer; None for a server that
        has none, such as Search-R1's own."""
        if not self._has_asked_version:
            answer = await self._ask("GET", "/version", optional=True)
            version = answer.get("version") if isinstance(answer, dict) else None
            self._version = None if version is None else str(version)
            self._has_asked_version = True
        return self._version

    async def search(self, queries: Sequence[str], *, top_k: int) -> list[list[Passage]]:
        results: list[list[Passage]] = []
        for start in range(0, len(queries), BATCH):
            batch = list(queries[start : start + BATCH])
            body = {"queries": batch, "topk": top_k, "return_scores": True}
            answer = await self._ask("POST", "/retrieve", body)
            try:
                passages = [[_passage(entry) for entry in entries[:top_k]] for entries in answer["result"]]
            except (KeyError, TypeError, ValueError) as error:
                raise SearchFailed(
                    f"{self._url}/retrieve: expected {{'result': [[{{'document': …, 'score': …}}]]}}, got "
                    f"{str(answer)[:120]!r} ({describe(error)})"
                ) from None
            if len(passages) != len(batch):
                raise SearchFailed(f"{self._url}/retrieve: {len(passages)} results for {len(batch)} queries")
            results += passages
            if isinstance(version := answer.get("version"), str):
                self._version, self._has_asked_version = version, True
        return results

    async def close(self) -> None:
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.aclose()

    def _client(self) -> httpx.AsyncClient:
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            self._clients[loop] = httpx.AsyncClient(
                timeout=None, verify=tls_context(), follow_redirects=True, trust_env=False
            )
        return self._clients[loop]

    async def _ask(self, method: str, path: str, body: object = None, *, optional: bool = False) -> Any:
        """The answer, as JSON; None for a client error (4xx) if the answer is optional."""

        async def attempt() -> Any:
            url = self._url + path
            response = await send(self._client(), method, url, timeout_s=TIMEOUT_S, json=body)
            if response.status_code >= 400:
                if optional:
                    return None
                if response.status_code in DENIALS:
                    raise ConfigError(f"the retriever {describe_response(response)}; correct its URL")
                raise SearchFailed(f"the retriever {describe_response(response)}")
            try:
                return response.json()
            except ValueError as error:
                raise TryAgain(f"{url}: {describe(error)}") from error

        try:
            return await self._backoff.retry(attempt)
        except TryAgain as error:
            raise SearchFailed(f"no retriever: {error}") from error


def checked_url(url: str) -> str:
    """`url`; raises `ConfigError` unless it is an HTTP server's."""
    if not is_http_url(url):
        raise ConfigError(f"the retriever {url!r} is no http:// or https:// URL; correct it")
    return url


def _passage(entry: Any) -> Passage:
    document = entry["document"]
    return Passage(str(document.get("id", "")), str(document["contents"]), float(entry["score"]))
