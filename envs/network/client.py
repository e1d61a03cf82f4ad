"""What HTTP clients share: which failures are retried, how long to wait, how a failure reads in one line."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

import httpx

from envs.redaction import redact

T = TypeVar("T")

DENIED = (401, 403, 404)
"""Statuses that mean that the key or the address is wrong."""


class TryAgain(Exception):
    """A request failed and may succeed later; the text says how it failed."""

    def __init__(self, text: str, *, wait_s: float | None = None) -> None:
        """`wait_s`: what the server asks for; None leaves it to the backoff."""
        super().__init__(text)
        self.wait_s = wait_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Waits between attempts, each twice as long as the one before."""

    attempts: int
    """In all, the first included."""
    first_s: float
    """Before the second attempt."""
    max_s: float = float("inf")

    def wait_s(self, failures: int) -> float:
        """Seconds to wait after `failures` attempts in a row have failed, from 1 on."""
        return min(self.first_s * 2.0 ** (failures - 1), self.max_s)

    async def retry(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """The result of the first attempt that does not raise `TryAgain`; raises the last one's."""
        for failures in range(1, self.attempts):
            try:
                return await attempt()
            except TryAgain as error:
                wait_s = self.wait_s(failures) if error.wait_s is None else error.wait_s
            await asyncio.sleep(min(wait_s, self.max_s))
        return await attempt()


def is_transient(status: int) -> bool:
    """Whether the same request may succeed later: timeouts, conflicts, rate limits, server errors."""
    return status in (408, 409, 429) or status >= 500


def retry_after_s(response: httpx.Response) -> float | None:
    """Seconds of the header `Retry-After`; None where it is missing or a date."""
    header = response.headers.get("retry-after", "")
    return float(header) if header.isdecimal() else None


def quote_body(text: str, *, max_chars: int) -> str:
    """A server's text on one line, redacted before it is cut, so that no part of a key is left."""
    return redact(" ".join(text.split()))[:max_chars]


@cache
def tls_context() -> ssl.SSLContext:
    """Shared by all clients: loading the certificates takes longer than a request."""
    return ssl.create_default_context()
