"""Clients of OpenAI-compatible endpoints, with retries, and that of chat completions.

A request is sent again, with growing waits, after status 408, 409, 429 or 5xx, a failed connection or an
unusable reply. Connections live for one request: a model thinks for longer than one takes to open, and none
is left to close. The callers (a model client, a judge) choose the messages and interpret the replies.
"""

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field, fields
from typing import Self, TypeVar

import httpx

from agents.clients.rate_limit import ConcurrencyLimiter, RateLimiter
from agents.formats.json_values import InvalidJson, decode_at, skip_space
from agents.settings import EndpointSettings
from envs.errors import ConfigError, describe, to_line
from envs.network.client import (
    DENIALS,
    MAX_DETAIL,
    Backoff,
    TryAgain,
    describe_response,
    is_http_url,
    send,
    tls_context,
)
from envs.redaction import register_secret

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


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """The key of an HTTP endpoint, and limits on its use."""

    api_key_variable: str | None = None
    """The environment variable that holds the key; keys are never written into settings."""
    request_timeout_s: float = 60.0
    max_attempts: int = 5
    """The most attempts at one request, the first included."""
    backoff_s: float = 1.0
    """The wait before the second attempt; twice as long before each further one, unless the endpoint says how
    long."""
    max_backoff_s: float = 60.0
    requests_per_s: float | None = None
    """None does not limit them. Each process has its own limit."""
    max_concurrency: int = 16
    """Requests at the same time, in each event loop."""

    def check(self, subject: str) -> None:
        """Raise `ConfigError` for a number that is not above 0; `subject` begins the text."""
        for limit in fields(RequestLimits):
            value = getattr(self, limit.name)
            if limit.name != "api_key_variable" and value is not None and not value > 0:
                raise ConfigError(f"{subject}: {limit.name}={value}; give a number above 0")

    def key(self, subject: str) -> str | None:
        """The key, if one is needed; raises `ConfigError` if its environment variable is not set."""
        if self.api_key_variable is None:
            return None
        key = os.environ.get(self.api_key_variable)
        if not key:
            raise ConfigError(
                f"{subject}: the environment variable {self.api_key_variable} is not set; put the key into it"
            )
        register_secret(key)
        return key

    async def retry(self, attempt: Callable[[], Awaitable[T]], *, error: Callable[[str], Exception]) -> T:
        """The result of the first attempt that succeeds; raises `error`, made from the reason, if none
        does."""
        backoff = Backoff(max_attempts=self.max_attempts, first_s=self.backoff_s, max_s=self.max_backoff_s)
        try:
            return await backoff.retry(attempt)
        except TryAgain as failure:
            raise error(f"{failure}, at the last of {self.max_attempts} attempts") from failure


@dataclass(frozen=True, slots=True)
class Endpoint(RequestLimits):
    """Address and model of an endpoint."""

    url: str
    """Up to the version, e.g. `http://127.0.0.1:8000/v1`."""
    model: str
    _: KW_ONLY
    extra: Mapping[str, object] = field(default_factory=dict)
    """Further entries of each request's body, before all others; None takes one out."""

    @classmethod
    def from_settings(cls, settings: EndpointSettings) -> Self:
        """The endpoint of `settings`. Raises `ConfigError` for an invalid URL or name of a variable."""
        limits = settings.model_dump(include={limit.name for limit in fields(RequestLimits)})
        return cls(settings.url, settings.model, api_key_variable=settings.key_from, **limits)

    def __post_init__(self) -> None:
        self.check("endpoint")
        if not is_http_url(self.url):
            raise ConfigError(f"endpoint: url={self.url!r}; give one like http://127.0.0.1:8000/v1")
        if self.api_key_variable is not None and not _VARIABLE.fullmatch(self.api_key_variable):
            # it may be a key, so it is not shown
            raise ConfigError(
                "endpoint: api_key_variable is no name of an environment variable; export the key, e.g. as "
                "OPENAI_API_KEY, and give that name"
            )

    def body(self, request: Mapping[str, object]) -> dict[str, object]:
        """The body of a request, e.g. `{"messages": […]}`, with the model and `extra`."""
        body = {"model": self.model, **request, **self.extra}
        return {name: value for name, value in body.items() if value is not None}

    def headers(self) -> dict[str, str]:
        """The headers of a request, with the key; raises `ConfigError` if its environment variable is not
        set."""
        key = self.key(f"endpoint {self.url}")
        return {} if key is None else {"Authorization": f"Bearer {key}"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatReply:
    """A chat completion."""

    message: Mapping[str, object]
    """The message as it came: `content`, `tool_calls` and whatever else there is, unchecked."""
    finish_reason: str | None
    total_tokens: int | None
    """The number of tokens of prompt and completion; None where the endpoint does not report it."""
    policy_version: int
    """Global step of the weights, which Wingspan's gateway reports; 0 for all others."""


class EndpointClient:
    """Sends requests to one endpoint, within its limits."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._limiter = ConcurrencyLimiter(endpoint.max_concurrency)
        self._rate = RateLimiter(endpoint.requests_per_s)

    async def check(self) -> None:
        """Raise `ConfigError` if the endpoint does not answer, or the key is missing or rejected."""
        url = f"{self.endpoint.url.rstrip('/')}/models"
        try:
            response = await self._send("GET", url, body=None)
        except TryAgain as error:
            raise ConfigError(f"no endpoint: {error}; start the server, or correct the url") from None
        if response.status_code in (401, 403):  # 404: not every server lists its models
            raise self._denial(response)

    async def _post(
        self,
        url: str,
        body: Mapping[str, object],
        *,
        before_request: Callable[[], Awaitable[None]] | None = None,
    ) -> httpx.Response:
        """The response to one request, of status 200; `before_request` is called when its turn has come.

        Raises `TryAgain` where the same request may succeed later, else `EndpointFailed` (`ContextFull`: for
        its length), and `ConfigError` if the key, the model or the address is rejected.
        """
        async with self._limiter:
            await asyncio.sleep(self._rate.wait_s())
            if before_request is not None:
                await before_request()
            response = await self._send("POST", url, body=body)
        if response.status_code in DENIALS:
            raise self._denial(response)
        if response.status_code != 200:
            text = describe_response(response)
            raise ContextFull(text) if _TOO_LONG.search(response.text) else EndpointFailed(text)
        return response

    async def _send(self, method: str, url: str, *, body: Mapping[str, object] | None) -> httpx.Response:
        limit_s = self.endpoint.request_timeout_s
        verify = tls_context() if url.startswith("https") else False
        headers = self.endpoint.headers()
        async with httpx.AsyncClient(verify=verify, timeout=None) as http:
            return await send(http, method, url, timeout_s=limit_s, json=body, headers=headers)

    def _denial(self, response: httpx.Response) -> ConfigError:
        key = self.endpoint.api_key_variable or "none"
        return ConfigError(
            f"{describe_response(response)}; correct the url, the model ({self.endpoint.model!r}) or the "
            f"environment variable with the key ({key})"
        )


class ChatClient(EndpointClient):
    """Asks one endpoint for chat completions."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        before_request: Callable[[], Awaitable[None]] | None = None,
        after_reply: Callable[["ChatReply"], Awaitable[None]] | None = None,
    ) -> None:
        """`before_request` is called before each request, `after_reply` with each reply, usable or not; `ask`
        raises what they raise."""
        super().__init__(endpoint)
        self._before_request = before_request
        self._after_reply = after_reply
        self._url = f"{endpoint.url.rstrip('/')}/chat/completions"

    async def ask(self, request: Mapping[str, object], *, read: Callable[[ChatReply], T]) -> T:
        """What `read` returns for the first usable reply to a body with `request` in it; `read` raises
        `TryAgain` for a reply that cannot be used.

        Raises `EndpointFailed` if no attempt succeeds or the endpoint rejects the request (`ContextFull`: for
        its length); `ConfigError` if it rejects the key, the model or the address.
        """
        body = self.endpoint.body(request)

        async def attempt() -> T:
            response = await self._post(self._url, body, before_request=self._before_request)
            reply = _reply(self._url, response.text)
            if self._after_reply is not None:
                await self._after_reply(reply)
            return read(reply)

        return await self.endpoint.retry(attempt, error=EndpointFailed)


def _reply(url: str, text: str) -> ChatReply:
    document = decode_at(text, skip_space(text, 0))
    try:
        if isinstance(document, InvalidJson):
            raise ValueError(f"its JSON {document.why}")
        choice = document.value["choices"][0]
        message = choice["message"]
        if not isinstance(message, dict):
            raise TypeError(f"the message is a {type(message).__name__}")
    except (ValueError, LookupError, TypeError) as error:
        raise TryAgain(
            f"{url}: no chat completion ({describe(error)}): {to_line(text, limit=MAX_DETAIL)}"
        ) from error
    usage = document.value.get("usage")
    total = usage.get("total_tokens") if isinstance(usage, dict) else None
    finish = choice.get("finish_reason")
    version = _VERSION.fullmatch(str(document.value.get("system_fingerprint")))
    return ChatReply(
        message=message,
        finish_reason=finish if isinstance(finish, str) else None,
        total_tokens=total if isinstance(total, int) else None,
        policy_version=int(version[1]) if version else 0,
    )
