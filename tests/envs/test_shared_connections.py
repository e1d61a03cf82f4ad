"""Sessions that share a connection: the messages, and what one session's trouble costs the others."""

import asyncio
import json
import logging
import random
import re
import threading
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from envs.errors import ConfigError, EnvCrashed
from envs.remote.link import ServerUnreachable
from envs.remote.servers import POLL_S, Servers, WireProtocol
from envs.remote.wingspan import MAX_ANSWER_BYTES, batches
from envs.remote.wingspan_link import SESSIONS_PER_CONNECTION, Connections
from envs.runtime.pool import EnvPool
from envs.serve.app import EnvServer
from envs.serve.limits import ServerLimits
from envs.serve.sessions import EnvSessions
from envs.serve.wingspan import SharedConnection
from envs.types import Environment, HasSession, Item, Observation, StepResult
from tests.support.examples import examples
from tests.support.http_server import serving
from tests.support.serving import listening, wait_for_metric
from tests.support.toy import ToyEnv, toy_item, toy_spec
from tests.support.waiting import wait_until_async

ITEM = toy_item(1)
OPENING = "Goal: reach 3."


class Waits(ToyEnv):
    """Waits in a step "wait" for ever."""

    async def step(self, action: str) -> StepResult:
        if action == "wait":
            await asyncio.Event().wait()
        return await super().step(action)


class Wire:
    """A TCP proxy before a server: it counts connections, holds answers back, and cuts connections."""

    def __init__(self, port: int) -> None:
        self.url = ""
        self.connections = 0
        self.left = 0
        """Connections that the client has ended."""
        self.flows = asyncio.Event()
        """Answers pass while it is set."""
        self.flows.set()
        self._port = port
        self._writers: list[asyncio.StreamWriter] = []

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers.append(writer)
        await asyncio.gather(
            self._carry_requests(reader, there_writer), self._pump(there_reader, writer, self.flows)
        )

    async def _carry_requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._pump(reader, writer)
        self.left += 1

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, flows: asyncio.Event | None = None
    ) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                if flows is not None:
                    await flows.wait()
                writer.write(data)
                await writer.drain()
        writer.close()

    def cut(self, index: int) -> None:
        """Break one connection, in the order in which they were made."""
        self._writers[index].transport.abort()


@asynccontextmanager
async def wire_to(url: str) -> AsyncIterator[Wire]:
    wire = Wire(int(url.rpartition(":")[2]))
    server = await asyncio.start_server(wire.carry, "127.0.0.1", 0)
    async with server:
        wire.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield wire


@asynccontextmanager
async def talking(url: str, **options: Any) -> AsyncIterator[ClientConnection]:
    async with connect(f"{url.replace('http', 'ws')}/sessions", **options) as socket:
        yield socket


async def ask(socket: ClientConnection, *requests: dict[str, object]) -> dict[int, dict[str, Any]]:
    """The answers, by the id of their request."""
    await socket.send(json.dumps(requests))
    answers: dict[int, dict[str, Any]] = {}
    while len(answers) < len(requests):
        answers |= {answer["id"]: answer for answer in json.loads(await socket.recv())}
    return answers


def reset(request_id: int, session: int) -> dict[str, object]:
    return {
        "id": request_id,
        "session": session,
        "type": "reset",
        "item_id": "toy_1",
        "metadata": {"target": 3},
    }


def opening(request_id: int, session: int) -> dict[str, object]:
    return {"id": request_id, "session": session, "type": "open"}


def step(request_id: int, session: int, action: str) -> dict[str, object]:
    return {"id": request_id, "session": session, "type": "step", "action": action}


def close(request_id: int, session: int) -> dict[str, object]:
    """It has no answer."""
    return {"id": request_id, "session": session, "type": "close"}


async def test_one_message_may_serve_several_sessions_and_an_error_is_its_requests_alone() -> None:
    async with listening(toy_spec(ToyEnv)) as url, talking(url) as socket:
        answers = await ask(socket, reset(0, 0), reset(1, 7))
        assert [answers[i]["observation"] for i in (0, 1)] == [OPENING, OPENING]
        answers = await ask(socket, step(2, 0, "add 1"), step(3, 7, "add 2"), step(4, 8, "add 1"))
        assert answers[2]["observation"] == "The total is 1."
        assert answers[3] == {
            "id": 3,
            "observation": "The total is 2.",
            "reward": 0.0,
            "terminated": False,
            "truncated": False,
            "success": False,
            "metrics": {},
            "state_key": "2",
        }
        assert answers[4]["error"] == {"status": 404, "detail": "there is no session 8; reset it"}
        answers = await ask(socket, step(5, 7, "add 1"))
        assert (answers[5]["terminated"], answers[5]["success"], answers[5]["reward"]) == (True, True, 1.0)
        answers = await ask(socket, step(6, 7, "add 1"), reset(7, 0) | {"item_id": "other_1"})
        assert answers[6]["error"]["status"] == 409
        assert answers[7]["error"]["status"] == 422
        assert "request.item_id: 'other_1' is no item of 'toy'" in answers[7]["error"]["detail"]
        await socket.send(json.dumps([close(8, 7)]))
        await wait_for_metric(url, 'wingspan_sessions_live{env="toy"}', 1)
        answers = await ask(socket, step(9, 7, "add 1"), step(10, 0, "add 1"))
        assert answers[9]["error"]["status"] == 404
        assert answers[10]["observation"] == "The total is 2."


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("{", "body: not JSON"),
        ('{"id": 1}', "a message is an array of requests"),
        ('[{"id": 1, "session": 0, "type": "look"}]', "request: Input tag 'look'"),
        ('[{"id": 1, "session": 0, "type": "step"}]', "request.step.action: Field required"),
        ('[{"id": -1, "session": 0, "type": "close"}]', "request.close.id"),
        ("[1]", "request: Input should be a valid dictionary"),
        ('[{"id": 1, "session": 0, "type": "%s"}]' % ("é" * 99), "request: Input tag 'ééé"),
    ],
)
async def test_a_message_that_cannot_be_answered_ends_the_connection(message: str, reason: str) -> None:
    env = ToyEnv()
    async with listening(toy_spec(lambda: env)) as url, talking(url) as socket:
        await ask(socket, reset(0, 0))
        await socket.send(message)
        with pytest.raises(ConnectionClosed) as closing:
            await socket.recv()
        assert closing.value.rcvd is not None
        assert closing.value.rcvd.code == 1002
        assert closing.value.rcvd.reason.startswith(reason)
        await wait_until_async(lambda: env.is_closed)


async def test_a_close_ends_the_call_under_way_before_the_environment() -> None:
    events: list[str] = []
    is_inside = asyncio.Event()

    class Recorded(ToyEnv):
        async def step(self, action: str) -> StepResult:
            is_inside.set()
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                events.append("the step has ended")
            raise AssertionError

        async def close(self) -> None:
            events.append("closed")

    async with listening(toy_spec(Recorded)) as url, talking(url) as socket:
        await ask(socket, reset(0, 0))
        await socket.send(json.dumps([step(1, 0, "wait")]))
        await is_inside.wait()
        answers = await ask(socket, close(2, 0), step(3, 0, "add 1"))
        assert (answers[1]["error"]["status"], answers[3]["error"]["status"]) == (410, 404)
        assert events == ["the step has ended", "closed"]
        await socket.send(json.dumps([reset(4, 1), close(5, 1)]))
        assert json.loads(await socket.recv())[0]["error"]["status"] == 410
        await wait_for_metric(url, 'wingspan_sessions_live{env="toy"}', 0)


async def test_a_connection_that_ends_interrupts_no_close() -> None:
    is_closing, may_close = asyncio.Event(), asyncio.Event()

    class ClosesSlowly(ToyEnv):
        async def close(self) -> None:
            is_closing.set()
            await may_close.wait()
            await super().close()

    env = ClosesSlowly()
    async with listening(toy_spec(lambda: env)) as url:
        async with talking(url) as socket:
            await ask(socket, reset(0, 0))
            await socket.send(json.dumps([close(1, 0)]))
            await is_closing.wait()
        await wait_for_metric(url, 'wingspan_answers_total{path="/sessions",status="101"}', 1)
        await wait_for_metric(url, 'wingspan_sessions_live{env="toy"}', 1)
        may_close.set()
        await wait_until_async(lambda: env.is_closed)
        await wait_for_metric(url, 'wingspan_sessions_live{env="toy"}', 0)


async def test_sessions_end_with_their_connection_and_are_seen_by_no_other() -> None:
    envs: list[ToyEnv] = []

    def make() -> ToyEnv:
        envs.append(ToyEnv())
        return envs[-1]

    async with listening(toy_spec(make)) as url, talking(url) as socket:
        async with talking(url) as other:
            await ask(other, reset(0, 0), reset(1, 1))
            await ask(socket, reset(0, 5))
            assert (await ask(socket, step(1, 0, "add 1")))[1]["error"]["status"] == 404
            other.transport.abort()
        await wait_until_async(lambda: [env.is_closed for env in envs] == [True, True, False])
        assert (await ask(socket, step(2, 5, "add 1")))[2]["observation"] == "The total is 1."


async def test_the_kernel_looks_whether_a_silent_client_is_still_there() -> None:
    async with listening(toy_spec(ToyEnv)) as url, talking(url) as socket:
        await ask(socket, reset(0, 0))
        server, client = (f":{int(port):04X}" for port in (url.rpartition(":")[2], socket.local_address[1]))

        def is_probed() -> bool:
            lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
            # proc_net_tcp(5): the addresses of both ends, and the running timer, 02 for keepalive
            return any(
                fields[1].endswith(server) and fields[2].endswith(client) and fields[5].startswith("02:")
                for fields in lines
            )

        await wait_until_async(is_probed)


@given(
    messages=st.lists(st.integers(0, 10**30).map(lambda number: b"%d" % number), min_size=1),
    max_bytes=st.integers(2, 80),
)
def test_batches_are_all_messages_in_order_each_as_large_as_allowed(
    messages: Sequence[bytes], max_bytes: int
) -> None:
    arrays = [json.loads(batch) for batch in batches(messages, max_bytes=max_bytes)]
    assert [number for array in arrays for number in array] == [int(message) for message in messages]
    sizes = [len(batch) for batch in batches(messages, max_bytes=max_bytes)]
    assert all(size <= max_bytes or len(array) == 1 for size, array in zip(sizes, arrays, strict=True))
    for array, following in pairwise(arrays):
        more = [*array, following[0]]
        assert len(json.dumps(more, separators=(",", ":"))) > max_bytes


async def test_a_broken_connection_ends_its_own_sessions_only() -> None:
    async with listening(toy_spec(ToyEnv)) as url, wire_to(url) as wire:
        servers = Servers("toy", [wire.url])
        envs = [servers.make() for _ in range(SESSIONS_PER_CONNECTION + 6)]
        openings = await asyncio.gather(*(env.reset(ITEM) for env in envs))
        assert set(openings) == {OPENING}
        assert wire.connections == 2
        wire.cut(1)
        results = await asyncio.gather(*(env.step("add 1") for env in envs), return_exceptions=True)
        kinds = [type(result) for result in results]
        assert kinds == [StepResult] * SESSIONS_PER_CONNECTION + [EnvCrashed] * 6
        assert await envs[-1].reset(ITEM) == OPENING
        for env in envs:
            await env.close()
        assert servers.live == {wire.url: 0}
        await wait_for_metric(url, 'wingspan_sessions_live{env="toy"}', 0)


async def test_a_session_that_hangs_delays_no_other_and_each_has_its_own_time() -> None:
    async with listening(toy_spec(Waits)) as url, wire_to(url) as wire:
        servers = Servers("toy", [wire.url], request_timeout_s=0.5)
        hung, other, late = (servers.make() for _ in range(3))
        for env in (hung, other, late):
            await env.reset(ITEM)
        waiting = asyncio.create_task(hung.step("wait"))
        for number in (1, 2):
            assert (await other.step("add 1")).observation == f"The total is {number}."
        assert not waiting.done()
        with pytest.raises(EnvCrashed, match=r"step: no answer within 0\.5 s"):
            await waiting
        assert (await other.step("add 1")).success
        with pytest.raises(EnvCrashed, match="no answer within"):
            await late.step("wait")
        assert wire.connections == 1
        for env in (hung, other, late):
            await env.close()


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_connection_that_answers_nothing_gets_no_new_session_until_it_does(
    is_cancelled: bool,
) -> None:
    async with listening(toy_spec(ToyEnv)) as url, wire_to(url) as wire:
        connections = Connections(wire.url, None, timeout_s=30.0 if is_cancelled else 0.2)
        idle, busy = connections.make_link(), connections.make_link()
        for link in (idle, busy):
            await link.reset(ITEM)
        wire.flows.clear()
        stepping = asyncio.create_task(busy.step("add 1"))
        if is_cancelled:
            await asyncio.sleep(0)
            stepping.cancel()
        with pytest.raises(asyncio.CancelledError if is_cancelled else ServerUnreachable):
            await stepping
        starting = asyncio.create_task(connections.make_link().reset(ITEM))
        await wait_until_async(lambda: wire.connections == 2)
        wire.flows.set()
        assert await starting == OPENING
        assert (await idle.step("add 1")).observation == "The total is 1."
        assert await connections.make_link().reset(ITEM) == OPENING
        assert wire.connections == 2


async def test_a_close_that_is_cancelled_leaves_no_connection() -> None:
    async with listening(toy_spec(ToyEnv)) as url, wire_to(url) as wire:
        link = Connections(wire.url, None, timeout_s=30.0).make_link()
        await link.reset(ITEM)
        wire.flows.clear()
        closing = asyncio.create_task(link.close())
        await wait_for_metric(url, 'wingspan_sessions_live{env="toy"}', 0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await wait_until_async(lambda: wire.left == 1)


async def test_an_answer_that_comes_after_its_step_was_given_up_is_no_later_ones() -> None:
    async with listening(toy_spec(ToyEnv)) as url, wire_to(url) as wire:
        env = Servers("toy", [wire.url]).make()
        await env.reset(ITEM)
        wire.flows.clear()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(env.step("add 1"), 0.1)
        again = asyncio.create_task(env.reset(ITEM))
        await asyncio.sleep(0.1)
        assert not again.done()
        wire.flows.set()
        assert await again == OPENING
        assert (await env.step("add 1")).observation == "The total is 1."
        await env.close()


async def test_who_gives_up_while_connecting_takes_nobody_along() -> None:
    async with listening(toy_spec(ToyEnv)) as url, wire_to(url) as wire:
        servers = Servers("toy", [wire.url])
        wire.flows.clear()
        hasty, patient = servers.make(), servers.make()
        first, second = asyncio.create_task(hasty.reset(ITEM)), asyncio.create_task(patient.reset(ITEM))
        await wait_until_async(lambda: wire.connections == 1)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        wire.flows.set()
        assert await second == OPENING
        assert servers.live == {wire.url: 1}
        assert wire.connections == 1
        await patient.close()


async def test_what_nobody_waits_for_is_not_connected() -> None:
    hung = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    async with hung:
        servers = Servers("toy", [f"http://127.0.0.1:{hung.sockets[0].getsockname()[1]}"])
        starting = asyncio.create_task(servers.make().reset(ITEM))
        await asyncio.sleep(0.1)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        await asyncio.sleep(0)
        running = [str(task.get_coro()) for task in asyncio.all_tasks()]
        assert not [name for name in running if "_Connection" in name]


async def test_a_request_that_is_too_large_is_refused_and_breaks_nothing() -> None:
    async with listening(toy_spec(ToyEnv), limits=ServerLimits(max_body_bytes=2000)) as url:
        servers = Servers("toy", [url])
        envs = [servers.make() for _ in range(20)]
        await asyncio.gather(*(env.reset(ITEM) for env in envs))  # several messages: of 20 × 100 bytes
        large = Item(item_id="toy_1", env="toy", metadata={"target": 3, "hint": "x" * 2000})
        with pytest.raises(ConfigError, match=r"a reset of 2\d\d\d bytes is .*--max-body-bytes, 2000"):
            await servers.make().reset(large)
        with pytest.raises(ConfigError, match="a step of 2"):
            await envs[0].step("add " + "1" * 2000)
        results = await asyncio.gather(*(env.step("add 1") for env in envs))
        assert {result.observation for result in results} == {"The total is 1."}
        for env in envs:
            await env.close()


def test_the_same_servers_serve_one_event_loop_after_another() -> None:
    """The first one ends with a session open, as a rollout that fails does."""
    servers: list[Servers] = []

    async def main(*, closes: bool) -> None:
        async with listening(toy_spec(ToyEnv), port=ports[0]) as url:
            ports[0] = int(url.rpartition(":")[2])
            servers.append(servers[0] if servers else Servers("toy", [url]))
            env = servers[0].make()
            assert await env.reset(ITEM) == OPENING
            if closes:
                await env.close()

    ports = [0]
    asyncio.run(main(closes=False))
    asyncio.run(main(closes=True))


@pytest.mark.parametrize("protocol", ["wingspan", "agentgym"])
def test_an_instance_whose_event_loop_has_ended_connects_anew_and_can_be_closed(
    protocol: WireProtocol,
) -> None:
    urls: Queue[str] = Queue()
    may_stop = threading.Event()

    async def serve() -> None:
        async with listening(toy_spec(ToyEnv)) as url:
            urls.put(url)
            await asyncio.to_thread(may_stop.wait)

    async def begin(*envs: Environment) -> None:
        for env in envs:
            assert await env.reset(ITEM) == OPENING

    async def go_on(first: Environment, second: Environment) -> None:
        await begin(first)
        for env in (second, first):
            await env.close()

    with ThreadPoolExecutor(1) as thread:
        serving = thread.submit(asyncio.run, serve())
        try:
            servers = Servers("toy", [urls.get(timeout=30)], protocol=protocol)
            envs = servers.make(), servers.make()
            asyncio.run(begin(*envs))
            asyncio.run(go_on(*envs))
            assert set(servers.live.values()) == {0}
        finally:
            may_stop.set()
        serving.result()


@pytest.mark.parametrize(
    "reply", ["hello", '{"id": 1}', "[1]", "[{}]", '[{"id": [1]}]', '[{"id": 1}]', '[{"id": 1, "error": {}}]']
)
async def test_a_server_of_another_kind_is_named(reply: str) -> None:
    async def talk(socket: WebSocket) -> None:
        await socket.accept(headers=[(b"wingspan-max-bytes", b"1000")])
        await socket.receive_bytes()
        await socket.send_text('[{"id": 0}]')
        await socket.receive_bytes()
        await socket.send_text(reply)
        await socket.receive()

    async def plain(socket: WebSocket) -> None:
        await socket.accept()
        await socket.receive()

    routes = [WebSocketRoute("/a/sessions", talk), WebSocketRoute("/b/sessions", plain)]
    async with serving(Starlette(routes=routes)) as url:
        for path in "ab":
            with pytest.raises(ConfigError, match=f"{url}/{path}/sessions sends .*it is no Wingspan server"):
                await Servers("toy", [f"{url}/{path}"]).make().reset(ITEM)


async def test_a_step_under_way_is_answered_when_the_server_stops() -> None:
    may_end, is_inside = asyncio.Event(), asyncio.Event()

    class Slow(ToyEnv):
        async def step(self, action: str) -> StepResult:
            is_inside.set()
            await may_end.wait()
            return await super().step(action)

    async with AsyncExitStack() as stopping:
        env = Servers("toy", [await stopping.enter_async_context(listening(toy_spec(Slow)))]).make()
        await env.reset(ITEM)
        waiting = asyncio.create_task(env.step("add 1"))
        await is_inside.wait()
        stop = asyncio.create_task(stopping.aclose())
        await asyncio.sleep(0.05)
        may_end.set()
        assert (await waiting).observation == "The total is 1."
        await stop
        with pytest.raises(EnvCrashed):
            await env.step("add 1")
        await env.close()


async def test_answers_that_are_too_large_for_one_message_are_several() -> None:
    class Large(ToyEnv):
        async def step(self, action: str) -> StepResult:
            return StepResult("x" * int(action))

    async with listening(toy_spec(Large)) as url, wire_to(url) as wire:
        servers = Servers("toy", [wire.url])
        envs = [servers.make() for _ in range(4)]
        await asyncio.gather(*(env.reset(ITEM) for env in envs))
        half = MAX_ANSWER_BYTES // 2
        steps = [
            env.step(f"{size}") for env, size in zip(envs, [half, MAX_ANSWER_BYTES, half, 5], strict=True)
        ]
        results = await asyncio.gather(*steps, return_exceptions=True)
        assert [len(result.observation) for result in results if isinstance(result, StepResult)] == [
            half,
            half,
            5,
        ]
        assert isinstance(results[1], EnvCrashed)
        assert "an answer of 67108" in str(results[1])
        assert wire.connections == 1
        for env in envs:
            await env.close()


async def test_an_answer_that_is_no_text_fails_alone(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="envs.serve")  # pytest's workers send only what is text

    class Surrogates(ToyEnv):
        key = "0"

        async def step(self, action: str) -> StepResult:
            if action == "raise":
                raise ValueError("\udc80")
            self.key = "\udc80"
            return await super().step(action)

        def state_key(self) -> str:
            return self.key

    async with listening(toy_spec(Surrogates)) as url, talking(url) as socket:
        await ask(socket, reset(0, 0), reset(1, 1))
        answers = await ask(socket, step(2, 0, "add 1"), step(3, 1, "raise"))
        assert [answers[i]["error"]["status"] for i in (2, 3)] == [500, 500]
        assert (await ask(socket, reset(4, 2)))[4]["observation"] == OPENING


async def test_a_client_that_reads_no_answers_is_not_read() -> None:
    may_leave = asyncio.Event()
    sent, received = 0, 0

    async def receive() -> dict[str, object]:
        nonlocal received
        received += 1
        await asyncio.sleep(0)
        if may_leave.is_set():
            return {"type": "websocket.disconnect"}
        if received == 1:
            return {"type": "websocket.connect"}
        return {"type": "websocket.receive", "text": json.dumps([reset(i, i) for i in range(1000)])}

    async def send(message: Any) -> None:
        nonlocal sent
        sent += message["type"] == "websocket.send"
        if sent:
            await may_leave.wait()
            raise OSError

    sessions = EnvSessions(toy_spec(ToyEnv), ServerLimits(max_sessions=2))
    socket = WebSocket({"type": "websocket"}, receive, send)
    serving = asyncio.create_task(SharedConnection(sessions, socket, owner="").serve())
    before = -1
    while received != before:
        before = received
        for _ in range(100):
            await asyncio.sleep(0)
    assert 2 < received < 50
    assert sessions.live == 2
    may_leave.set()
    await serving
    assert sessions.live == 0


REQUESTS = st.tuples(st.sampled_from(["reset", "add 1", "add 2", "close"]), st.integers(0, 2))


@given(messages=st.lists(st.lists(REQUESTS, min_size=1, max_size=6), max_size=8))
@settings(max_examples=examples(20), deadline=None)
def test_requests_of_one_message_begin_in_order_one_at_a_time_for_each_session(
    messages: Sequence[Sequence[tuple[str, int]]],
) -> None:
    """Against a model of the sessions."""

    async def main() -> None:
        server = EnvServer(toy_spec(ToyEnv), limits=ServerLimits(max_sessions=3))
        async with server.listening("127.0.0.1", 0) as port, talking(f"http://127.0.0.1:{port}") as socket:
            totals: dict[int, int] = {}  # of open sessions, by number
            for message in messages:
                requests: list[dict[str, object]] = []
                expected: dict[int, object] = {}
                busy: dict[int, int] = {}  # number of a session → id of its request under way
                num_closing = 0
                for request_id, (verb, number) in enumerate(message):
                    if verb == "close":
                        requests.append(close(request_id, number))
                        num_closing += totals.pop(number, -1) != -1
                        if number in busy:
                            expected[busy.pop(number)] = 410
                    elif verb == "reset":
                        requests.append(reset(request_id, number))
                        if number in busy:
                            expected[request_id] = 409
                        elif number not in totals and len(totals) + num_closing == 3:
                            expected[request_id] = 429
                        else:
                            totals[number], busy[number] = 0, request_id
                            expected[request_id] = OPENING
                    else:
                        requests.append(step(request_id, number, verb))
                        if number not in totals:
                            expected[request_id] = 404
                        elif number in busy or totals[number] >= 3:
                            expected[request_id] = 409
                        else:
                            totals[number], busy[number] = totals[number] + int(verb[-1]), request_id
                            expected[request_id] = f"The total is {totals[number]}."
                await socket.send(json.dumps(requests))
                answers: dict[int, object] = {}
                while len(answers) < len(expected):
                    for answer in json.loads(await socket.recv()):
                        assert answer["id"] not in answers
                        answers[answer["id"]] = (
                            answer["error"]["status"] if "error" in answer else answer["observation"]
                        )
                assert answers == expected
                await wait_until_async(lambda: server.sessions.live == len(totals))

    asyncio.run(main())


class Held(ToyEnv):
    """Its steps wait until the test lets them go on."""

    may_step: asyncio.Event

    async def step(self, action: str) -> StepResult:
        await self.may_step.wait()
        return await super().step(action)


async def test_more_instances_than_sessions_play_in_the_order_in_which_they_asked() -> None:
    """Nine instances, two servers with room for one session each, and a step's time limit below the wait."""
    Held.may_step = asyncio.Event()
    limits = ServerLimits(max_sessions=1)
    began: list[int] = []
    async with (
        listening(toy_spec(Held), limits=limits) as first,
        listening(toy_spec(Held), limits=limits) as second,
    ):
        servers = Servers("toy", [first, second], patience_s=0.1)
        pool = EnvPool(servers.make, capacity=9)

        async def play(number: int) -> str:
            async with pool.lease() as env:
                began.append(number)
                async with asyncio.timeout(1.0):
                    await env.reset(ITEM)
                return (await env.step("add 1")).observation

        playing: list[asyncio.Task[str]] = []
        for number in range(9):
            playing.append(asyncio.create_task(play(number)))
            await wait_until_async(lambda: len(began) == min(2, len(playing)))
            await asyncio.sleep(0.02)
        assert pool.metrics.waiting == 7
        await asyncio.sleep(3 * servers.patience_s)  # the others wait for as long as these two play
        assert (pool.live, sum(servers.live.values())) == (9, 2)
        Held.may_step.set()
        assert await asyncio.gather(*playing) == ["The total is 1."] * 9
        assert began == list(range(9))
        assert servers.live == {first: 1, second: 1}
        for url in (first, second):  # sessions were handed on, not closed
            await wait_for_metric(url, 'wingspan_sessions_opened_total{env="toy"}', 1)
        await pool.close()
        assert servers.live == {first: 0, second: 0}


async def test_who_waits_for_a_session_gets_it_from_an_end_a_cancellation_or_another_client() -> None:
    async with listening(toy_spec(ToyEnv), limits=ServerLimits(max_sessions=1)) as url:
        servers, others = Servers("toy", [url]), Servers("toy", [url])
        holder, *waiting = (servers.make() for _ in range(4))
        await holder.reset(ITEM)
        resets = [asyncio.create_task(env.reset(ITEM)) for env in waiting]
        await asyncio.sleep(0.05)
        resets[0].cancel()  # while it waits
        await holder.close()
        assert await resets[1] == OPENING
        assert not resets[2].done()
        assert isinstance(waiting[1], HasSession)
        waiting[1].release()
        resets[2].cancel()  # at the moment at which it gets the session
        with pytest.raises(asyncio.CancelledError):
            await resets[2]
        stranger = others.make()
        assert await stranger.reset(ITEM) == OPENING
        last = asyncio.create_task(waiting[0].reset(ITEM))
        await asyncio.sleep(0.05)
        await stranger.close()
        assert await last == OPENING
        await waiting[0].close()
        assert set(servers.live.values()) == {0}
        await wait_for_metric(url, 'wingspan_sessions_live{env="toy"}', 0)


async def test_episodes_begin_in_their_order_as_soon_as_there_is_room() -> None:
    """Against a model: episodes ask, end, fail and are cancelled; another client takes and leaves room."""
    rng = random.Random(0)
    limits, rooms = ServerLimits(max_sessions=2), 4
    async with (
        listening(toy_spec(ToyEnv), limits=limits) as first,
        listening(toy_spec(ToyEnv), limits=limits) as second,
        talking(first) as stranger,
    ):
        servers = Servers("toy", [first, second])
        pool = EnvPool(servers.make, capacity=8)
        endings: dict[int, asyncio.Future[None]] = {}
        asked: dict[int, asyncio.Task[None]] = {}  # in this order; cancelled ones are no longer here
        playing: list[int] = []
        begun: list[int] = []
        strangers: set[int] = set()

        async def play(number: int) -> None:
            async with pool.lease() as env:
                begun.append(number)
                playing.append(number)
                try:
                    assert await env.reset(ITEM) == OPENING
                    await endings[number]
                finally:
                    playing.remove(number)

        async def settle() -> None:
            expected = min(len(asked), rooms - len(strangers))
            await wait_until_async(
                lambda: (len(playing), pool.metrics.waiting) == (expected, len(asked) - expected)
            )
            assert begun == sorted(begun)

        for number in range(150):
            event = rng.choice(["ask", "ask", "ask", "end", "end", "fail", "cancel", "take", "leave"])
            waiting = [key for key in asked if key not in playing]
            if event == "ask" and len(asked) < pool.capacity:
                endings[number] = asyncio.get_running_loop().create_future()
                asked[number] = asyncio.create_task(play(number))
            elif event in ("end", "fail") and playing:
                key = rng.choice(playing)
                if event == "end":
                    endings[key].set_result(None)
                else:
                    endings[key].set_exception(EnvCrashed("the episode fails"))
                [outcome] = await asyncio.gather(asked.pop(key), return_exceptions=True)
                assert isinstance(outcome, EnvCrashed) == (event == "fail")
            elif event == "cancel" and waiting:
                task = asked.pop(rng.choice(waiting))
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            elif event == "take":
                if "error" not in (await ask(stranger, opening(number, number)))[number]:
                    strangers.add(number)
            elif event == "leave" and strangers:
                key = strangers.pop()
                await stranger.send(json.dumps([close(number, key)]))
            await settle()
        for ending in endings.values():
            if not ending.done():
                ending.set_result(None)
        await asyncio.gather(*asked.values())
        await pool.close()
        assert set(servers.live.values()) == {0}
        await wait_for_metric(first, 'wingspan_sessions_live{env="toy"}', len(strangers))
        await wait_for_metric(second, 'wingspan_sessions_live{env="toy"}', 0)


@pytest.mark.parametrize("protocol", ["wingspan", "agentgym"])
async def test_an_instance_that_is_being_closed_gives_its_session_to_nobody(protocol: WireProtocol) -> None:
    is_closing, may_close = asyncio.Event(), asyncio.Event()

    class ClosesSlowly(ToyEnv):
        async def close(self) -> None:
            is_closing.set()
            await may_close.wait()

    async with listening(toy_spec(ClosesSlowly), limits=ServerLimits(max_sessions=1)) as url:
        pool = EnvPool(Servers("toy", [url], protocol=protocol).make, capacity=2)

        async def play(*, fresh: bool = False) -> str | Observation:
            async with pool.lease(fresh=fresh) as env:
                return await env.reset(ITEM)

        assert await play() == OPENING
        playing = [asyncio.create_task(play(fresh=True))]  # closes the instance between two episodes
        await is_closing.wait()
        playing.append(asyncio.create_task(play()))
        await wait_until_async(lambda: pool.metrics.waiting == 1)
        await asyncio.sleep(0.02)
        may_close.set()
        assert await asyncio.gather(*playing) == [OPENING] * 2
        await pool.close()


async def test_two_pools_share_sessions_and_one_that_is_closed_begins_no_episode() -> None:
    """As the pools of a training and of an evaluation."""
    async with listening(toy_spec(ToyEnv), limits=ServerLimits(max_sessions=1)) as url:
        servers = Servers("toy", [url])
        training, evaluation = (EnvPool(servers.make, capacity=2) for _ in range(2))

        async def play(pool: EnvPool) -> str | Observation:
            async with pool.lease() as env:
                return await env.reset(ITEM)

        async with training.lease() as env:
            await env.reset(ITEM)
            playing = [asyncio.create_task(play(pool)) for pool in (training, evaluation)]
            await wait_until_async(lambda: training.metrics.waiting + evaluation.metrics.waiting == 2)
            await training.close()
        with pytest.raises(RuntimeError, match="the environment pool is closed"):
            await playing[0]
        assert await playing[1] == OPENING
        assert (training.live, evaluation.live, servers.live) == (0, 1, {url: 1})
        await evaluation.close()


async def test_a_server_that_begins_no_episode_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions can be opened there, and each trial occupies an instance for a while."""
    monkeypatch.setattr("envs.remote.servers.FIRST_REST_S", 0.05)
    monkeypatch.setattr("envs.remote.servers.LONGEST_REST_S", 0.05)
    async with listening(toy_spec(partial(ToyEnv, hang_at=0)), limits=ServerLimits(max_sessions=1)) as url:
        servers = Servers("toy", [url], request_timeout_s=0.3, patience_s=0.5)
        pool = EnvPool(servers.make, capacity=6)

        async def play() -> None:
            async with pool.lease() as env:
                await env.reset(ITEM)

        failures = await asyncio.gather(*(play() for _ in range(6)), return_exceptions=True)
        assert {type(failure) for failure in failures} == {EnvCrashed}
        rejected = [failure for failure in failures if "no server has room" in str(failure)]
        assert len(rejected) >= 4  # the others had a trial each
        await pool.close()


async def test_a_server_that_hangs_delays_no_room_elsewhere() -> None:
    limits = ServerLimits(max_sessions=1)
    async with (
        listening(toy_spec(ToyEnv), limits=limits) as sound,
        listening(toy_spec(ToyEnv), limits=limits) as hung,
        wire_to(hung) as wire,
    ):
        servers = Servers("toy", [sound, wire.url])
        first, second, late = (servers.make() for _ in range(3))
        for env in (first, second):
            await env.reset(ITEM)
        waiting = asyncio.create_task(late.reset(ITEM))
        await asyncio.sleep(0.05)
        wire.flows.clear()
        await asyncio.sleep(2 * POLL_S)  # the search on this server has begun, and waits for an answer
        assert not waiting.done()
        await first.close()
        assert await asyncio.wait_for(waiting, 20) == OPENING
        assert servers.live[sound] == 1
        wire.flows.set()
        for env in (second, late):
            await env.close()


async def test_who_has_lost_a_session_before_the_episode_began_is_the_next_to_get_one() -> None:
    may_close = asyncio.Event()

    class ClosesSlowly(ToyEnv):
        async def close(self) -> None:
            await may_close.wait()

    limits = ServerLimits(max_sessions=1)
    async with listening(toy_spec(ClosesSlowly), limits=limits) as url, wire_to(url) as wire:
        servers = Servers("toy", [wire.url])
        first, second, third = (servers.make() for _ in range(3))
        assert isinstance(first, HasSession)
        assert isinstance(second, HasSession)
        await first.reset(ITEM)
        taking = asyncio.create_task(second.acquire())
        await asyncio.sleep(0.05)
        waiting = asyncio.create_task(third.reset(ITEM))
        await asyncio.sleep(0.05)
        first.release()
        await taking
        wire.cut(0)
        beginning = asyncio.create_task(second.reset(ITEM))
        await asyncio.sleep(0.05)
        may_close.set()
        assert await asyncio.wait_for(beginning, 20) == OPENING
        assert not waiting.done()
        await second.close()
        assert await waiting == OPENING
        await third.close()


def test_an_event_loop_that_ended_in_an_episode_keeps_nobody_of_the_next_waiting() -> None:
    servers: list[Servers] = []

    async def begin() -> None:
        async with listening(toy_spec(ToyEnv)) as url:
            servers.append(Servers("toy", [url], patience_s=0.1))
            await servers[0].make().reset(ITEM)

    async def begin_without_a_server() -> None:
        with pytest.raises(EnvCrashed, match="no server has room"):
            await asyncio.wait_for(servers[0].make().reset(ITEM), 20)

    asyncio.run(begin())
    asyncio.run(begin_without_a_server())


async def test_all_who_wait_in_vain_are_told_at_once() -> None:
    async with listening(toy_spec(ToyEnv), limits=ServerLimits(max_sessions=1)) as url:
        stranger = Servers("toy", [url]).make()
        await stranger.reset(ITEM)
        servers = Servers("toy", [url, "http://127.0.0.1:9"], patience_s=0.3)
        start = asyncio.get_running_loop().time()
        failures = await asyncio.gather(
            *(servers.make().reset(ITEM) for _ in range(5)), return_exceptions=True
        )
        assert asyncio.get_running_loop().time() - start < 5 * servers.patience_s
        for failure in failures:
            assert isinstance(failure, EnvCrashed)
            assert re.search(
                r"no server has room for toy: .* all 1 instances .*; .*:9 .*Connect", str(failure)
            )
        await stranger.close()


async def test_a_long_message_does_not_hold_the_servers_event_loop() -> None:
    """Another client's step is answered before the thousands of one message."""
    limits = ServerLimits(max_body_bytes=1 << 24)
    async with listening(toy_spec(ToyEnv), limits=limits) as url, talking(url) as long, talking(url) as other:
        await ask(long, reset(0, 0))
        await ask(other, reset(0, 0))
        await long.send(json.dumps([step(number, 0, "add 0") for number in range(1, 20_001)]))
        answering = asyncio.create_task(long.recv())
        await asyncio.sleep(0)
        assert (await ask(other, step(1, 0, "add 1")))[1]["observation"] == "The total is 1."
        answers = json.loads(await answering)
        while len(answers) < 20_000:
            answers += json.loads(await long.recv())
        assert sorted(answer["id"] for answer in answers) == list(range(1, 20_001))


async def test_a_crash_on_the_server_is_its_sessions_alone() -> None:
    envs = iter([ToyEnv(crash_at=1), ToyEnv(), ToyEnv()])
    async with listening(toy_spec(lambda: next(envs))) as url, wire_to(url) as wire:
        servers = Servers("toy", [wire.url])
        broken, sound = servers.make(), servers.make()
        for env in (broken, sound):
            await env.reset(ITEM)
        with pytest.raises(EnvCrashed, match="the toy broke"):
            await broken.step("add 1")
        with pytest.raises(EnvCrashed, match="session"):
            await broken.step("add 1")
        assert (await sound.step("add 1")).observation == "The total is 1."
        assert await broken.reset(ITEM) == OPENING  # in a new session of the same connection
        assert wire.connections == 1
        for env in (broken, sound):
            await env.close()


async def test_instances_on_a_server_with_tokens_share_only_their_own_tokens_connection() -> None:
    async with listening(toy_spec(ToyEnv), tokens=("one", "two")) as url, wire_to(url) as wire:
        envs = [Servers("toy", [wire.url], token=token).make() for token in ("one", "two")]
        for env in envs:
            await env.reset(replace(ITEM, seed=3))
        assert wire.connections == 2
        for env in envs:
            await env.close()
