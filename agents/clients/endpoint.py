"""A client of OpenAI-compatible chat completions, with retries.

A request is sent again, with growing waits, after status 408, 409, 429 or 5xx, a failed connection or an
unusable reply. Connections live for one request: a model thinks for longer than one takes to open, and none
is left to close. The callers (a model client, a judge) choose the messages and interpret the replies.
"""

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, TypeVar

import httpx

from agents.clients.rate_limit import ConcurrencyLimiter, RateLimiter
from agents.formats.json_values import InvalidJson, decode_at, skip_space
from envs.errors import ConfigError, describe
from envs.network.client import (
    DENIED,
    Backoff,
    TryAgain,
    is_transient,
    quote_body,
    retry_after_s,
    tls_context,
)
from envs.redaction import register_secret

MAX_DETAIL = 300
"""Characters of an error's body that are shown."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# "maximum context length" (OpenAI, vLLM), "the model's context length" (SGLang), "exceeds the available
# context size" (llama.cpp), "context_length_exceeded" and "context window" (OpenAI, and others after it)
_TOO_LONG = re.compile(r"context[ _](?:length|size|window)", re.IGNORECASE)
_VERSION = re.compile(r"policy_version=(\d{1,18})")  # `agents/gateway/answers.py`

T = TypeVar("T")


class EndpointFailed(Exception):
    """The endpoint gave no usable reply to one request."""


class ContextFull(EndpointFailed):
    """The conversation is longer than the model's context."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Address and model of an endpoint, and limits on its use."""

    url: str
    """Up to the version, e.g. `http://127.0.0.1:8000/v1`."""
    model: str
    _: KW_ONLY
    api_key_variable: str | None = None
    """The environment variable that holds the key; keys are never written into settings."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further entries of each request's body, before all others; None takes one out."""
    request_timeout_s: float = 60.0
    tries: int = 5
    """Of one request, the first included."""
    backoff_s: float = 1.0
    """Before the second try; twice as long before each further one, unless the endpoint says how long."""
    max_backoff_s: float = 60.0
    requests_per_s: float | None = None
    """None does not limit them."""
    concurrent: int = 16
    """Requests at the same time, in each event loop."""

    def __post_init__(self) -> None:
        for name in ("request_timeout_s", "tries", "concurrent", "requests_per_s"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"endpoint: {name}={value}; give a number above 0")
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError(f"endpoint: url={self.url!r}; give one like http://127.0.0.1:8000/v1")
        if self.api_key_variable is not None and not _VARIABLE.fullmatch(self.api_key_variable):
            # it may be a key, so it is not shown
            raise ConfigError(
                "endpoint: api_key_variable is no name of an environment variable; export the key, e.g. as "
                "OPENAI_API_KEY, and give that name"
            )

    def body(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The body of a request, e.g. `{"messages": […]}`, with the model and `extra`."""
        body = {"model": self.model, **request, **self.extra}
        return {name: value for name, value in body.items() if value is not None}

    def headers(self) -> dict[str, str]:
        """With the key; raises `ConfigError` if its environment variable is not set."""
        if self.api_key_variable is None:
            return {}
        key = os.environ.get(self.api_key_variable)
        if not key:
            raise ConfigError(
                f"endpoint {self.url}: the environment variable {self.api_key_variable} is not set; "
                "put the key into it"
            )
        register_secret(key)
        return {"Authorization": f"Bearer {key}"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A chat completion."""

    message: Mapping[str, Any]
    """As it came: `content`, `tool_calls` and whatever else there is, unchecked."""
    finish_reason: str | None
    total_tokens: int | None
    """Of prompt and completion; None where the endpoint does not report it."""
    policy_version: int
    """Global step of the weights, which Wingspan's gateway reports; 0 for all others."""


class ChatClient:
    """Sends requests to one endpoint, within its limits."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        before_request: Callable[[], Awaitable[None]] | None = None,
        after_reply: Callable[["Reply"], Awaitable[None]] | None = None,
    ) -> None:
        """`before_request` is called before each request, `after_reply` with each reply, usable or not; `ask`
        raises what they raise."""
        self.endpoint = endpoint
        self._before_request = before_request
        self._after_reply = after_reply
        self._url = f"{endpoint.url.rstrip('/')}/chat/completions"
        self._limiter = ConcurrencyLimiter(endpoint.concurrent)
        self._rate = RateLimiter(endpoint.requests_per_s)

    async def check(self) -> None:
        """Raise `ConfigError` if the endpoint does not answer, or the key is missing or rejected."""
        url = f"{self.endpoint.url.rstrip('/')}/models"
        try:
            response = await self._send("GET", url, body=None)
        except TryAgain as error:
            raise ConfigError(f"no endpoint: {error}; start the server, or correct the url") from None
        if response.status_code in (401, 403):  # 404: not every server lists its models
            raise self._denied(url, response)

    async def ask(self, request: Mapping[str, Any], *, read: Callable[[Reply], T]) -> T:
        """What `read` returns for the first usable reply to a body with `request` in it; `read` raises
        `TryAgain` for a reply that cannot be used.

        Raises `EndpointFailed` if no attempt succeeds or the endpoint rejects the request (`ContextFull`: for
        its length); `ConfigError` if it rejects the key, the model or the address.
        """
        endpoint = self.endpoint
        body = endpoint.body(request)

        async def attempt() -> T:
            async with self._limiter:
                await asyncio.sleep(self._rate.wait_s())
                if self._before_request is not None:
                    await self._before_request()
                response = await self._send("POST", self._url, body=body)
            if response.status_code != 200:
                raise self._failure(response)
            reply = _reply(self._url, response.text)
            if self._after_reply is not None:
                await self._after_reply(reply)
            return read(reply)

        backoff = Backoff(attempts=endpoint.tries, first_s=endpoint.backoff_s, max_s=endpoint.max_backoff_s)
        try:
            return await backoff.retry(attempt)
        except TryAgain as error:
            raise EndpointFailed(f"{error}, at the last of {endpoint.tries} tries") from error

    async def _send(self, method: str, url: str, *, body: Mapping[str, Any] | None) -> httpx.Response:
        limit_s = self.endpoint.request_timeout_s
        verify = tls_context() if url.startswith("https") else False
        try:
            async with (
                asyncio.timeout(limit_s),  # of the whole request; httpx's are of each part
                httpx.AsyncClient(verify=verify, timeout=None) as http,
            ):
                return await http.request(method, url, json=body, headers=self.endpoint.headers())
        except TimeoutError:
            raise TryAgain(f"{url}: no reply within {limit_s:g} s") from None
        except httpx.InvalidURL as error:
            raise ConfigError(f"endpoint: url={self.endpoint.url!r}: {error}; correct it") from None
        except httpx.RequestError as error:
            raise TryAgain(f"{url}: {describe(error)}") from error

    def _failure(self, response: httpx.Response) -> Exception:
        status = response.status_code
        text = _describe(self._url, response)
        if is_transient(status):
            return TryAgain(text, wait_s=retry_after_s(response))
        if status in DENIED:
            return self._denied(self._url, response)
        return ContextFull(text) if _TOO_LONG.search(response.text) else EndpointFailed(text)

    def _denied(self, url: str, response: httpx.Response) -> ConfigError:
        key = self.endpoint.api_key_variable or "none"
        return ConfigError(
            f"{_describe(url, response)}; correct the url, the model ({self.endpoint.model!r}) or the "
            f"environment variable with the key ({key})"
        )


def _describe(url: str, response: httpx.Response) -> str:
    body = quote_body(response.text, max_chars=MAX_DETAIL)
    return f"{url} answered {response.status_code}: {body}"


def _reply(url: str, text: str) -> Reply:
    decoded = decode_at(text, skip_space(text, 0))
    try:
        if isinstance(decoded, InvalidJson):
            raise ValueError(f"its JSON {decoded.why}")
        choice = decoded.value["choices"][0]
        message = choice["message"]
        if not isinstance(message, dict):
            raise TypeError(f"the message is a {type(message).__name__}")
    except (ValueError, LookupError, TypeError) as error:
        raise TryAgain(
            f"{url}: no chat completion ({describe(error)}): {quote_body(text, max_chars=MAX_DETAIL)}"
        ) from error
    usage = decoded.value.get("usage")
    total = usage.get("total_tokens") if isinstance(usage, dict) else None
    finish = choice.get("finish_reason")
    version = _VERSION.fullmatch(str(decoded.value.get("system_fingerprint")))
    return Reply(
        message=message,
        finish_reason=finish if isinstance(finish, str) else None,
        total_tokens=total if isinstance(total, int) else None,
        policy_version=int(version[1]) if version else 0,
    )
