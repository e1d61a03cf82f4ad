"""What HTTP clients share: which failures are retried, and how long to wait before."""

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypedDict, TypeVar, Unpack

import httpx

from envs.errors import ConfigError, EnvCrashed, describe, to_line

T = TypeVar("T")

DENIALS = (401, 403, 404)
"""Statuses that mean that the key or the address is wrong."""


MAX_DETAIL = 300
"""Characters of a body that an error shows."""


class TryAgain(Exception):
    """A request failed and may succeed later; the text says how it failed."""

    def __init__(self, text: str, *, wait_s: float | None = None, has_progressed: bool = False) -> None:
        """`wait_s`: what the server asks for; None leaves it to the backoff. `has_progressed`: part of the
        work was done, so that the failures before this one do not count."""
        super().__init__(text)
        self.wait_s = wait_s
        self.has_progressed = has_progressed


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Waits between attempts, from the end of one to the next, each twice as long as the one before."""

    max_attempts: int
    """The number of attempts in all, the first included."""
    first_s: float
    """The wait before the second attempt."""
    max_s: float = float("inf")
    total_s: float = float("inf")
    """How long after the begin of the first attempt another one may begin; the last wait is cut to that."""

    async def retry(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """The result of the first attempt that does not raise `TryAgain`; raises the last one's."""
        failures, start = 0, time.monotonic()
        while True:
            try:
                return await attempt()
            except TryAgain as error:
                failures = self._count(failures, error)
                wait_s = self._wait_s(failures, error, left_s=start + self.total_s - time.monotonic())
            await asyncio.sleep(wait_s)

    def retry_sync(self, attempt: Callable[[], T]) -> T:
        """`retry` for a function, in this thread."""
        failures, start = 0, time.monotonic()
        while True:
            try:
                return attempt()
            except TryAgain as error:
                failures = self._count(failures, error)
                wait_s = self._wait_s(failures, error, left_s=start + self.total_s - time.monotonic())
            time.sleep(wait_s)

    def _count(self, failures: int, error: TryAgain) -> int:
        """The number of attempts in a row that have failed, `error` included; raises it if it is the last."""
        failures = 1 if error.has_progressed else failures + 1
        if failures >= self.max_attempts:
            raise error
        return failures

    def _wait_s(self, failures: int, error: TryAgain, *, left_s: float) -> float:
        """Raises `error` if no time is left."""
        if left_s <= 0:
            raise error
        wait_s = self.first_s * 2.0 ** (failures - 1) if error.wait_s is None else error.wait_s
        return min(wait_s, self.max_s, left_s)


ASK = Backoff(max_attempts=4, first_s=1.0, max_s=30.0)
"""The retries of `ask_json`."""


class RequestOptions(TypedDict, total=False):
    """What a request may have besides its method and URL, by httpx's names."""

    json: object
    params: Mapping[str, str | int | None] | None
    headers: Mapping[str, str]


async def send(
    http: httpx.AsyncClient, method: str, url: str, *, timeout_s: float, **options: Unpack[RequestOptions]
) -> httpx.Response:
    """The response to a request; `timeout_s`: for all of it, where httpx's limits are for each part.

    Raises `TryAgain` if there is no response, or if `is_transient` holds for it.
    """
    try:
        async with asyncio.timeout(timeout_s):
            response = await http.request(method, url, **options)
    except TimeoutError:
        raise TryAgain(f"{url}: no reply within {timeout_s:g} s") from None
    except httpx.RequestError as error:
        raise TryAgain(f"{url}: {describe(error)}") from error
    if is_transient(response):
        raise TryAgain(describe_response(response), wait_s=read_retry_after(response))
    return response


def is_transient(response: httpx.Response) -> bool:
    """Whether the same request may succeed later: it met a timeout, a conflict, a rate limit, or a server
    error."""
    return response.status_code in (408, 409, 429) or response.status_code >= 500


def read_retry_after(response: httpx.Response) -> float | None:
    """The seconds that the server asks to wait; None if it does not say, or names a date."""
    header = response.headers.get("retry-after", "")
    return float(header) if header.isdecimal() else None


async def ask_json(method: str, url: str, *, timeout_s: float, **options: Unpack[RequestOptions]) -> Any:
    """The JSON that a server answers, after retries; ignores proxies of the environment.

    Raises `ConfigError` for a denial (`DENIALS`), `EnvCrashed` for everything else that is no answer.
    """

    async def attempt() -> Any:
        response = await send(http, method, url, timeout_s=timeout_s, **options)
        if response.status_code in DENIALS:
            raise ConfigError(f"{describe_response(response)}; correct the URL or the key")
        if response.status_code >= 400:
            raise EnvCrashed(describe_response(response))
        try:
            return response.json()
        except ValueError as error:
            raise TryAgain(f"{url}: no JSON ({error})") from error

    async with httpx.AsyncClient(timeout=None, verify=tls_context(), trust_env=False) as http:
        try:
            return await ASK.retry(attempt)
        except TryAgain as error:
            raise EnvCrashed(str(error)) from error


def is_http_url(text: str) -> bool:
    """Whether `text` is the URL of an HTTP server."""
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL:
        return False
    has_valid_host = bool(url.host) and " " not in text
    return url.scheme in ("http", "https") and has_valid_host and 0 < (url.port or 80) < 1 << 16


def describe_response(response: httpx.Response) -> str:
    """`<url> answered 404: <start of the body>`, on one line and without secrets."""
    body = to_line(response.text, limit=MAX_DETAIL)
    return f"{response.request.url} answered {response.status_code}: {body}"


@cache
def tls_context() -> ssl.SSLContext:
    """Shared by all clients: loading the certificates takes longer than a request."""
    return ssl.create_default_context()
