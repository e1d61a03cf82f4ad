"""Chat completions from an OpenAI-compatible endpoint: one text in, one text out, however often it takes.

After an answer 408, 409, 429 or 5xx, a connection that fails or a reply that is none it is asked again, later
each time. Connections live for one request: a judge thinks for longer than one takes to open, and none is
left to close.
"""

import asyncio
import os
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import httpx

from agents.gate import Gate
from agents.rewards.judge_store import Budget, Pace
from envs.errors import ConfigError, described

_LATER = (408, 409, 429)
_REFUSED = (401, 403, 404)
_DETAIL = 200  # characters of an error's body that are shown


class JudgeFailed(Exception):
    """The endpoint gave no usable reply to one request."""


class TryAgain(JudgeFailed):
    """It may give one later."""

    def __init__(self, text: str, *, wait_s: float | None = None) -> None:
        super().__init__(text)
        self.wait_s = wait_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Which model is asked, where, and how hard."""

    url: str
    """Up to the version, e.g. `http://127.0.0.1:8000/v1`."""
    model: str
    api_key_variable: str | None = None
    """The environment variable that holds the key; keys are never written into settings."""
    temperature: float = 0.0
    max_tokens: int = 1024
    """Of a reply."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further entries of the request's body."""
    request_timeout_s: float = 60.0
    tries: int = 5
    """Of one request, the first included."""
    backoff_s: float = 1.0
    """Before the second try; twice as long before each further one, unless the endpoint says how long."""
    max_backoff_s: float = 60.0
    requests_per_s: float | None = None
    """None is as they come."""
    concurrent: int = 16
    """Requests at the same time, in each event loop."""

    def __post_init__(self) -> None:
        for name in ("request_timeout_s", "tries", "concurrent", "max_tokens", "requests_per_s"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"judge: {name}={value}; give a number above 0")
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError(f"judge: url={self.url!r}; give one like http://127.0.0.1:8000/v1")

    def body(self, prompt: str) -> dict[str, Any]:
        """Of the request that asks `prompt`."""
        return {
            "model": self.model,
            "messages": [{"role": "user", "content": prompt}],
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            **self.extra,
        }


class JudgeClient:
    """Asks one endpoint, within its limits and a budget."""

    def __init__(self, endpoint: Endpoint, *, budget: Budget) -> None:
        self._endpoint = endpoint
        self._budget = budget
        self._gate = Gate(endpoint.concurrent)
        self._pace = Pace(endpoint.requests_per_s)

    def check(self) -> None:
        """Raise `ConfigError` if the key is not where it should be."""
        self._headers()

    async def ask(self, prompt: str, *, accept: Callable[[str], object]) -> str:
        """The reply to `prompt`, from its first try that gave one that is accepted.

        `accept` raises `TryAgain` for a reply that cannot be used.
        Raises `JudgeFailed` if none did, or the endpoint will not answer this prompt; `ConfigError` if
        it refuses the key, the model or the address; `BudgetSpent`.
        """
        endpoint = self._endpoint
        backoff_s = endpoint.backoff_s
        for attempt in range(1, endpoint.tries + 1):
            try:
                async with self._gate:
                    await asyncio.sleep(self._pace.wait_s())
                    self._budget.take_request()
                    reply = await self._send(prompt)
                accept(reply)
                return reply
            except TryAgain as error:
                if attempt == endpoint.tries:
                    raise JudgeFailed(f"{error}, at the last of {attempt} tries") from error
                wait_s = backoff_s if error.wait_s is None else error.wait_s
            await asyncio.sleep(min(wait_s, endpoint.max_backoff_s))
            backoff_s *= 2
        raise AssertionError("there is at least one try")

    async def _send(self, prompt: str) -> str:
        url = f"{self._endpoint.url.rstrip('/')}/chat/completions"
        try:
            async with (
                asyncio.timeout(self._endpoint.request_timeout_s),  # of the whole; httpx' are of each part
                httpx.AsyncClient(verify=_tls() if url.startswith("https") else False, timeout=None) as http,
            ):
                answer = await http.post(url, json=self._endpoint.body(prompt), headers=self._headers())
        except TimeoutError:
            raise TryAgain(f"{url}: no reply within {self._endpoint.request_timeout_s:g} s") from None
        except httpx.RequestError as error:
            raise TryAgain(f"{url}: {described(error)}") from error
        if answer.status_code != 200:
            self._refused(url, answer)
        return self._read(url, answer)

    def _refused(self, url: str, answer: httpx.Response) -> None:
        status = answer.status_code
        said = f"{url} answered {status}: {' '.join(answer.text.split())[:_DETAIL]}"
        if status in _LATER or status >= 500:
            raise TryAgain(said, wait_s=_seconds(answer.headers.get("retry-after")))
        if status in _REFUSED:
            key = self._endpoint.api_key_variable or "no key"
            raise ConfigError(f"{said}; look at the judge's url, model and api_key_variable ({key})")
        raise JudgeFailed(said)

    def _read(self, url: str, answer: httpx.Response) -> str:
        try:
            body = answer.json()
            text = body["choices"][0]["message"]["content"]
            if not isinstance(text, str):
                raise TypeError(f"the content is a {type(text).__name__}")
        except (ValueError, LookupError, TypeError) as error:
            said = " ".join(answer.text.split())[:_DETAIL]
            raise TryAgain(f"{url}: no chat completion ({described(error)}): {said}") from error
        usage = body.get("usage")
        reported = usage.get("total_tokens") if isinstance(usage, dict) else None
        self._budget.add_tokens(reported if isinstance(reported, int) else None)
        return text

    def _headers(self) -> dict[str, str]:
        variable = self._endpoint.api_key_variable
        if variable is None:
            return {}
        key = os.environ.get(variable)
        if not key:
            raise ConfigError(f"judge: the environment variable {variable} is not set; put the key into it")
        return {"Authorization": f"Bearer {key}"}


def _seconds(header: str | None) -> float | None:
    """Of a `Retry-After`; dates, which it may hold too, are left to the backoff."""
    return float(header) if header is not None and header.isdecimal() else None


@cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()
