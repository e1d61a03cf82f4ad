"""OpenEnv: environments on a server that speaks OpenEnv's protocol.

`openenv:http://host:8000` is the server's address. Each live instance is a session over the WebSocket `/ws`
(messages `reset` and `step`, one answer each); `/schema` describes the fields of an action. The `openenv`
package is not needed: it would also install a web interface and clients of paid services.

Item `openenv:<address>_<N>` is a reset with seed `N`, which the server may ignore. Rewards and the end are
the server's. Success is `success` or `is_success` in its observation or metadata; without them, an end with a
reward of at least 1. `truncated` in the metadata counts.
"""

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.protocol import State

from envs.adapters.openenv_text import ActionForm, observation_text
from envs.adapters.seeds import seeded_split
from envs.errors import ConfigError, EnvCrashed, to_line
from envs.network.client import is_http_url
from envs.registry import EnvSpec, no_expert
from envs.types import Item, StepResult

FAMILY = "openenv"
EXAMPLE = "openenv:http://127.0.0.1:8000"
SOURCE = "a server that speaks OpenEnv: episodes by seed"
PACKAGES = ("websockets",)
CONNECT_TIMEOUT_S = 10.0
GOODBYE_S = 2.0
"""The time for the server to end a session that was closed."""
MAX_MESSAGE = 16 << 20
"""Bytes of one answer."""

INSTRUCTIONS = """\
You act in an environment. The first message ends with the form of an action. Every round you are told what \
happened, and you take one action."""


class OpenEnvEnv:
    """One session on the server, which begins with the first `reset`."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._socket: ClientConnection | None = None
        self._form = ActionForm({})
        self._has_ended = True

    async def reset(self, item: Item) -> str:
        """Start `item`; returns the observation and the form of an action."""
        if (
            self._socket is None or self._socket.state is not State.OPEN
        ):  # the server has hung up since the last episode
            self._form = ActionForm(await self._schema())
            self._socket = await self._connect()
        answer = await self._ask("reset", {"seed": item.seed})
        self._has_ended = False
        return f"{observation_text(_observation(answer))}\nForm of an action: {self._form.description}"

    async def step(self, action: str) -> StepResult:
        """Send one action; if it is rejected, nothing changes and the observation says so."""
        if self._has_ended:
            raise RuntimeError("step before reset")
        fields = self._form.read(action)
        if fields is None:
            return StepResult(
                f"{action.strip()[:60]!r} is no action. Form of an action: {self._form.description}"
            )
        answer = await self._ask("step", fields)
        if "rejection" in answer:
            return StepResult(f"{answer['rejection']} Form of an action: {self._form.description}")
        observation = _observation(answer)
        facts = {**observation, **(observation.get("metadata") or {}), **(answer.get("metadata") or {})}
        reward, self._has_ended = float(answer.get("reward") or 0.0), bool(answer.get("done"))
        success = facts.get("success", facts.get("is_success"))
        truncated = self._has_ended and facts.get("truncated") is True
        return StepResult(
            observation_text(observation),
            reward,
            terminated=self._has_ended and not truncated,
            truncated=truncated,
            success=self._has_ended and (reward >= 1 if success is None else bool(success)),
        )

    async def close(self) -> None:
        """End the session."""
        socket, self._socket, self._has_ended = self._socket, None, True
        if socket is not None:
            # The server hangs up once the session is freed, so that another one can begin.
            with suppress(WebSocketException, TimeoutError):
                async with asyncio.timeout(GOODBYE_S):
                    await socket.send('{"type": "close"}')
                    await socket.wait_closed()
            await socket.close()

    async def _schema(self) -> dict[str, object]:
        url = f"{self._address}/schema"
        try:
            async with httpx.AsyncClient(timeout=CONNECT_TIMEOUT_S, trust_env=False) as client:
                answer = await client.get(url)
            schema: dict[str, object] = answer.raise_for_status().json()["action"]
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            raise self._crash(f"GET {url}", error) from error
        return schema

    async def _connect(self) -> ClientConnection:
        url = f"ws{self._address.removeprefix('http')}/ws"
        try:
            return await connect(
                url,
                open_timeout=CONNECT_TIMEOUT_S,
                ping_interval=None,  # a busy server is not dead: the episode has a time limit
                max_size=MAX_MESSAGE,
                proxy=None,
            )
        except (OSError, TimeoutError, WebSocketException) as error:
            raise self._crash(f"connecting to {url}", error) from error

    async def _ask(self, kind: str, data: Mapping[str, object]) -> dict[str, Any]:
        """The server's answer; `{"rejection": why}` if it rejects the action."""
        assert self._socket is not None
        try:
            with suppress(ConnectionClosed):  # its last message, if any, can still be read
                await self._socket.send(json.dumps({"type": kind, "data": data}))
            answer = json.loads(await self._socket.recv())
            body: dict[str, Any] = answer["data"]
        except (OSError, WebSocketException, ValueError, KeyError, TypeError) as error:
            raise self._crash(kind, error) from error
        if answer["type"] != "error":
            return body
        if kind == "step" and body.get("code") == "VALIDATION_ERROR":
            complaints = (
                f"{'.'.join(map(str, fault.get('loc', ())))}: {fault.get('msg')}"
                for fault in body.get("errors") or ()
            )
            return {"rejection": f"The environment refuses this action ({'; '.join(complaints)[:300]})."}
        raise EnvCrashed(
            f"{self._address}: {kind}: {body.get('code')}: {to_line(body.get('message'), limit=300)}"
        )

    def _crash(self, request: str, error: Exception) -> EnvCrashed:
        return EnvCrashed(f"{self._address}: {request}: {type(error).__name__}: {to_line(error, limit=300)}")


def spec(argument: str) -> EnvSpec:
    """The environment `openenv:<argument>`; sends nothing to the server yet."""
    name = f"{FAMILY}:{argument}"
    if not is_http_url(argument) or "?" in argument:
        raise ConfigError(f"env {name!r}: give the server's address, such as openenv:http://127.0.0.1:8000")
    return EnvSpec(
        name=name,
        make=partial(OpenEnvEnv, argument.rstrip("/")),
        split=partial(seeded_split, name),
        expert=no_expert,
        instructions=INSTRUCTIONS,
        packages=PACKAGES,
        source=f"the server at {argument}: episodes by seed",
        is_shared=True,
    )


def _observation(answer: Mapping[str, Any]) -> dict[str, Any]:
    observation = answer.get("observation")
    return observation if isinstance(observation, dict) else {"observation": observation}
