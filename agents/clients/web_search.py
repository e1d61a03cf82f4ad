"""Web search by an HTTP endpoint, as a retriever: SearXNG's format and Serper's.

SearXNG: `GET /search?q=…&format=json` answers `{"results": [{"title", "url", "content"}]}` (its
documentation, "Search API"; JSON must be among `search.formats` in its settings). Serper: `POST /search {"q",
"num"}` with the key in `X-API-KEY` answers `{"organic": [{"title", "link", "snippet"}]}`. Requests are
rate-limited, and retried after transient failures.
"""

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Literal

import httpx

from agents.clients.endpoint import RequestLimits
from agents.clients.rate_limit import ConcurrencyLimiter, RateLimiter
from envs.errors import ConfigError, SearchFailed, to_line
from envs.network.client import DENIALS, TryAgain, describe_response, is_http_url, send, tls_context
from envs.retrieval.types import MAX_QUERY, Passage

Format = Literal["searxng", "serper"]

VARIABLE = "WINGSPAN_WEB_SEARCH"
PACE_VARIABLE = "WINGSPAN_WEB_SEARCH_PER_S"
KEY_VARIABLE = "SERPER_API_KEY"
EXAMPLES = "serper+https://google.serper.dev or searxng+http://127.0.0.1:8888"
REQUESTS_PER_S = 5.0
MAX_DETAIL = 160
"""Characters of an answer that an error shows."""


class QueryRejected(Exception):
    """The endpoint rejects this query; the text says why."""


@dataclass(frozen=True, slots=True)
class WebEndpoint(RequestLimits):
    """Address and format of a search engine."""

    url: str
    """The URL of the server, without `/search`."""
    format: Format
    _: KW_ONLY
    requests_per_s: float | None = REQUESTS_PER_S
    request_timeout_s: float = 20.0
    max_attempts: int = 4
    max_backoff_s: float = 30.0

    def __post_init__(self) -> None:
        if not is_http_url(self.url):
            raise ConfigError(f"web search: {self.url!r} is no http:// or https:// URL; correct it")
        self.check("web search")


class WebSearch:
    """A `Retriever` (`envs/retrieval/types.py`); a passage is a page's title, its snippet and its address."""

    def __init__(self, endpoint: WebEndpoint) -> None:
        """Raises `ConfigError` if the key's environment variable is not set."""
        self.endpoint = endpoint
        self._limiter = ConcurrencyLimiter(endpoint.max_concurrency)
        self._rate = RateLimiter(endpoint.requests_per_s)
        key = endpoint.key("web search")
        self._headers = {} if key is None else {"X-API-KEY": key}

    async def version(self) -> str:
        return f"web/{self.endpoint.format}/{self.endpoint.url}"

    async def search(self, queries: Sequence[str], *, top_k: int) -> list[list[Passage]]:
        """The queries are sent one after the other.

        Raises `SearchFailed`; `QueryRejected` for a query that the endpoint will not search for;
        `ConfigError` if it rejects the key or the address, or redirects a request with a key.
        """
        return [
            _passages(self.endpoint, await self._ask(query[:MAX_QUERY], top_k), top_k) for query in queries
        ]

    async def close(self) -> None:
        """Nothing stays open."""

    async def _ask(self, query: str, top_k: int) -> Mapping[str, object]:
        return await self.endpoint.retry(
            lambda: self._attempt(query, top_k), error=lambda why: SearchFailed(f"web search: {why}")
        )

    async def _attempt(self, query: str, top_k: int) -> Mapping[str, object]:
        async with self._limiter:
            await asyncio.sleep(self._rate.wait_s())
            response = await self._send(query, top_k)
        status = response.status_code
        if status in DENIALS:
            raise ConfigError(
                f"web search: {describe_response(response)}; correct the URL or the key, or let SearXNG "
                "answer JSON (search.formats in its settings)"
            )
        if response.is_redirect:
            location = to_line(response.headers["location"], limit=MAX_DETAIL)
            raise ConfigError(
                f"web search: {self.endpoint.url} redirects to {location}, which is not sent the key; give "
                "that address if it is the right one"
            )
        if status >= 400:
            raise QueryRejected(f"HTTP {status}: {to_line(response.text, limit=MAX_DETAIL)}")
        try:
            answer = response.json()
        except ValueError as error:
            raise TryAgain(f"no JSON ({error})") from error
        if not isinstance(answer, dict):
            raise TryAgain(f"a {type(answer).__name__} for an object")
        return answer

    async def _send(self, query: str, top_k: int) -> httpx.Response:
        url, timeout_s = f"{self.endpoint.url.rstrip('/')}/search", self.endpoint.request_timeout_s
        # Of the headers, httpx withholds only `Authorization` from another host.
        async with httpx.AsyncClient(
            timeout=None, follow_redirects=not self._headers, verify=tls_context(), headers=self._headers
        ) as http:
            if self.endpoint.format == "serper":
                return await send(http, "POST", url, timeout_s=timeout_s, json={"q": query, "num": top_k})
            params = {"q": query, "format": "json"}
            return await send(http, "GET", url, timeout_s=timeout_s, params=params)


def web_endpoint() -> WebEndpoint:
    """The endpoint that `WINGSPAN_WEB_SEARCH` names, `<format>+<url>`. Raises `ConfigError`."""
    setting = os.environ.get(VARIABLE, "")
    format, plus, url = setting.partition("+")
    if not plus or format not in ("searxng", "serper"):
        raise ConfigError(
            f"{VARIABLE} is {setting!r}; web searches need an endpoint: export {VARIABLE}={EXAMPLES}"
        )
    rate = os.environ.get(PACE_VARIABLE, str(REQUESTS_PER_S))
    try:
        requests_per_s = float(rate)
    except ValueError:
        raise ConfigError(f"{PACE_VARIABLE} is {rate!r}; give requests a second, e.g. 5") from None
    if format == "serper":
        return WebEndpoint(url, "serper", api_key_variable=KEY_VARIABLE, requests_per_s=requests_per_s)
    return WebEndpoint(url, "searxng", requests_per_s=requests_per_s)


def _passages(endpoint: WebEndpoint, answer: Mapping[str, object], top_k: int) -> list[Passage]:
    entries, link, snippet = {
        "searxng": ("results", "url", "content"),
        "serper": ("organic", "link", "snippet"),
    }[endpoint.format]
    results = answer.get(entries, [])
    if not isinstance(results, list) or any(not isinstance(result, dict) for result in results):
        raise SearchFailed(
            f"web search: {endpoint.url}: expected {entries!r}, a list; got {str(results)[:MAX_DETAIL]!r}"
        )
    return [
        Passage(
            str(result.get(link, "")),
            f'"{_line(result.get("title"))}"\n{_line(result.get(snippet))} ({_line(result.get(link))})',
            score=1.0 / rank,
        )
        for rank, result in enumerate(results[:top_k], start=1)
    ]


def _line(value: object) -> str:
    return " ".join(str(value or "").split())
