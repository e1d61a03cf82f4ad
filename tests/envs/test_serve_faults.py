"""Environments that break, hang or are slow, behind the server: statuses, what is left, who is told."""

import asyncio
import json
import re
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from envs.errors import ConfigError, EnvCrashed, boundary
from envs.network.client import tls_context
from envs.registry import EnvSpec, Split
from envs.remote.servers import Servers
from envs.serve.limits import ServerLimits
from envs.types import Item, StepResult
from tests.support.hosted_toy import Rogue
from tests.support.serving import listening, wait_for_metric
from tests.support.toy import ToyEnv, toy_item, toy_spec
from tests.support.waiting import wait_until_async


class Slow(ToyEnv):
    """Waits in every step until it is let go on."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = asyncio.Event()
        self.go_on = asyncio.Event()

    async def step(self, action: str) -> StepResult:
        self.inside.set()
        await self.go_on.wait()
        return await super().step(action)


def serving(
    envs: list[ToyEnv], talk: Callable[[str, httpx.AsyncClient], Awaitable[None]], **limits: Any
) -> None:
    """Serve these instances, in turn, while `talk` runs."""
    left = list(envs)
    items = [toy_item(i) for i in range(3)]
    spec = EnvSpec(
        name="toy",
        make=lambda: left.pop(0),
        split=lambda seed: Split(train=items, test=[]),
        expert=lambda item: [],
        instructions="Count.",
        packages=(),
    )

    async def main() -> None:
        async with (
            listening(spec, limits=ServerLimits(**limits)) as url,
            httpx.AsyncClient(base_url=url, verify=tls_context()) as http,
        ):
            await talk(url, http)
        assert all(env.is_closed for env in envs if env not in left)

    asyncio.run(main())


async def open_session(http: httpx.AsyncClient) -> str:
    """A session that plays: its id."""
    body = {"item_id": "toy_1", "metadata": {"target": 3}}
    reset_answer = (await http.post("/reset", json=body)).raise_for_status().json()
    assert reset_answer["observation"]["text"] == "Goal: reach 3."
    session_id = reset_answer["metadata"]["session_id"]
    assert isinstance(session_id, str)
    return session_id


def step(session_id: str, **more: Any) -> dict[str, Any]:
    return {"action": {"text": "add 1"}, "session_id": session_id, **more}


def test_a_crash_is_answered_and_ends_only_its_own_session() -> None:
    crashing, good = ToyEnv(crash_at=1), ToyEnv()

    async def talk(url: str, http: httpx.AsyncClient) -> None:
        first, second = await open_session(http), await open_session(http)
        response = await http.post("/step", json=step(first))
        assert response.status_code == 500
        assert response.json() == {
            "detail": "the environment raised KeyError: 'the toy broke'; it was closed"
        }
        assert crashing.is_closed
        assert (await http.post("/step", json=step(first))).status_code == 410
        assert (await http.post("/step", json=step(second))).status_code == 200
        assert (
            'wingspan_sessions_ended_total{cause="crashed",env="toy"} 1.0'
            in (await http.get("/metrics")).text
        )

    serving([crashing, good], talk)


async def test_a_crash_in_another_process_is_answered_without_the_servers_paths(
    caplog: pytest.LogCaptureFixture,
) -> None:
    spec = EnvSpec(
        name="toy",
        make=Rogue,
        split=lambda seed: Split(train=[toy_item(1)], test=[]),
        expert=lambda item: [],
        instructions="Crash.",
        packages=(),
        isolation="process",
    )
    async with listening(spec) as url, httpx.AsyncClient(base_url=url, verify=tls_context()) as http:
        answer = (await http.post("/reset", json={"item_id": "toy_1"})).raise_for_status().json()
        session_id = answer["metadata"]["session_id"]
        response = await http.post("/step", json={"action": {"text": "raise a b"}, "session_id": session_id})
    assert response.status_code == 500
    assert response.json() == {"detail": "toy_1: step raised KeyError: 'a b'; it was closed"}
    (record,) = caplog.records
    place = r"tests/support/hosted_toy\.py:\d+"
    assert re.fullmatch(rf"session \d+: toy_1: step raised KeyError: 'a b' \({place}\)", record.getMessage())
    assert 'tests/support/hosted_toy.py", line ' in caplog.text  # of its traceback


class Broken(ToyEnv):
    """Its file is missing; a step's error was raised by the user's own check."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self._fault = fault

    async def reset(self, item: Item) -> str:
        if self._fault == "file":
            Path(__file__).with_name("not there").read_text()
        if self._fault == "check":
            with boundary(ConfigError, "my check"):
                raise KeyError("x")
        raise ConfigError(f"no game in {Path(__file__).parent}; see https://example.org/games/a.html")


@pytest.mark.parametrize(
    ("fault", "status", "detail"),
    [
        (
            "file",
            500,
            "the environment raised FileNotFoundError: [Errno 2] No such file or directory: "
            "'not there'; it was closed",
        ),
        ("check", 422, "my check raised KeyError: 'x'"),
        ("game", 422, "no game in envs; see https://example.org/games/a.html"),
    ],
)
def test_no_path_of_the_server_is_told_and_the_log_has_the_place(
    fault: str, status: int, detail: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def talk(url: str, http: httpx.AsyncClient) -> None:
        response = await http.post("/reset", json={"item_id": "toy_1"})
        assert (response.status_code, response.json()) == (status, {"detail": detail})
        async with connect(f"{url.replace('http', 'ws')}/ws") as socket:
            await socket.send(json.dumps({"type": "reset", "data": {"item_id": "toy_1"}}))
            assert json.loads(await socket.recv())["data"]["message"] == detail

    serving([Broken(fault), Broken(fault)], talk)
    assert len(caplog.records) == 2
    assert caplog.text.count(f'File "{__file__}", line ') >= 2


def test_the_log_has_the_place_where_closing_failed(caplog: pytest.LogCaptureFixture) -> None:
    class Unclosable(ToyEnv):
        async def close(self) -> None:
            await super().close()
            raise KeyError("x")

    async def talk(url: str, http: httpx.AsyncClient) -> None:
        await open_session(http)

    serving([Unclosable()], talk)
    (record,) = caplog.records
    place = rf"{re.escape(str(Path(__file__).relative_to(Path.cwd())))}:\d+"
    assert re.fullmatch(rf"closing session \d+ failed: KeyError: 'x' \({place}\)", record.getMessage())


async def test_no_path_of_make_item_is_told(caplog: pytest.LogCaptureFixture) -> None:
    def make_item(index: int) -> Item:
        raise KeyError(index)

    spec = EnvSpec(
        name="toy",
        make=ToyEnv,
        split=lambda seed: Split(train=[toy_item(1)], test=[]),
        make_item=make_item,
        expert=lambda item: [],
        instructions="Count.",
        packages=(),
    )
    async with listening(spec) as url, httpx.AsyncClient(base_url=url, verify=tls_context()) as http:
        (fault,) = (await http.post("/reset", json={"item_id": "toy_1"})).json()["detail"]
    assert fault["msg"] == "environment 'toy': make_item(1) raised KeyError: 1"
    assert f"raised KeyError: 1 ({Path(__file__).relative_to(Path.cwd())}:" in caplog.text


@pytest.mark.parametrize(
    ("result", "cause"),
    [
        (lambda: None, "step returned a NoneType, None; return a StepResult"),
        (lambda: StepResult("", reward=float("nan")), "a step's reward is nan; return a finite number"),
        (lambda: sys.exit(3), "SystemExit: 3;"),
    ],
)
def test_a_step_without_a_result_is_answered_with_the_cause(result: Callable[[], Any], cause: str) -> None:
    class Broken(ToyEnv):
        async def step(self, action: str) -> StepResult:
            return cast(StepResult, result())

    async def talk(url: str, http: httpx.AsyncClient) -> None:
        response = await http.post("/step", json=step(await open_session(http)))
        assert response.status_code == 500
        assert re.match(rf"the environment raised (\w+: )?{re.escape(cause)}", response.json()["detail"])
        assert response.json()["detail"].endswith("; it was closed")

    serving([Broken()], talk)


def test_a_reset_without_an_observation_is_answered_with_the_cause() -> None:
    class Broken(ToyEnv):
        async def reset(self, item: Item) -> Any:
            return None

    async def talk(url: str, http: httpx.AsyncClient) -> None:
        response = await http.post("/reset", json={"item_id": "toy_1"})
        assert response.status_code == 500
        assert "reset returned a NoneType, None" in response.json()["detail"]

    serving([Broken()], talk)


def test_an_episode_that_was_refused_has_not_begun() -> None:
    """Nor does the one before it go on."""

    class Choosy(ToyEnv):
        async def reset(self, item: Item) -> str:
            if item.item_id == "toy_2":
                raise ConfigError("toy_2 is not for me")
            return await super().reset(item)

    async def talk(url: str, http: httpx.AsyncClient) -> None:
        session_id = await open_session(http)
        refused = await http.post("/reset", json={"item_id": "toy_2", "session_id": session_id})
        assert (refused.status_code, refused.json()["detail"]) == (422, "toy_2 is not for me")
        late = await http.post("/step", json=step(session_id))
        assert late.status_code == 409
        assert "has not begun" in late.json()["detail"]
        body = {"item_id": "toy_1", "session_id": session_id, "metadata": {"target": 3}}
        assert (await http.post("/reset", json=body)).status_code == 200
        assert (await http.post("/step", json=step(session_id))).json()["observation"]["text"]

    serving([Choosy()], talk)


def test_what_hangs_is_cut_off_at_the_servers_limit_or_the_clients() -> None:
    async def talk(url: str, http: httpx.AsyncClient) -> None:
        for more in ({}, {"timeout_s": 0.05}):
            session_id = await open_session(http)
            late = await http.post("/step", json=step(session_id, **more))
            assert late.status_code == 504
            assert "0.05 s" in late.json()["detail"] if more else "0.2 s" in late.json()["detail"]
            assert (await http.get("/state", params={"session_id": session_id})).status_code == 410

    serving([ToyEnv(hang_at=1), ToyEnv(hang_at=1)], talk, step_timeout_s=0.2)


@pytest.mark.usefixtures("brief_end")
def test_a_step_that_resists_its_cancellation_is_cut_off_too(caplog: pytest.LogCaptureFixture) -> None:
    async def talk(url: str, http: httpx.AsyncClient) -> None:
        session_id = await open_session(http)
        late = await http.post("/step", json=step(session_id))
        assert (late.status_code, "0.1 s" in late.json()["detail"]) == (504, True)
        assert any("runs on after it was cancelled" in text for text in caplog.messages)

    serving([ToyEnv(cling_at=1)], talk, step_timeout_s=0.1)


def test_a_session_does_one_thing_at_a_time() -> None:
    async def talk(url: str, http: httpx.AsyncClient) -> None:
        slow.inside, slow.go_on = asyncio.Event(), asyncio.Event()
        session_id = await open_session(http)
        first = asyncio.create_task(http.post("/step", json=step(session_id)))
        await slow.inside.wait()
        second = await http.post("/step", json=step(session_id))
        assert second.status_code == 409
        assert "busy" in second.json()["detail"]
        slow.go_on.set()
        assert (await first).json()["observation"]["text"] == "The total is 1."

    slow = Slow()
    serving([slow], talk)


def test_a_step_under_way_is_finished_when_the_server_stops() -> None:
    """The server is left by `talk` while the step waits; its answer still comes."""

    async def talk(url: str, http: httpx.AsyncClient) -> None:
        client = httpx.AsyncClient(base_url=url)
        session_id = await open_session(client)

        async def ask() -> None:
            answers.append((await client.post("/step", json=step(session_id))).json())
            await client.aclose()

        asking.append(asyncio.create_task(ask()))
        await slow.inside.wait()
        asyncio.get_running_loop().call_later(0.1, slow.go_on.set)

    answers: list[Any] = []
    asking: list[asyncio.Task[None]] = []
    slow = Slow()
    serving([slow], talk)
    assert answers[0]["observation"]["text"] == "The total is 1."


async def test_a_client_that_leaves_within_its_request_is_no_failure_of_the_server(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with listening(toy_spec()) as url:
        _, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(b"POST /create HTTP/1.1\r\nHost: toy\r\nContent-Length: 9\r\n\r\n{")
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        await wait_for_metric(url, 'wingspan_answers_total{path="/create",status="400"}', 1)
    assert not caplog.records


def test_by_websocket_an_error_is_sent_before_the_end() -> None:
    async def talk(url: str, http: httpx.AsyncClient) -> None:
        async with connect(f"{url.replace('http', 'ws')}/ws") as socket:

            async def ask(outgoing: str | dict[str, Any]) -> Any:
                await socket.send(outgoing if isinstance(outgoing, str) else json.dumps(outgoing))
                return json.loads(await socket.recv())

            step = {"type": "step", "data": {"text": "add 1"}}
            assert (await ask(step))["data"]["code"] == "SESSION_ERROR"
            assert (await ask("{"))["data"]["code"] == "INVALID_JSON"
            assert (await ask({"type": "mcp", "data": {}}))["data"]["code"] == "UNKNOWN_TYPE"
            error = (await ask({"type": "step", "data": {"words": "add 1"}}))["data"]
            assert (error["code"], error["errors"][0]["loc"]) == ("VALIDATION_ERROR", ["data", "text"])
            reset = {"type": "reset", "data": {"item_id": "toy_1", "metadata": {"target": 3}}}
            assert (await ask(reset))["data"]["observation"]["text"] == "Goal: reach 3."
            error_answer = await ask(step)
            assert error_answer["type"] == "error"
            assert error_answer["data"]["code"] == "EXECUTION_ERROR"
            assert "the toy broke" in error_answer["data"]["message"]
            with pytest.raises(ConnectionClosed) as closing:
                await socket.recv()
            assert closing.value.rcvd is not None
            assert closing.value.rcvd.code == 1001

    serving([ToyEnv(crash_at=1)], talk)


def test_a_connection_that_is_dropped_frees_its_environment() -> None:
    env_of_client = ToyEnv()

    async def talk(url: str, http: httpx.AsyncClient) -> None:
        async with connect(f"{url.replace('http', 'ws')}/ws") as socket:
            reset = {"type": "reset", "data": {"item_id": "toy_1", "metadata": {"target": 3}}}
            await socket.send(json.dumps(reset))
            await socket.recv()
            socket.transport.abort()
        await wait_until_async(lambda: env_of_client.is_closed)

    serving([env_of_client], talk)


@pytest.mark.parametrize("protocol", ["wingspan", "agentgym"])
def test_our_client_tells_a_broken_environment_from_a_broken_server(protocol: Any) -> None:
    async def talk(url: str, http: httpx.AsyncClient) -> None:
        servers = Servers("toy", [url], protocol=protocol, patience_s=0.0)
        item = Item(item_id="toy_1", env="toy", metadata={"target": 3})
        env = servers.make()
        await env.reset(item)
        with pytest.raises(EnvCrashed, match="the toy broke"):
            await env.step("add 1")
        await env.close()
        replacement = servers.make()  # at once: the server is not left out
        await replacement.reset(item)
        await replacement.close()

    class Counting(ToyEnv):
        """AgentGym's protocol knows no metadata."""

        async def reset(self, item: Item) -> str:
            return await super().reset(toy_item(item.index))

    serving([Counting(crash_at=1), Counting()], talk)
