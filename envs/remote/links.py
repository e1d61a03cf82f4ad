"""The two protocols on the client's side: one link is one session on one server.

A link raises `ServerUnreachable`, `ServerFull` or `SessionLost`; `EnvCrashed` if the environment fails on the
server; `ConfigError` for a request that no server accepts.
"""

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NoReturn, Unpack

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from envs.errors import ConfigError, EnvCrashed, describe, to_line
from envs.network.client import RequestOptions, tls_context
from envs.redaction import register_secret
from envs.remote.agentgym import ACTIONS, dialect_of, find_other_env
from envs.types import Item, StepResult

CONNECT_TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = 3.0
"""The time for the last message; a server that misses it closes the session once it is idle."""
KEEP_ALIVE_S = 4.0
"""How long a connection may be idle: shorter than the 5 s of AgentGym's servers, which then close it."""

MAX_MESSAGE_BYTES = 16 << 20


class ServerUnreachable(Exception):
    """The server did not answer, or reports that it cannot work."""


class ServerFull(Exception):
    """The server has no room for another session."""


class SessionLost(Exception):
    """The server no longer knows the session."""


class AgentGymLink:
    """A session by AgentGym's protocol as its clients use it, on Wingspan's servers and AgentGym's own."""

    state: str | None = None
    """The protocol has no place for keys of states."""

    def __init__(self, url: str, token: str | None, timeout_s: float) -> None:
        self._url = url
        self._headers = _headers(token)
        self._timeout_s = timeout_s
        self._http: httpx.AsyncClient | None = None
        self._session_id: int | None = None
        self._env = ""
        self._score = 0.0

    async def reset(self, item: Item) -> str:
        """Start an episode, in a new session at the first call; returns the first observation."""
        if self._http is None:
            self._http = httpx.AsyncClient(
                headers=self._headers,
                timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT_S),
                limits=httpx.Limits(max_connections=1, keepalive_expiry=KEEP_ALIVE_S),
                verify=tls_context(),
                follow_redirects=True,
                trust_env=False,
            )
        self._env = item.env
        dialect = dialect_of(self._env)
        if self._session_id is None:
            await self._check_env()
            answer = await self._post("/create", dict(dialect.create_body))
            number = answer.get(dialect.session_key) if isinstance(answer, dict) else answer
            if not isinstance(number, int):
                raise ConfigError(f"{self._url}/create answers no id: it is no AgentGym server of {item.env}")
            self._session_id = number
        answer = await self._post(
            "/reset",
            {dialect.session_key: self._session_id, dialect.item_key: item.index, **dialect.reset_extras},
        )
        self._score = 0.0
        if dialect.opens_with_prompt:
            answer = await self._get("/observation")
        return await self._with_actions(self._opening(answer), answer, done=False)

    async def step(self, action: str) -> StepResult:
        """One action."""
        dialect = dialect_of(self._env)
        answer = await self._post("/step", {dialect.session_key: self._session_id, "action": action})
        done = bool(self._field(answer, dialect.end_key))
        if dialect.score_key:
            # A lost episode has points below 0; its score is 0.
            score = max(0.0, self._field(answer, dialect.score_key) / dialect.points)
        else:
            score = self._score + self._field(answer, "reward") / dialect.points
        reward, self._score = score - self._score, score
        text = self._field(answer, dialect.text_key)
        return StepResult(
            await self._with_actions(text, answer, done=done),
            reward,
            terminated=done,
            success=done and self._score > dialect.success_above,
        )

    async def close(self) -> None:
        """End the session; never raises."""
        http, self._http = self._http, None
        if http is None:
            return
        with suppress(httpx.HTTPError, TimeoutError):
            if self._session_id is not None:
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await http.post(f"{self._url}/close", json=self._session)
        await http.aclose()

    @property
    def _session(self) -> dict[str, int | None]:
        return {dialect_of(self._env).session_key: self._session_id}

    def _opening(self, answer: Any) -> str:
        """The opening in the answer to a reset, whose form depends on the environment."""
        match answer:
            case str(text) | [str(text), *_]:
                start = dialect_of(self._env).opens_at
                return f"{start} {text.rpartition(start)[2].strip()}" if start else text
            case {"task_description": str(task), "observation": str(observation)}:
                return f"{task}\n{observation}"  # as SciWorld's client joins them
        return str(self._field(answer, "observation"))

    async def _with_actions(self, text: str, answer: object, *, done: bool) -> str:
        """The observation, with the available actions if AgentGym sends them separately."""
        path = dialect_of(self._env).actions_path
        if path:
            return f"{text}\n{ACTIONS}{json.dumps(await self._get(path), ensure_ascii=False)}"
        if not done and isinstance(answer, dict) and "available_actions" in answer:
            return f"{text}\n{ACTIONS}{', '.join(answer['available_actions'])}"
        return text

    async def _check_env(self) -> None:
        """Raise `ConfigError` if the server names another environment than the item's."""
        response = await self._request("GET", "/")
        other_env = find_other_env(response.text, self._env) if response.status_code == 200 else None
        if other_env is not None:
            raise ConfigError(
                f"{self._url} serves environment {other_env!r}, not {self._env!r}; correct the URL"
            )

    async def _post(self, path: str, body: dict[str, object]) -> Any:
        return await self._send("POST", path, json=body)

    async def _get(self, path: str) -> Any:
        return await self._send("GET", path, params=self._session)

    async def _request(self, method: str, path: str, **options: Unpack[RequestOptions]) -> httpx.Response:
        assert self._http is not None
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._http.request(method, f"{self._url}{path}", **options)
        except TimeoutError as error:
            raise ServerUnreachable(f"{path}: no answer within {self._timeout_s:g} s") from error
        except (httpx.HTTPError, OSError) as error:
            raise ServerUnreachable(f"{path}: {describe(error)}") from error

    async def _send(self, method: str, path: str, **options: Unpack[RequestOptions]) -> Any:
        response = await self._request(method, path, **options)
        raw = response.content
        if response.status_code != 200:
            _fail(response.status_code, _detail(raw), url=f"{self._url}{path}", creates=path == "/create")
        try:
            content = json.loads(raw)
        except ValueError:
            raise ConfigError(f"{self._url}{path} answers no JSON: it is no environment server") from None
        if isinstance(content, dict) and "error" in content:
            # AgentGym's own servers answer every failure like this.
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
    """A session by OpenEnv's WebSocket, with texts as in `envs/serve/openenv.py`."""

    def __init__(self, url: str, token: str | None, timeout_s: float) -> None:
        self._url = f"{url}/ws"
        self._headers = _headers(token)
        self._timeout_s = timeout_s
        self._socket: ClientConnection | None = None
        self.state: str | None = None
        """The key of the state that the last answer describes."""

    async def reset(self, item: Item) -> str:
        """Start an episode, in a new session at the first call; returns the first observation."""
        if self._socket is None:
            self._socket = await self._connect()
        request = {"item_id": item.item_id, "seed": item.seed, "metadata": dict(item.metadata)}
        return self._read_result(await self._ask("reset", request)).observation

    async def step(self, action: str) -> StepResult:
        """One action."""
        return self._read_result(await self._ask("step", {"text": action}))

    async def close(self) -> None:
        """End the session; never raises."""
        socket, self._socket = self._socket, None
        if socket is not None:
            await socket.close()

    async def _connect(self) -> ClientConnection:
        try:
            return await connect(
                f"ws{self._url.removeprefix('http')}",
                additional_headers=self._headers,
                open_timeout=min(CONNECT_TIMEOUT_S, self._timeout_s),
                close_timeout=CLOSE_TIMEOUT_S,
                ping_interval=None,  # `request_timeout_s` decides when a server counts as dead
                compression=None,
                max_size=MAX_MESSAGE_BYTES,
                proxy=None,
            )
        except InvalidStatus as error:
            response = error.response
            _fail(response.status_code, _detail(response.body), url=self._url, creates=True)
        except (WebSocketException, TimeoutError, OSError) as error:
            raise ServerUnreachable(describe(error)) from error

    async def _ask(self, kind: str, data: dict[str, object]) -> Any:
        socket = self._socket
        if socket is None:
            raise RuntimeError("step before reset")
        try:
            async with asyncio.timeout(self._timeout_s):
                with suppress(ConnectionClosed):  # the server's last message may still be unread
                    await socket.send(json.dumps({"type": kind, "data": data}))
                message = await socket.recv()
        except TimeoutError as error:
            raise ServerUnreachable(f"{kind}: no answer within {self._timeout_s:g} s") from error
        except (WebSocketException, OSError) as error:
            # The session was idle for too long, or the server died: the next connection shows which.
            raise SessionLost(f"{kind}: {describe(error)}") from error
        try:
            answer = json.loads(message)
            answer_type, content = answer["type"], answer["data"]
        except (ValueError, KeyError, TypeError):
            raise ConfigError(f"{self._url} answers {message[:60]!r}: it is no OpenEnv server") from None
        if answer_type == "error":
            self._fail(content)
        return content

    def _fail(self, error: Mapping[str, object]) -> NoReturn:
        message = error.get("message", "no reason given")
        match error.get("code"):
            case "CAPACITY_REACHED":
                raise ServerFull(message)
            case "VALIDATION_ERROR" | "UNKNOWN_TYPE" | "INVALID_JSON":
                raise ConfigError(f"{self._url}: {message}")
            case _:
                raise EnvCrashed(f"{self._url}: {message}")

    def _read_result(self, data: Mapping[str, Any]) -> StepResult:
        observation = data["observation"]
        if "text" not in observation:
            raise ConfigError(
                f"{self._url} answers {sorted(observation)} where 'text' is expected: not our server"
            )
        self.state = (data.get("metadata") or {}).get("state_key")
        return StepResult(
            observation["text"],
            data["reward"] or 0.0,
            terminated=observation["terminated"],
            truncated=observation["truncated"],
            success=observation["success"],
            metrics=observation["metrics"],
        )


def _headers(token: str | None) -> dict[str, str]:
    register_secret(token)
    return {} if token is None else {"Authorization": f"Bearer {token}"}


def _fail(status: int, detail: str, *, url: str, creates: bool) -> NoReturn:
    """Raise the error that a status other than 200 means."""
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


def _detail(raw: bytes | bytearray | None) -> str:
    """The message of an error's body, on one line."""
    raw = raw or b""
    text = raw.decode(errors="replace")
    with suppress(ValueError):
        content = json.loads(raw)
        if isinstance(content, dict):
            detail = content.get("detail", content)
            text = json.dumps(detail) if isinstance(detail, list) else str(detail)
    return to_line(text, limit=300)
