"""A link: one session on one server, by either protocol.

A link raises `ServerUnreachable`, `ServerFull` or `SessionLost`; `EnvCrashed` if the environment fails on the
server; `ConfigError` for a request that no server accepts.
"""

import json
from contextlib import suppress
from typing import NoReturn, Protocol

from envs.errors import ConfigError, EnvCrashed, to_line
from envs.redaction import register_secret
from envs.types import Item, StepResult

CONNECT_TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = 3.0
"""The time for the last message; a server that misses it closes the session once it is idle."""


class ServerUnreachable(Exception):
    """The server did not answer, or reports that it cannot work."""


class ServerFull(Exception):
    """The server has no room for another session."""


class SessionLost(Exception):
    """The server no longer knows the session."""


class Link(Protocol):
    """A session on a server."""

    @property
    def state(self) -> str | None:
        """The key of the state that the last answer describes; None if the protocol carries none."""

    async def open(self) -> None:
        """Begin the session on the server. Idempotent."""

    async def reset(self, item: Item) -> str:
        """Start an episode; returns the first observation."""

    async def step(self, action: str) -> StepResult:
        """Apply one action."""

    async def close(self) -> None:
        """End the session; never raises."""


def headers(token: str | None) -> dict[str, str]:
    """The headers of each request."""
    register_secret(token)
    return {} if token is None else {"Authorization": f"Bearer {token}"}


def fail(status: int, detail: str, *, url: str, creates: bool) -> NoReturn:
    """Raise the error that a status other than 200 means; `creates`: the request is for a new session."""
    if status in (401, 403):
        raise ConfigError(
            f"{url} answers {status}: {detail}; give the token that the server was started with"
        )
    if status == 429:
        raise ServerFull(detail)
    if status in (404, 410) and not creates:
        raise SessionLost(detail)
    if status in (502, 503) or (creates and status >= 500):
        raise ServerUnreachable(f"{status}: {detail}")
    if status >= 500:
        raise EnvCrashed(f"{url} answers {status}: {detail}")
    raise ConfigError(f"{url} answers {status}: {detail}; is it an environment server, and `protocol` right?")


def detail_of(raw: bytes | bytearray | None) -> str:
    """The message of an error's body, on one line."""
    raw = raw or b""
    text = raw.decode(errors="replace")
    with suppress(ValueError):
        content = json.loads(raw)
        if isinstance(content, dict):
            detail = content.get("detail", content)
            text = json.dumps(detail) if isinstance(detail, list) else str(detail)
    return to_line(text, limit=300)
