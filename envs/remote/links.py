"""The two protocols from the client's side: one link is one session on one server.

A link says what happened in three ways: `Unreachable` (the server), `Gone` (the session), `Full` (no room);
an environment that broke there is an `EnvCrashed`, a request that no server will take a `ConfigError`.
"""

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NoReturn, Protocol

import aiohttp

from envs.errors import ConfigError, EnvCrashed, describe
from envs.redaction import redact, register_secret
from envs.remote.agentgym import ACTIONS, dialect_of
from envs.types import Item, StepResult

CONNECT_TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = 3.0
"""To say good-bye; a server that does not hear it closes the session when it is idle."""

MAX_MESSAGE_BYTES = 16 << 20


class Unreachable(Exception):
    """The server did not answer, or not as one that works."""


class Full(Exception):
    """The server has no room for another session."""


class Gone(Exception):
    """The server does not know the session any more."""


class Link(Protocol):
    """One session."""

    async def reset(self, item: Item) -> str:
        """Start an episode, in a new session at the first call; returns the first observation."""
        ...

    async def step(self, action: str) -> StepResult:
        """One action."""
        ...

    async def close(self) -> None:
        """End the session; never raises."""
        ...


class AgentGymLink:
    """AgentGym's protocol, as its clients speak it: to our servers and to its own."""

    def __init__(self, url: str, token: str | None, timeout_s: float) -> None:
        self._url = url
        self._headers = _headers(token)
        self._timeout_s = timeout_s
        self._http: aiohttp.ClientSession | None = None
        self._session_id: int | None = None
        self._env = ""
        self._score = 0.0

    async def reset(self, item: Item) -> str:
        """See `Link`."""
        if self._http is None:
            self._http = _client(self._headers, self._timeout_s)
        self._env = item.env
        dialect = dialect_of(self._env)
        if self._session_id is None:
            created = await self._post("/create", dict(dialect.create_body))
            number = created.get(dialect.session_key) if isinstance(created, dict) else created
            if not isinstance(number, int):
                raise ConfigError(f"{self._url}/create answers no id: it is no AgentGym server of {item.env}")
            self._session_id = number
        opened = await self._post(
            "/reset",
            {dialect.session_key: self._session_id, dialect.item_key: item.index, **dialect.reset_extras},
        )
        self._score = 0.0
        if dialect.opens_with_prompt:
            opened = await self._get("/observation")
        return await self._with_actions(self._opening(opened), opened, done=False)

    async def step(self, action: str) -> StepResult:
        """See `Link`."""
        dialect = dialect_of(self._env)
        stepped = await self._post("/step", {dialect.session_key: self._session_id, "action": action})
        done = bool(self._field(stepped, dialect.end_key))
        if dialect.score_key:
            # Of a lost episode, whose points are below 0, nothing is left, and no less.
            score = max(0.0, self._field(stepped, dialect.score_key) / dialect.points)
        else:
            score = self._score + self._field(stepped, "reward") / dialect.points
        gained, self._score = score - self._score, score
        text = self._field(stepped, dialect.text_key)
        return StepResult(
            await self._with_actions(text, stepped, done=done),
            gained,
            terminated=done,
            success=done and self._score > dialect.success_above,
        )

    async def close(self) -> None:
        """See `Link`."""
        http, self._http = self._http, None
        if http is None:
            return
        with suppress(aiohttp.ClientError, TimeoutError):
            if self._session_id is not None:
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await http.post(f"{self._url}/close", json=self._me)
        await http.close()

    @property
    def _me(self) -> dict[str, int | None]:
        return {dialect_of(self._env).session_key: self._session_id}

    def _opening(self, opened: Any) -> str:
        """What a reset tells, in whichever form its environment has."""
        match opened:
            case str(text) | [str(text), *_]:
                at = dialect_of(self._env).opens_at
                return f"{at} {text.rpartition(at)[2].strip()}" if at else text
            case {
                "task_description": str(task),
                "observation": str(seen),
            }:  # together, as SciWorld's client has them
                return f"{task}\n{seen}"
        return str(self._field(opened, "observation"))

    async def _with_actions(self, text: str, answer: Any, *, done: bool) -> str:
        """What is seen, with the actions that there are, where AgentGym tells them apart."""
        path = dialect_of(self._env).actions_path
        if path:
            return f"{text}\n{ACTIONS}{json.dumps(await self._get(path), ensure_ascii=False)}"
        if not done and isinstance(answer, dict) and "available_actions" in answer:
            return f"{text}\n{ACTIONS}{', '.join(answer['available_actions'])}"
        return text

    async def _post(self, path: str, body: dict[str, Any]) -> Any:
        return await self._send("POST", path, json=body)

    async def _get(self, path: str) -> Any:
        return await self._send("GET", path, params=self._me)

    async def _send(self, method: str, path: str, **content: Any) -> Any:
        assert self._http is not None
        try:
            async with self._http.request(method, f"{self._url}{path}", **content) as response:
                raw = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unreachable(f"{path}: {describe(error)}") from error
        if response.status != 200:
            _refused(response.status, _detail(raw), url=f"{self._url}{path}", creates=path == "/create")
        try:
            content = json.loads(raw)
        except ValueError:
            raise ConfigError(f"{self._url}{path} answers no JSON: it is no environment server") from None
        if isinstance(content, dict) and "error" in content:
            # AgentGym's own servers say so of whatever went wrong.
            raise EnvCrashed(f"{self._url}{path}: {content['error']}")
        return content

    def _field(self, content: Mapping[str, Any], name: str) -> Any:
        try:
            return content[name]
        except (KeyError, TypeError):
            raise ConfigError(
                f"{self._url} answers without {name!r}: it is no AgentGym server of {self._env}"
            ) from None


class OpenEnvLink:
    """OpenEnv's WebSocket, with texts as `envs/serve/openenv.py` has them."""

    def __init__(self, url: str, token: str | None, timeout_s: float) -> None:
        self._url = f"{url}/ws"
        self._headers = _headers(token)
        self._timeout_s = timeout_s
        self._http: aiohttp.ClientSession | None = None
        self._socket: aiohttp.ClientWebSocketResponse | None = None

    async def reset(self, item: Item) -> str:
        """See `Link`."""
        if self._socket is None:
            await self._connect()
        wanted = {"item_id": item.item_id, "seed": item.seed, "metadata": dict(item.metadata)}
        return self._observed(await self._ask("reset", wanted)).observation

    async def step(self, action: str) -> StepResult:
        """See `Link`."""
        return self._observed(await self._ask("step", {"text": action}))

    async def close(self) -> None:
        """See `Link`."""
        http, self._http = self._http, None
        socket, self._socket = self._socket, None
        with suppress(aiohttp.ClientError, TimeoutError, ConnectionError):
            if socket is not None:
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await socket.close()
        if http is not None:
            await http.close()

    async def _connect(self) -> None:
        if self._http is None:
            self._http = _client(self._headers, self._timeout_s)
        try:
            async with asyncio.timeout(min(CONNECT_TIMEOUT_S, self._timeout_s)):
                self._socket = await self._http.ws_connect(self._url, max_msg_size=MAX_MESSAGE_BYTES)
        except aiohttp.WSServerHandshakeError as error:
            _refused(error.status, error.message, url=self._url, creates=True)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unreachable(describe(error)) from error

    async def _ask(self, kind: str, data: dict[str, Any]) -> Any:
        socket = self._socket
        if socket is None:
            raise RuntimeError("step before reset")
        try:
            async with asyncio.timeout(self._timeout_s):
                await socket.send_str(json.dumps({"type": kind, "data": data}))
                message = await socket.receive()
        except TimeoutError as error:
            raise Unreachable(f"{kind}: no answer within {self._timeout_s:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            # Idle too long, or the server has died: the next connection tells.
            raise Gone(f"{kind}: {describe(error)}") from error
        if message.type is not aiohttp.WSMsgType.TEXT:
            raise Gone(f"{kind}: the server closed the connection")
        try:
            answered = json.loads(message.data)
            said, content = answered["type"], answered["data"]
        except (ValueError, KeyError, TypeError):
            raise ConfigError(f"{self._url} answers {message.data[:60]!r}: it is no OpenEnv server") from None
        if said == "error":
            self._failed(content)
        return content

    def _failed(self, told: Mapping[str, Any]) -> NoReturn:
        said = told.get("message", "no reason given")
        match told.get("code"):
            case "CAPACITY_REACHED":
                raise Full(said)
            case "VALIDATION_ERROR" | "UNKNOWN_TYPE" | "INVALID_JSON":
                raise ConfigError(f"{self._url}: {said}")
            case _:
                raise EnvCrashed(f"{self._url}: {said}")

    def _observed(self, data: Mapping[str, Any]) -> StepResult:
        seen = data["observation"]
        if "text" not in seen:
            raise ConfigError(f"{self._url} answers {sorted(seen)} where 'text' is expected: not our server")
        return StepResult(
            seen["text"],
            data["reward"] or 0.0,
            terminated=seen["terminated"],
            truncated=seen["truncated"],
            success=seen["success"],
            metrics=seen["metrics"],
        )


def _client(headers: Mapping[str, str], timeout_s: float) -> aiohttp.ClientSession:
    """For one session: one connection, kept."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=1),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers=headers,
        timeout=aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_TIMEOUT_S),
    )


def _headers(token: str | None) -> dict[str, str]:
    register_secret(token)
    return {} if token is None else {"Authorization": f"Bearer {token}"}


def _refused(status: int, detail: str, *, url: str, creates: bool) -> NoReturn:
    """Raise what a status other than 200 means."""
    if status in (401, 403):
        raise ConfigError(
            f"{url} answers {status}: {detail}; give the token that the server was started with"
        )
    if status == 429:
        raise Full(detail)
    if status in (404, 410) and not creates:
        raise Gone(detail)
    if status in (502, 503) or (creates and status >= 500):
        raise Unreachable(f"{status}: {detail}")
    if status >= 500:
        raise EnvCrashed(f"{url} answers {status}: {detail}")
    raise ConfigError(f"{url} answers {status}: {detail}; is it an environment server, and `protocol` right?")


def _detail(raw: bytes) -> str:
    """What an error answer says, on one line."""
    said = raw.decode(errors="replace")
    with suppress(ValueError):
        content = json.loads(raw)
        if isinstance(content, dict):
            said = (
                json.dumps(content["detail"])
                if isinstance(content.get("detail"), list)
                else str(content.get("detail", content))
            )
    return redact(" ".join(said.split()))[:300]
