"""The server from outside, by plain HTTP: AgentGym's protocol, refusals, limits, the end."""

import base64
import itertools
import re
import shutil
import signal
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import psutil
import pytest

from envs.builtin.sciworld import SOLVER_HEAP_SIZE, Jvm
from envs.builtin.textcraft.expert import solve
from envs.builtin.textcraft.world import make_problem
from envs.errors import ConfigError
from envs.network.server import RequestRejected, bind
from envs.registry import get_env
from envs.remote.servers import Servers
from envs.serve.limits import ServerLimits
from envs.serve.sessions import MAX_ID, EnvSessions
from envs.types import Item
from tests.support.serving import ServerProcess, listening, serve_env, wait_for_metric
from tests.support.toy import ToyEnv, toy_spec
from tests.support.waiting import wait_until_async


@pytest.fixture(scope="module")
def textcraft() -> Iterator[ServerProcess]:
    with serve_env("textcraft", "--max-body-bytes", "4096") as server:
        yield server


@pytest.fixture
def http(textcraft: ServerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=textcraft.url) as client:
        yield client


def create_session(http: httpx.Client) -> int:
    session_id = http.post("/create", json={}).raise_for_status().json()["id"]
    assert isinstance(session_id, int)
    return session_id


def live(http: httpx.Client) -> int:
    gauge = re.search(r"^wingspan_sessions_live\{.*\} (\S+)$", http.get("/metrics").text, re.M)
    assert gauge is not None
    return int(float(gauge.group(1)))


AGENTGYM: dict[str, list[tuple[str, Any, Any]]] = {
    # What the clients of agentenv/agentenv/envs/*.py at 3ef9235 send, in their order, and the keys that they
    # read. They send the id in every body but the first, and die unless the status is 200.
    "textcraft": [
        (
            "/create",
            {"minecraft_dir": "agentenv_textcraft/", "commands": None, "goal": None},
            "id observation",
        ),
        ("/reset", {"data_idx": 3}, "observation"),
        ("/step", {"action": "inventory"}, "observation reward done"),
        ("/step", {"action": ""}, "observation reward done"),
        ("/close", {}, None),
    ],
    "babyai": [
        ("/create", None, "id"),
        ("/reset", {"data_idx": 3}, "observation reward score done"),
        ("/step", {"action": "turn left"}, "observation reward score done"),
        ("/close", {}, None),
    ],
}


@pytest.mark.parametrize("env", AGENTGYM)
async def test_what_agentgyms_clients_send_is_answered_with_what_they_read(env: str) -> None:
    async with listening(get_env(env)) as url, httpx.AsyncClient(base_url=url) as http:
        session_id = None
        for path, body, keys in AGENTGYM[env]:
            if session_id is not None:
                body = {**body, "id": session_id}
            response = await (http.post(path) if body is None else http.post(path, json=body))
            assert response.status_code == 200, response.text
            content = response.json()
            if keys is None:
                assert content is True
                continue
            assert set(keys.split()) <= set(content)
            assert isinstance(content.get("observation", ""), str)
            assert isinstance(content.get("done", False), bool)
            session_id = content.get("id", session_id)
        assert isinstance(session_id, int)


def test_an_episode_by_agentgyms_protocol_is_the_games(http: httpx.Client) -> None:
    create_answer = http.post("/create", json={}).json()
    session_id = create_answer["id"]
    assert create_answer == {"id": session_id, "observation": "", "reward": 0, "done": False}
    reset_answer = http.post("/reset", json={"id": session_id, "data_idx": 12}).json()
    assert reset_answer["observation"] == make_problem(12).opening
    assert http.get("/observation", params={"id": session_id}).json() == make_problem(12).opening
    step_answer = http.post("/step", json={"id": session_id, "action": "get 2 oak logs"}).json()
    assert step_answer == {"observation": "Got 2 oak logs", "reward": 0, "done": False}
    assert http.get("/detail", params={"id": session_id}).json() == {"id": session_id, **step_answer}
    assert http.post("/close", json={"id": session_id}).json() is True
    assert http.post("/step", json={"id": session_id, "action": "inventory"}).status_code == 410


def test_agentgyms_textcraft_begins_its_own_item_once_it_is_played_without_a_reset(
    http: httpx.Client,
) -> None:
    step_answer, observing_id, _ = [http.post("/create", json={}).json()["id"] for _ in range(3)]
    answer = http.post("/step", json={"id": step_answer, "action": "inventory"}).json()
    assert answer["observation"].startswith("Inventory: You are not carrying anything")
    opening_text = http.get("/observation", params={"id": observing_id}).json()
    assert opening_text == make_problem(observing_id % 544).opening  # there are 544 goals
    detail = http.get("/detail", params={"id": observing_id}).json()
    assert detail == {"id": observing_id, "observation": opening_text, "reward": 0, "done": False}


async def test_an_instance_that_is_only_created_builds_no_opening() -> None:
    async with listening(get_env("textcraft")) as url, httpx.AsyncClient(base_url=url) as http:
        make_problem.cache_clear()
        for _ in range(20):
            (await http.post("/create", json={})).raise_for_status()
        assert make_problem.cache_info().misses == 0


def test_openenvs_http_routes_keep_their_session(http: httpx.Client) -> None:
    reset_answer = http.post("/reset", json={"item_id": "textcraft_12", "episode_id": "mine"}).json()
    assert reset_answer["observation"]["text"] == make_problem(12).opening
    session_id = reset_answer["metadata"]["session_id"]
    step_answer = http.post(
        "/step", json={"action": {"text": "get 2 oak logs"}, "session_id": session_id}
    ).json()
    assert step_answer["observation"] == {
        "text": "Got 2 oak logs",
        "terminated": False,
        "truncated": False,
        "success": False,
        "metrics": {},
    }
    assert (step_answer["reward"], step_answer["done"]) == (0, False)
    assert http.get("/state", params={"session_id": session_id}).json() == {
        "episode_id": "mine",
        "step_count": 1,
        "item_id": "textcraft_12",
    }
    again = http.post("/reset", json={"seed": 5, "session_id": session_id}).json()
    same_seed = http.post("/reset", json={"seed": 5}).json()
    assert again["observation"] == same_seed["observation"]
    assert again["metadata"]["session_id"] == session_id != same_seed["metadata"]["session_id"]


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/reset", {"id": "x", "data_idx": 1}, ["body", "id"]),
        ("/reset", {"id": 1, "data_idx": -1}, ["body", "data_idx"]),
        ("/reset", {"data_idx": 1}, ["body", "id"]),
        ("/reset", {"item_id": "babyai_1"}, ["body", "item_id"]),
        ("/reset", {"seed": -1}, ["body", "seed"]),
        ("/step", {"id": 1}, ["body", "action"]),
        ("/step", {"action": "look"}, ["body", "id"]),
        ("/step", {"action": {"text": "look"}}, ["body", "session_id"]),
        ("/step", {"action": {"words": "look"}, "session_id": "1"}, ["body", "action", "text"]),
        ("/close", {}, ["body", "id"]),
        ("/create", {"goal": "minecraft:stick"}, ["body", "goal"]),
        ("/close", b"{", ["body"]),
        ("/step", b"[1]", ["body"]),
    ],
)
def test_a_malformed_request_is_answered_with_its_field(
    http: httpx.Client, path: str, body: Any, field: list[str]
) -> None:
    response = http.post(path, content=body) if isinstance(body, bytes) else http.post(path, json=body)
    assert response.status_code == 422
    assert field in [fault["loc"] for fault in response.json()["detail"]]


def test_what_is_not_there_or_not_now_has_its_status(http: httpx.Client) -> None:
    session_id = create_session(http)
    assert http.post("/step", json={"id": session_id ^ 1, "action": "inventory"}).status_code == 404
    assert http.get("/nowhere").status_code == 404
    assert http.get("/step").status_code == 405
    assert http.get("/step").headers["Allow"] == "POST"
    assert http.get("/ws").status_code == 426
    assert http.get("/health", headers={"Origin": "http://evil.example"}).status_code == 200
    assert http.post("/create", headers={"Origin": "http://evil.example"}).status_code == 403
    large = http.post("/step", json={"id": session_id, "action": "x" * 5000})
    assert large.status_code == 413
    assert "4096" in large.json()["detail"]
    http.post("/reset", json={"id": session_id, "data_idx": 0})
    for step in solve(make_problem(0)):
        step_answer = http.post("/step", json={"id": session_id, "action": step.action}).json()
    assert (step_answer["reward"], step_answer["done"]) == (1, True)
    late_step = http.post("/step", json={"id": session_id, "action": "inventory"})
    assert late_step.status_code == 409
    assert "has ended" in late_step.json()["detail"]


def test_metrics_count_what_was_done(http: httpx.Client) -> None:
    before = live(http)
    session_id = create_session(http)
    http.post("/step", json={"id": session_id, "action": "inventory"})
    assert live(http) == before + 1
    http.post("/close", json={"id": session_id})
    assert live(http) == before
    text = http.get("/metrics").text
    assert re.search(r'^wingspan_environment_seconds_count\{call="step",env="textcraft"\} [1-9]', text, re.M)
    assert re.search(r'^wingspan_answers_total\{path="/step",status="200"\} [1-9]', text, re.M)
    assert "process_resident_memory_bytes" in text


async def test_sessions_are_capped_and_expire() -> None:
    limits = ServerLimits(max_sessions=3, idle_s=0.3)
    async with listening(get_env("textcraft"), limits=limits) as url, httpx.AsyncClient(base_url=url) as http:
        first = [(await http.post("/create", json={})).json()["id"] for _ in range(3)]
        full_answer = await http.post("/create", json={})
        assert full_answer.status_code == 429
        assert "--max-sessions" in full_answer.json()["detail"]
        assert int(full_answer.headers["Retry-After"]) >= 1
        await wait_for_metric(url, 'wingspan_sessions_live{env="textcraft"}', 0)
        await wait_for_metric(url, 'wingspan_sessions_ended_total{cause="idle",env="textcraft"}', 3)
        for session_id in first:
            late_answer = await http.post("/step", json={"id": session_id, "action": "inventory"})
            assert late_answer.status_code == 410
        assert (await http.post("/create", json={})).json()["id"] not in first


@pytest.mark.heavy
async def test_who_looks_on_keeps_a_session_alive() -> None:
    limits = ServerLimits(idle_s=1.5)
    async with listening(get_env("textcraft"), limits=limits) as url, httpx.AsyncClient(base_url=url) as http:
        observed_id, state_id, idle_id = [
            (await http.post("/create", json={})).json()["id"] for _ in range(3)
        ]

        async def look_on() -> bool:
            assert (await http.get("/observation", params={"id": observed_id})).status_code == 200
            assert (await http.get("/state", params={"session_id": str(state_id)})).status_code == 200
            ended = 'wingspan_sessions_ended_total{cause="idle",env="textcraft"} 1.0'
            return ended in (await http.get("/metrics")).text

        await wait_until_async(look_on)
        assert (await http.get("/observation", params={"id": idle_id})).status_code == 410
        assert (await http.get("/observation", params={"id": observed_id})).status_code == 200


async def test_an_instance_that_leaks_is_replaced_between_its_episodes() -> None:
    toy_envs: list[ToyEnv] = []

    def make() -> ToyEnv:
        toy_envs.append(ToyEnv())
        return toy_envs[-1]

    spec = toy_spec(make, max_episodes=2)
    async with listening(spec) as url, httpx.AsyncClient(base_url=url) as http:
        body: dict[str, Any] = {"item_id": "toy_3", "metadata": {"target": 3}}
        body["session_id"] = (await http.post("/reset", json=body)).json()["metadata"]["session_id"]
        for _ in range(4):
            assert (await http.post("/reset", json=body)).status_code == 200
        assert [(env.resets, env.is_closed) for env in toy_envs] == [(2, True), (2, True), (1, False)]


@pytest.mark.parametrize("choice", [{"item_id": "toy_3"}, {"seed": 1}])
async def test_metadata_reach_the_item_named_or_sampled(choice: dict[str, object]) -> None:
    async with listening(toy_spec(ToyEnv)) as url, httpx.AsyncClient(base_url=url) as http:
        answer = await http.post("/reset", json={**choice, "metadata": {"target": 7}})
        assert answer.json()["observation"]["text"] == "Goal: reach 7."


async def test_a_token_opens_the_server_and_only_its_own_sessions() -> None:
    async with (
        listening(get_env("textcraft"), tokens=("one", "two")) as url,
        httpx.AsyncClient(base_url=url) as http,
    ):
        assert (await http.get("/health")).json() == {"status": "healthy"}
        full_answer = await http.post("/create", json={})
        assert full_answer.status_code == 401
        assert "Bearer" in full_answer.json()["detail"]
        for wrong in (b"Bearer three", b"Basic %%", b"Bearer", b"one", b"Bearer \xff"):
            assert (await http.get("/metrics", headers={b"Authorization": wrong})).status_code == 401
        first_owner = {"Authorization": "Bearer one"}
        # a token in the URL, as AgentGym's clients can have it
        two = {"Authorization": "Basic " + base64.b64encode(b"any:two").decode()}
        session_id = (await http.post("/create", json={}, headers=first_owner)).json()["id"]
        step = {"id": session_id, "action": "inventory"}
        assert (await http.post("/step", json=step, headers=two)).status_code == 404
        assert (await http.post("/step", json=step, headers=first_owner)).status_code == 200


@pytest.mark.heavy
def test_the_token_of_the_environment_is_one_token_and_options_replace_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def opens(server: ServerProcess, token: str) -> bool:
        return httpx.get(f"{server.url}/metrics", auth=("any", token)).status_code == 200

    monkeypatch.setenv("WINGSPAN_TOKEN", "correct horse")
    with serve_env("textcraft") as server:
        assert opens(server, "correct horse")
        assert not any(opens(server, word) for word in ("correct", "horse"))
    with serve_env("textcraft", "--token", "one", "--token", "two") as server:
        assert opens(server, "one")
        assert opens(server, "two")
        assert not opens(server, "correct horse")


async def test_a_taken_port_is_named(textcraft: ServerProcess) -> None:
    port = int(textcraft.url.rpartition(":")[2])
    with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}: .*in use.*--port"):
        async with listening(get_env("textcraft"), port=port):
            pass


@pytest.mark.heavy
def test_an_interrupt_ends_it_cleanly() -> None:
    with serve_env("textcraft") as server, httpx.Client(base_url=server.url) as http:
        create_session(http)
        server.process.send_signal(signal.SIGINT)
        _, errors = server.process.communicate(timeout=30)
    assert server.process.returncode == 0
    assert errors == ""


@pytest.mark.heavy
async def test_ids_come_once_in_no_order_and_are_known_again() -> None:
    sessions = EnvSessions(get_env("textcraft"), ServerLimits(max_sessions=1000))
    ids = [sessions.open("").id for _ in range(1000)]
    assert len(set(ids)) == 1000
    assert all(0 <= session_id <= MAX_ID for session_id in ids)
    assert 400 < sum(a < b for a, b in itertools.pairwise(ids)) < 600
    await sessions.close(sessions.find(ids[0], ""))
    for session_id, status in ((ids[0], 410), (0, 404)):
        with pytest.raises(RequestRejected) as rejection:
            sessions.find(session_id, "")
        assert rejection.value.status == status
    await sessions.drain(grace_s=0)


@pytest.mark.skipif(shutil.which("java") is None, reason="apt-get install default-jre-headless")
async def test_what_agentgyms_sciworld_tells_besides_is_what_the_package_says() -> None:
    from scienceworld import ScienceWorldEnv

    package = ScienceWorldEnv()
    package.load("boil", 0)
    package.step("look around")
    try:
        async with listening(get_env("sciworld")) as url, httpx.AsyncClient(base_url=url, timeout=60) as http:
            session_id = (await http.post("/create")).json()["id"]
            await http.post("/reset", json={"id": session_id, "data_idx": 0})

            async def fetch(path: str) -> Any:
                return (await http.get(path, params={"id": session_id})).raise_for_status().json()

            hint = await fetch("/action_hint")
            assert sorted(hint["possible_actions"]) == sorted(package.get_possible_actions())
            assert sorted(hint["possible_objects"]) == sorted(package.get_possible_objects())
            assert await fetch("/goals") == {"goals": package.get_goal_progress()}
            assert await fetch("/task_description") == {"task_description": package.get_task_description()}
            assert (await fetch("/object_tree"))["object_tree"].keys() == package.getObjectTree().keys()
            state = await fetch("/state")
            assert state["inventory"] == package.inventory()
            assert state["current_moves"] == package.get_num_moves()
            # OpenEnv's state of the same session, under its own name.
            openenv = (await http.get("/state", params={"session_id": str(session_id)})).json()
            assert openenv["item_id"] == "sciworld_0"
    finally:
        package.close()


@pytest.mark.skipif(shutil.which("java") is None, reason="apt-get install default-jre-headless")
async def test_sciworlds_points_are_whole_and_counted_from_the_reset_on() -> None:
    """An item that has points at its reset, by the simulator itself, by the server, and by our client."""
    item = Item(item_id="sciworld_4169", env="sciworld")
    simulator, last = Jvm(heap_size=SOLVER_HEAP_SIZE), 0
    description = simulator.load("chemistry-mix-paint-secondary-color", 1, solve=True)
    gold_path = simulator.gold_path()

    def local_step(action: str) -> dict[str, Any]:
        """As AgentGym's server, which rounds as the package does."""
        nonlocal last
        observation, score, done = simulator.step(action)
        before, last = last, round(100 * score)
        return {"observation": observation, "reward": last - before, "score": last, "done": done}

    try:
        async with listening(get_env("sciworld")) as url, httpx.AsyncClient(base_url=url, timeout=60) as http:
            me = {"id": (await http.post("/create")).json()["id"]}
            reset_answer = (await http.post("/reset", json={**me, "data_idx": 4169})).json()
            assert reset_answer["score"] == reset_answer["reward"] == 20
            assert reset_answer.items() >= local_step("look around").items()
            env = Servers("sciworld", [url], protocol="agentgym").make()
            assert await env.reset(item) == f"{description}\n{reset_answer['observation']}"
            results = []
            for action in gold_path:
                step_answer = (await http.post("/step", json={**me, "action": action})).json()
                assert step_answer == local_step(action)
                detail = (await http.get("/detail", params=me)).json()
                assert detail == {**reset_answer, **step_answer}
                results.append(await env.step(action))
                if step_answer["done"]:
                    break
            assert step_answer["score"] == 100
            assert results[-1].success
            assert sum(result.reward for result in results) == pytest.approx(1.0)
            await env.close()
    finally:
        simulator.close()


@pytest.mark.skipif(shutil.which("java") is None, reason="apt-get install default-jre-headless")
def test_no_jvm_outlives_its_server() -> None:
    with serve_env("sciworld") as server, httpx.Client(base_url=server.url, timeout=60) as http:
        session_id = http.post("/create").json()["id"]
        reset_answer = http.post("/reset", json={"id": session_id, "data_idx": 0}).json()
        assert reset_answer["task_name"] == "boil"
        assert reset_answer["task_description"].startswith("Your task is to boil water.")
        assert reset_answer["observation"].startswith("This room is called")
        observing_id = http.post("/step", json={"id": session_id, "action": "look around"}).json()
        assert set(observing_id) == {"observation", "reward", "score", "done"}
        unknown_item = http.post("/reset", json={"id": session_id, "data_idx": 10**6})
        assert unknown_item.status_code == 422
        (fault,) = unknown_item.json()["detail"]
        assert fault["loc"] == ["body", "data_idx"]
        by_name = http.post("/reset", json={"item_id": "sciworld_1000000"})
        assert by_name.status_code == 422
        assert by_name.json()["detail"][0]["loc"] == ["body", "item_id"]
        assert "sciworld_1000000" in fault["msg"]
        jvms = [child for child in psutil.Process(server.process.pid).children() if child.name() == "java"]
        assert len(jvms) == 1
        server.stop()
    assert server.process.returncode == 0
    assert not jvms[0].is_running()


def test_answers_are_sent_without_waiting_for_the_client() -> None:
    """Else a body waits for the delayed acknowledgement of its header, 40 ms in each request."""
    with bind("127.0.0.1", 0) as server, socket.create_connection(server.getsockname()):
        connection, _ = server.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
