"""Web search by an HTTP endpoint, as a retriever: SearXNG's format and Serper's.

SearXNG: `GET /search?q=…&format=json` answers `{"results": [{"title", "url", "content"}]}` (its
documentation, "Search API"; JSON must be among `search.formats` in its settings). Serper: `POST /search {"q",
"num"}` with the key in `X-API-KEY` answers `{"organic": [{"title", "link", "snippet"}]}`. Requests are paced;
those that fail for a while are sent again, later each time.
"""

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

import httpx

from agents.clients.rate_limit import ConcurrencyLimiter, RateLimiter
from envs.errors import ConfigError, SearchFailed, describe
from envs.redaction import redact, register_secret
from envs.retrieval.types import MAX_QUERY, Passage

Format = Literal["searxng", "serper"]

VARIABLE = "WINGSPAN_WEB_SEARCH"
PACE_VARIABLE = "WINGSPAN_WEB_SEARCH_PER_S"
KEY_VARIABLE = "SERPER_API_KEY"
EXAMPLES = "serper+https://google.serper.dev or searxng+http://127.0.0.1:8888"
REQUESTS_PER_S = 5.0
_LATER = (408, 409, 429)
_DENIED = (401, 403, 404)
_SHOWN = 160


class QueryRefused(Exception):
    """The endpoint will not search for this; the text says why."""


@dataclass(frozen=True, slots=True)
class WebEndpoint:
    """Where searches are sent, in which form, and how hard."""

    url: str
    """Of the server, without `/search`."""
    format: Format
    _: KW_ONLY
    api_key_variable: str | None = None
    """The environment variable that holds the key; keys are never written into settings."""
    requests_per_s: float | None = REQUESTS_PER_S
    """None is as they come. Each process keeps its own pace."""
    concurrent: int = 16
    """Requests at the same time, in each event loop."""
    request_timeout_s: float = 20.0
    tries: int = 4
    """Of one request, the first included."""
    backoff_s: float = 1.0
    """Before the second try; twice as long before each further one, unless the endpoint says how long."""
    max_backoff_s: float = 30.0

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"web search: {self.url!r} is no http:// or https:// URL; correct it")
        for name in ("requests_per_s", "concurrent", "request_timeout_s", "tries", "backoff_s"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"web search: {name}={value}; give a number above 0")


class WebSearch:
    """A `Retriever` (`envs/retrieval/types.py`); a passage is a page's title, its snippet and its address."""

    def __init__(self, endpoint: WebEndpoint) -> None:
        """Raises `ConfigError` if the key is not where it should be."""
        self.endpoint = endpoint
        self._limiter = ConcurrencyLimiter(endpoint.concurrent)
        self._rate = RateLimiter(endpoint.requests_per_s)
        self._headers = _headers(endpoint)

    async def version(self) -> str:
        """See `Retriever`."""
        return f"web/{self.endpoint.format}/{self.endpoint.url}"

    async def search(self, queries: Sequence[str], *, top_k: int) -> list[list[Passage]]:
        """See `Retriever`; the queries are sent one after the other.

        Raises `SearchFailed`; `QueryRefused` for a query that the endpoint will not search for; `ConfigError`
        if it refuses the key or the address.
        """
        return [
            _passages(self.endpoint, await self._ask(query[:MAX_QUERY], top_k), top_k) for query in queries
        ]

    async def close(self) -> None:
        """See `Retriever`: nothing stays open."""

    async def _ask(self, query: str, top_k: int) -> Mapping[str, Any]:
        endpoint, wait_s, problem = self.endpoint, self.endpoint.backoff_s, ""
        for attempt in range(endpoint.tries):
            if attempt:
                await asyncio.sleep(min(wait_s, endpoint.max_backoff_s))
                wait_s *= 2
            try:
                async with self._limiter:
                    await asyncio.sleep(self._rate.wait_s())
                    answer = await self._send(query, top_k)
            except (TimeoutError, httpx.RequestError) as error:
                problem = describe(error)
                continue
            if answer.status_code in _LATER or answer.status_code >= 500:
                problem = _said(answer)
                told = answer.headers.get("retry-after", "")
                wait_s = float(told) if told.isdecimal() else wait_s
                continue
            if answer.status_code in _DENIED:
                raise ConfigError(
                    f"web search: {endpoint.url} answered {_said(answer)}; correct the URL or the key, or "
                    "let SearXNG answer JSON (search.formats in its settings)"
                )
            if answer.status_code >= 400:
                raise QueryRefused(_said(answer))
            try:
                found = answer.json()
                if isinstance(found, dict):
                    return found
                problem = f"a {type(found).__name__} for an object"
            except ValueError as error:
                problem = f"no JSON ({error})"
        raise SearchFailed(f"web search: {endpoint.url}: {problem}, at the last of {endpoint.tries} tries")

    async def _send(self, query: str, top_k: int) -> httpx.Response:
        endpoint, url = self.endpoint, f"{self.endpoint.url.rstrip('/')}/search"
        async with (
            asyncio.timeout(endpoint.request_timeout_s),
            httpx.AsyncClient(timeout=None, follow_redirects=True) as http,
        ):
            if endpoint.format == "serper":
                return await http.post(url, json={"q": query, "num": top_k}, headers=self._headers)
            return await http.get(url, params={"q": query, "format": "json"}, headers=self._headers)


def web_endpoint() -> WebEndpoint:
    """The endpoint that `WINGSPAN_WEB_SEARCH` names, `<format>+<url>`. Raises `ConfigError`."""
    named = os.environ.get(VARIABLE, "")
    format, plus, url = named.partition("+")
    if not plus or format not in ("searxng", "serper"):
        raise ConfigError(
            f"{VARIABLE} is {named!r}; web searches need an endpoint: export {VARIABLE}={EXAMPLES}"
        )
    pace = os.environ.get(PACE_VARIABLE, str(REQUESTS_PER_S))
    try:
        requests_per_s = float(pace)
    except ValueError:
        raise ConfigError(f"{PACE_VARIABLE} is {pace!r}; give requests a second, e.g. 5") from None
    if format == "serper":
        return WebEndpoint(url, "serper", api_key_variable=KEY_VARIABLE, requests_per_s=requests_per_s)
    return WebEndpoint(url, "searxng", requests_per_s=requests_per_s)


def _headers(endpoint: WebEndpoint) -> dict[str, str]:
    if endpoint.api_key_variable is None:
        return {}
    key = os.environ.get(endpoint.api_key_variable)
    if not key:
        raise ConfigError(
            f"web search: the environment variable {endpoint.api_key_variable} is not set; put the key "
            "into it"
        )
    register_secret(key)
    return {"X-API-KEY": key}


def _passages(endpoint: WebEndpoint, answer: Mapping[str, Any], top_k: int) -> list[Passage]:
    entries, link, snippet = {
        "searxng": ("results", "url", "content"),
        "serper": ("organic", "link", "snippet"),
    }[endpoint.format]
    found = answer.get(entries, [])
    if not isinstance(found, list) or any(not isinstance(one, dict) for one in found):
        raise SearchFailed(
            f"web search: {endpoint.url}: expected {entries!r}, a list; got {str(found)[:_SHOWN]!r}"
        )
    return [
        Passage(
            str(one.get(link, "")),
            f'"{_line(one.get("title"))}"\n{_line(one.get(snippet))} ({_line(one.get(link))})',
            score=1.0 / rank,
        )
        for rank, one in enumerate(found[:top_k], start=1)
    ]


def _line(value: object) -> str:
    return " ".join(str(value or "").split())


def _said(answer: httpx.Response) -> str:
    return f"HTTP {answer.status_code}: {redact(' '.join(answer.text.split()))[:_SHOWN]}"
