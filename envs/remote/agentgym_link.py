"""AgentGym's protocol on the client's side, over HTTP."""

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Unpack

import httpx

from envs.errors import ConfigError, EnvCrashed, describe
from envs.network.client import RequestOptions, tls_context
from envs.remote.agentgym import ACTIONS, dialect_of, find_other_env
from envs.remote.link import CLOSE_TIMEOUT_S, CONNECT_TIMEOUT_S, ServerUnreachable, detail_of, fail, headers
from envs.types import Item, StepResult

KEEP_ALIVE_S = 4.0
"""How long a connection may be idle: shorter than the 5 s of AgentGym's servers, which then close it."""


class AgentGymLink:
    """A session by AgentGym's protocol as its clients use it, on Wingspan's servers and AgentGym's own."""

    state: str | None = None
    """The protocol has no place for keys of states."""

    def __init__(self, env: str, url: str, token: str | None, timeout_s: float) -> None:
        self._env = env
        self._dialect = dialect_of(env)
        self._url = url
        self._headers = headers(token)
        self._timeout_s = timeout_s
        self._http: httpx.AsyncClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        """The event loop of its connection."""
        self._session_id: int | None = None
        self._creation: asyncio.Task[None] | None = None
        self._score = 0.0

    async def open(self) -> None:
        """Begin the session. Idempotent."""
        if self._session_id is None:
            await self._check_env()
            self._creation = asyncio.create_task(self._create())
            # The server makes the instance even if nobody waits for it: then `close` reads its id.
            await asyncio.shield(self._creation)

    async def reset(self, item: Item) -> str:
        """Start an episode; returns the first observation."""
        dialect = self._dialect
        await self.open()
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
        dialect = self._dialect
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
        if self._http is None:
            return
        http = self._connect()
        self._http = None
        creation = self._creation
        try:
            with suppress(httpx.HTTPError, TimeoutError):
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    if creation is not None and creation.get_loop() is self._loop:
                        await asyncio.wait({creation})
                    if self._session_id is not None:
                        await http.post(f"{self._url}/close", json=self._session)
        finally:
            if creation is not None and creation.get_loop() is self._loop:
                creation.cancel()
            await http.aclose()

    async def _create(self) -> None:
        answer = await self._post("/create", dict(self._dialect.create_body))
        number = answer.get(self._dialect.session_key) if isinstance(answer, dict) else answer
        if not isinstance(number, int):
            raise ConfigError(f"{self._url}/create answers no id: it is no AgentGym server of {self._env}")
        self._session_id = number

    def _connect(self) -> httpx.AsyncClient:
        """The HTTP client of the running event loop; the session outlives that of an earlier one."""
        loop = asyncio.get_running_loop()
        if self._http is None or self._loop is not loop:
            self._loop = loop
            self._http = httpx.AsyncClient(
                headers=self._headers,
                timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT_S),
                limits=httpx.Limits(max_connections=1, keepalive_expiry=KEEP_ALIVE_S),
                verify=tls_context(),
                follow_redirects=True,
                trust_env=False,
            )
        return self._http

    @property
    def _session(self) -> dict[str, int | None]:
        return {self._dialect.session_key: self._session_id}

    def _opening(self, answer: Any) -> str:
        """The opening in the answer to a reset, whose form depends on the environment."""
        match answer:
            case str(text) | [str(text), *_]:
                start = self._dialect.opens_at
                return f"{start} {text.rpartition(start)[2].strip()}" if start else text
            case {"task_description": str(task), "observation": str(observation)}:
                return f"{task}\n{observation}"  # as SciWorld's client joins them
        return str(self._field(answer, "observation"))

    async def _with_actions(self, text: str, answer: object, *, done: bool) -> str:
        """The observation, with the available actions if AgentGym sends them separately."""
        path = self._dialect.actions_path
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
        http = self._connect()
        try:
            async with asyncio.timeout(self._timeout_s):
                return await http.request(method, f"{self._url}{path}", **options)
        except TimeoutError as error:
            raise ServerUnreachable(f"{path}: no answer within {self._timeout_s:g} s") from error
        except (httpx.HTTPError, OSError) as error:
            raise ServerUnreachable(f"{path}: {describe(error)}") from error

    async def _send(self, method: str, path: str, **options: Unpack[RequestOptions]) -> Any:
        response = await self._request(method, path, **options)
        raw = response.content
        if response.status_code != 200:
            fail(response.status_code, detail_of(raw), url=f"{self._url}{path}", creates=path == "/create")
        try:
            content = json.loads(raw)
        except ValueError:
            raise ConfigError(f"{self._url}{path} answers no JSON: it is no environment server") from None
        if isinstance(content, dict) and "error" in content:
            # AgentGym's own servers answer every failure like this.
            if path == "/create":
                raise ServerUnreachable(f"{path}: {content['error']}")
            raise EnvCrashed(f"{self._url}{path}: {content['error']}")
        return content

    def _field(self, content: Mapping[str, Any], name: str) -> Any:
        try:
            return content[name]
        except (KeyError, TypeError):
            raise ConfigError(
                f"{self._url} answers without {name!r}: it is no AgentGym server of {self._env}"
            ) from None
