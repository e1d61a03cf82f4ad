"""An OpenAI-compatible endpoint: a request for a chat completion in, a reply out, however often it takes.

After an answer 408, 409, 429 or 5xx, a connection that fails or a reply that is none it is asked again, later
each time. Connections live for one request: a model thinks for longer than one takes to open, and none is
left to close. What is asked, and what a reply means, is the callers' (a speaker, a judge).
"""

import asyncio
import os
import re
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import cache
from typing import Any, NoReturn, TypeVar

import httpx

from agents.clients.rate_limit import ConcurrencyLimiter, RateLimiter
from agents.formats.json_values import InvalidJson, decode_at, skip_space
from envs.errors import ConfigError, describe
from envs.redaction import redact, register_secret

_LATER = (408, 409, 429)
_DENIED = (401, 403, 404)
_DETAIL = 300  # characters of an error's body that are shown
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# "maximum context length" (OpenAI, vLLM), "the model's context length" (SGLang), "exceeds the available
# context size" (llama.cpp), "context_length_exceeded" and "context window" (OpenAI, and others after it)
_TOO_LONG = re.compile(r"context[ _](?:length|size|window)", re.IGNORECASE)
_VERSION = re.compile(r"policy_version=(\d{1,18})")  # `agents/gateway/answers.py`

T = TypeVar("T")


class EndpointFailed(Exception):
    """The endpoint gave no usable reply to one request."""


class TryAgain(EndpointFailed):
    """It may give one later."""

    def __init__(self, text: str, *, wait_s: float | None = None) -> None:
        super().__init__(text)
        self.wait_s = wait_s


class ContextFull(EndpointFailed):
    """The conversation is longer than the model's context."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Which model is asked, where, and how hard."""

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
    """None is as they come."""
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

    def body(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Of the request that asks for `asked`, e.g. `{"messages": […]}`."""
        body = {"model": self.model, **asked, **self.extra}
        return {name: value for name, value in body.items() if value is not None}

    def headers(self) -> dict[str, str]:
        """With the key; raises `ConfigError` if that is not where it should be."""
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
    """Of prompt and completion; None where the endpoint does not tell."""
    policy_version: int
    """Global step of the weights, which our own gateway tells; 0 for all others."""


class ChatClient:
    """Asks one endpoint, within its limits."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        before_request: Callable[[], Awaitable[None]] | None = None,
        after_reply: Callable[["Reply"], Awaitable[None]] | None = None,
    ) -> None:
        """`before_request` is called before each is sent, `after_reply` with each that comes, whether it can
        be used or not; what they raise is raised by `ask`."""
        self.endpoint = endpoint
        self._before_request = before_request
        self._after_reply = after_reply
        self._url = f"{endpoint.url.rstrip('/')}/chat/completions"
        self._limiter = ConcurrencyLimiter(endpoint.concurrent)
        self._rate = RateLimiter(endpoint.requests_per_s)

    async def check(self) -> None:
        """Raise `ConfigError` if nobody answers there, the key is not where it should be, or is refused."""
        url = f"{self.endpoint.url.rstrip('/')}/models"
        try:
            answer = await self._send("GET", url, body=None)
        except TryAgain as error:
            raise ConfigError(f"no endpoint: {error}; start the server, or correct the url") from None
        if answer.status_code in (401, 403):  # 404: not every server lists its models
            self._denied(url, answer)

    async def ask(self, asked: Mapping[str, Any], *, read: Callable[[Reply], T]) -> T:
        """What `read` makes of the reply to a request with `asked` in its body, from the first try that it
        accepts; it raises `TryAgain` for a reply that cannot be used.

        Raises `EndpointFailed` if there is none, or the endpoint will not answer this request
        (`ContextFull`: for its length); `ConfigError` if it refuses the key, the model or the address.
        """
        endpoint = self.endpoint
        body = endpoint.body(asked)
        backoff_s = endpoint.backoff_s
        for attempt in range(1, endpoint.tries + 1):
            try:
                async with self._limiter:
                    await asyncio.sleep(self._rate.wait_s())
                    if self._before_request is not None:
                        await self._before_request()
                    answer = await self._send("POST", self._url, body=body)
                if answer.status_code != 200:
                    self._refused(answer)
                reply = _reply(self._url, answer.text)
                if self._after_reply is not None:
                    await self._after_reply(reply)
                return read(reply)
            except TryAgain as error:
                if attempt == endpoint.tries:
                    raise EndpointFailed(f"{error}, at the last of {attempt} tries") from error
                wait_s = backoff_s if error.wait_s is None else error.wait_s
            await asyncio.sleep(min(wait_s, endpoint.max_backoff_s))
            backoff_s *= 2
        raise AssertionError("there is at least one try")

    async def _send(self, method: str, url: str, *, body: Mapping[str, Any] | None) -> httpx.Response:
        limit_s = self.endpoint.request_timeout_s
        try:
            async with (
                asyncio.timeout(limit_s),  # of the whole; httpx' are of each part
                httpx.AsyncClient(verify=_tls() if url.startswith("https") else False, timeout=None) as http,
            ):
                return await http.request(method, url, json=body, headers=self.endpoint.headers())
        except TimeoutError:
            raise TryAgain(f"{url}: no reply within {limit_s:g} s") from None
        except httpx.InvalidURL as error:
            raise ConfigError(f"endpoint: url={self.endpoint.url!r}: {error}; correct it") from None
        except httpx.RequestError as error:
            raise TryAgain(f"{url}: {describe(error)}") from error

    def _refused(self, answer: httpx.Response) -> NoReturn:
        status = answer.status_code
        said = _said(self._url, answer)
        if status in _LATER or status >= 500:
            raise TryAgain(said, wait_s=_seconds(answer.headers.get("retry-after")))
        if status in _DENIED:
            self._denied(self._url, answer)
        if _TOO_LONG.search(answer.text):
            raise ContextFull(said)
        raise EndpointFailed(said)

    def _denied(self, url: str, answer: httpx.Response) -> NoReturn:
        key = self.endpoint.api_key_variable or "none"
        raise ConfigError(
            f"{_said(url, answer)}; correct the url, the model ({self.endpoint.model!r}) or the environment "
            f"variable with the key ({key})"
        )


def _said(url: str, answer: httpx.Response) -> str:
    return f"{url} answered {answer.status_code}: {_quoted(answer.text)}"


def _quoted(text: str) -> str:
    """What a server said, on one line; cut after it is redacted, so that no part of a key is left."""
    return redact(" ".join(text.split()))[:_DETAIL]


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
        raise TryAgain(f"{url}: no chat completion ({describe(error)}): {_quoted(text)}") from error
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


def _seconds(header: str | None) -> float | None:
    """Of a `Retry-After`; dates, which it may hold too, are left to the backoff."""
    return float(header) if header is not None and header.isdecimal() else None


@cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()
