"""Forks and consoles in the viewer: by a client, and as a person uses them in Chromium."""

import asyncio
import json
import os
import shlex
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from agents.types import Trajectory
from envs.builtin.browser.program import CHROMIUM
from envs.network.client import tls_context
from tasks.config.parameters import write_changes
from tasks.data.trajectories import write_trajectories
from tasks.evaluation.forks.parents import find_parent
from tasks.runs.folders import find_runs
from tasks.viewer import forks as forks_module
from tasks.viewer import live as live_module
from tasks.viewer.app import viewer_app
from tasks.viewer.viewer import Viewer
from tests.support.http_server import serving_in_thread
from tests.support.needs import needs
from tests.support.textcraft_episode import SOLUTION, run_actions
from tests.support.viewer_page import open_viewer, watch

ROOT = Path(__file__).parents[2]
HOSTILE = "<img src=x onerror='window.owned = 1'></pre><script>window.owned = 2</script>"
ADDRESS = "step_0001:1"


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A run of the CPU pipeline with one trajectory, in which a useless turn comes first."""
    folder = tmp_path / "runs" / "toy"
    write_trajectories(
        folder / "train" / "trajectories" / "step_0001.jsonl", [run_actions(["look", *SOLUTION])]
    )
    write_changes(folder, name="textcraft-cpu", changes={"agent.format": ("x", "action")})
    shutil.copytree(ROOT / "models" / "textcraft-base", folder / "policy")
    return folder


@contextmanager
def viewing(folder: Path, *, host: str = "127.0.0.1") -> Iterator[httpx.Client]:
    app = viewer_app(Viewer([folder.parent], cache=folder.parent.parent / "cache"), host=host)
    with (
        serving_in_thread(app) as url,
        httpx.Client(base_url=url, timeout=60, verify=tls_context()) as client,
    ):
        client.headers[forks_module.KEY_HEADER] = client.get("/api/key").json()["key"]
        yield client


def follow(client: httpx.Client, name: str, *, states: tuple[str, ...] = ("ended", "failed", "left")) -> Any:
    """The state of what is under way, once it is one of `states`."""
    state: dict[str, Any] = {"version": -1, "state": ""}
    while state["state"] not in states:
        state = client.get("/api/live", params={"id": name, "after": state["version"]}).json()
    return state


def body_of(client: httpx.Client, **changes: Any) -> dict[str, Any]:
    page = client.get("/api/trajectory", params={"run": "toy", "address": ADDRESS}).json()
    body = {"run": "toy", "address": ADDRESS, "digest": page["digest"], "turn": 2, "policy": "person"}
    return body | changes


def test_a_person_goes_on_turn_by_turn(run_folder: Path) -> None:
    with viewing(run_folder) as client:
        name = client.post("/api/fork", json=body_of(client)).json()["id"]
        for number, action in enumerate([HOSTILE, *SOLUTION], start=2):
            state = follow(client, name, states=("waiting", "failed"))
            assert (state["state"], len(state["turns"])) == ("waiting", number - 1), state["error"]
            assert client.post("/api/act", json={"id": name, "line": action}).status_code == 200
        state = follow(client, name)
        assert state["state"] == "ended"
        assert [turn["action"] for turn in state["turns"]] == ["look", HOSTILE, *SOLUTION]
        assert state["turns"][1]["observation"] == f"Could not execute {HOSTILE}"
        assert [(one["success"], one["reward"]) for one in state["ended"]] == [(True, 1.0)]
        assert client.post("/api/act", json={"id": name, "line": "look"}).status_code == 400
        (fork,) = client.get("/api/forks", params={"run": "toy", "address": ADDRESS}).json()["forks"]
        assert (fork["turn"], fork["policy"], fork["value"]["success"]["mean"]) == (2, "person", 1.0)
        sides = client.get("/api/sides", params={"run": "toy", "address": [ADDRESS, fork["first"]]}).json()
        assert [len(side["turns"]) for side in sides["sides"]] == [1 + len(SOLUTION), 2 + len(SOLUTION)]
        answer = client.get(
            "/api/trajectories", params={"run": "toy", "q": "phase:fork policy:person"}
        ).json()
        assert answer["total"] == 1


def test_a_person_leaves_and_nothing_is_recorded(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with viewing(run_folder) as client:
        name = client.post("/api/fork", json=body_of(client)).json()["id"]
        follow(client, name, states=("waiting",))
        client.post("/api/stop", json={"id": name})
        assert follow(client, name)["state"] == "left"
        monkeypatch.setattr(
            live_module, "IDLE_S", 0.05
        )  # a page that was closed does not hold its environment
        name = client.post("/api/console", json={"env": "textcraft", "item": "textcraft_0"}).json()["id"]
        state = follow(client, name)
        assert (state["state"], "Goal: craft" in state["opening"]) == ("left", True)
    assert not (run_folder / "forks.jsonl").exists()


def test_nothing_of_an_ended_episode_goes_on() -> None:
    is_over = threading.Event()

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            is_over.set()

    async def play(live: live_module.Live) -> Sequence[Trajectory]:
        tasks.append(asyncio.create_task(wait()))
        await asyncio.sleep(0)
        return []

    tasks: list[asyncio.Task[None]] = []
    live = live_module.Live(play, total=1, is_person=True)
    live.start()
    assert is_over.wait(timeout=30)
    assert live.snapshot(after=-1, wait_s=0)["state"] == "left"


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everywhere")
def test_a_fork_that_cannot_be_recorded_is_refused(run_folder: Path) -> None:
    with viewing(run_folder) as client:
        body = body_of(client)
        run_folder.chmod(0o555)
        answer = client.post("/api/fork", json=body)
        run_folder.chmod(0o755)
        assert (answer.status_code, "cannot be written to" in answer.json()["error"]) == (400, True)


def test_a_file_and_its_forks_have_distinct_names(tmp_path: Path) -> None:
    for name in ("forks.jsonl", "forks.forks.jsonl"):
        write_trajectories(tmp_path / name, [run_actions(SOLUTION)])
    (run,) = find_runs([tmp_path / "forks.jsonl"])
    assert [(file.key, file.phase) for file in run.files()] == [("forks", "rollout"), ("forks.forks", "fork")]


@pytest.mark.heavy
def test_a_policy_goes_on_by_a_click_and_gives_a_value(run_folder: Path) -> None:
    with viewing(run_folder) as client:
        policies = client.get("/api/forks", params={"run": "toy", "address": ADDRESS}).json()["policies"]
        assert policies == [{"value": "the run's policy", "option": ""}]
        body = body_of(client, policy="the run's policy", samples=4, temperature=0.7, max_turns=6)
        name = client.post("/api/fork", json=body).json()["id"]
        response = client.post("/api/fork", json=body)
        assert (response.status_code, "is being sampled" in response.json()["error"]) == (409, True)
        place = {"run": "toy", "address": ADDRESS}
        assert client.get("/api/forks", params=place).json()["sampling"] == {"id": name, "turn": body["turn"]}
        state = follow(client, name)
        assert (state["state"], state["done"], len(state["ended"])) == ("ended", 4, 4), state["error"]
        answer = client.get("/api/forks", params=place).json()
        assert answer["sampling"] is None
        (fork,) = answer["forks"]
        successes = [episode["success"] for episode in state["ended"]]
        assert fork["value"]["samples"] == 4
        assert fork["value"]["success"]["mean"] == sum(successes) / 4
        lines = [json.loads(line) for line in (run_folder / "forks.jsonl").read_text().splitlines()]
        assert [line["turns"][0]["action"] for line in lines] == ["look"] * 4
        assert {line["labels"]["policy"] for line in lines} == {"toy"}
        later = {**body, "policy": "person", "turn": 2 + len(SOLUTION)}
        answer = client.post("/api/fork", json=later)
        assert (answer.status_code, "no turn" in answer.json()["error"]) == (400, False)
        assert "name an earlier turn" in answer.json()["error"]


def test_a_changed_record_is_shown_as_what_differs(run_folder: Path) -> None:
    file = run_folder / "train" / "trajectories" / "step_0001.jsonl"
    values = json.loads(file.read_text())
    values["turns"][0]["observation"] = HOSTILE
    file.write_text(json.dumps(values) + "\n")
    with viewing(run_folder) as client:
        name = client.post("/api/fork", json=body_of(client)).json()["id"]
        state = follow(client, name)
        assert state["state"] == "failed"
        assert "the observation, turn 1, is not as recorded" in state["error"]
        assert HOSTILE[:20] in state["error"]
        assert "Could not execute look" in state["error"]


def test_only_the_viewers_own_page_can_act(run_folder: Path, tmp_path: Path) -> None:
    with viewing(run_folder) as client:
        body = body_of(client)
        key = client.headers[forks_module.KEY_HEADER]
        port = client.base_url.port
        mistakes: list[tuple[int, dict[str, str], dict[str, Any]]] = [
            (403, {"origin": "https://example.org"}, {}),
            (403, {"origin": f"http://127.0.0.1:{(port or 0) + 1}"}, {}),
            (403, {forks_module.KEY_HEADER: ""}, {}),
            (403, {forks_module.KEY_HEADER: key[:-1]}, {}),
            (415, {"content-type": "text/plain"}, {}),
            (400, {"host": "example.org"}, {}),
            (409, {}, {"digest": "0" * 16}),
            (404, {}, {"run": "no"}),
            (400, {}, {"address": "step_0009:1"}),
            (400, {}, {"policy": "/etc"}),
            (400, {}, {"policy": "http://169.254.169.254/"}),
            (422, {}, {"samples": 1000}),
            (422, {}, {"turn": 0}),
            (422, {}, {"overrides": {"agent.tools": ["os:system"]}}),
        ]
        for status, headers, change in mistakes:
            all_headers = {"content-type": "application/json", **headers}
            answer = client.post("/api/fork", content=json.dumps(body | change), headers=all_headers)
            assert answer.status_code == status, (headers, change, answer.text)
        for env in ("os:system", "textcraft:agentgym?listing=/etc/passwd", "no"):
            answer = client.post("/api/console", json={"env": env, "item": "0"})
            assert (answer.status_code, "no environment" in answer.json()["error"]) == (400, True)
        for name in ("act", "stop", "console", "fork"):
            headers = {forks_module.KEY_HEADER: "x"}
            fields: dict[str, Any] = {"act": {"id": "x", "line": "y"}, "stop": {"id": "x"}}.get(name) or (
                body if name == "fork" else {"env": "textcraft", "item": "0"}
            )
            assert client.post(f"/api/{name}", json=fields, headers=headers).status_code == 403
        assert client.post("/api/stop", json={"id": "x"}).status_code == 404
    with viewing(run_folder, host="0.0.0.0") as client:
        assert client.headers[forks_module.KEY_HEADER] == ""
        answer = client.post("/api/fork", json=body)
        assert (answer.status_code, "loopback" in answer.json()["error"]) == (403, True)
    assert not (run_folder / "forks.jsonl").exists()


@pytest.mark.browser
@needs(CHROMIUM)
async def test_a_person_forks_in_the_page(run_folder: Path) -> None:
    async with open_viewer(run_folder.parent) as (page, url):
        requests, troubles = watch(page)

        await page.goto(f"{url}/#/run/toy/at/{ADDRESS}?turn=2")
        await page.locator("#turn-2 .fork-link").click()
        await page.wait_for_url(f"{url}/#/run/toy/fork/{ADDRESS}?turn=2")
        await page.get_by_text("1 turn repeated").wait_for()
        assert await page.locator(".turns.past li").count() == 1
        command = page.locator(".command")
        words = shlex.split(await command.inner_text())
        assert words[2:] == [f"toy/{ADDRESS}@2", "-n", "16", "--runs", str(run_folder.parent)]
        named_parent, turn = find_parent(words[2], paths=[Path(words[-1])])
        assert (named_parent.run.folder, named_parent.address, turn) == (run_folder, ADDRESS, 2)
        await page.get_by_label("Who").select_option("person")
        assert "@2 --human " in await command.inner_text()
        await page.get_by_role("button", name="Go on").click()
        line = page.get_by_label("Your action")
        for number, action in enumerate([HOSTILE, *SOLUTION], start=1):
            await line.fill(action)
            await page.locator(".console button:enabled", has_text="Act").wait_for()
            await page.keyboard.press("Enter")
            await page.locator(".live-turns > li").nth(number - 1).wait_for()
        await page.locator(".live-status .solved").wait_for()
        assert await page.locator(".live-turns .observation").first.inner_text() == (
            f"Could not execute {HOSTILE}"
        )
        assert await page.evaluate("window.owned") is None
        await page.locator(".fork-list a", has_text="turn 2").click()
        await page.wait_for_url("**/group/forks:1")
        await page.locator(".side-head a").first.click()
        await page.get_by_role("link", name="beside the original").click()
        await page.get_by_text("2 distinct sequences of actions").wait_for()
        assert await page.locator(".side-head", has_text="parts at turn 2").count() == 1

        await page.goto(f"{url}/#/run/toy/fork/{ADDRESS}?turn=2")
        await page.get_by_label("Samples").fill("3")
        await page.get_by_label("Turns in all").fill("5")
        assert "@2 -n 3 --max-turns 5 " in await command.inner_text()
        await page.get_by_role("button", name="Go on").click()
        assert await page.get_by_role(
            "button", name="Go on"
        ).is_disabled()  # the samples' stop stays in sight
        await page.get_by_text("3 samples ended.").wait_for()
        await page.locator(".primary:enabled").wait_for()
        await page.locator(".facts", has_text="success from here").wait_for()
        assert await page.locator(".live-box .dot").count() == 3

        await page.get_by_label("Samples").fill("64")  # which take longer than a look at another page
        await page.get_by_label("Turns in all").fill("60")
        await page.get_by_role("button", name="Go on").click()
        await page.get_by_role("button", name="Stop").wait_for()
        await page.goto(f"{url}/#/run/toy/at/{ADDRESS}?turn=2")
        await page.locator("#turn-2 .fork-link").click()
        await page.get_by_role("button", name="Stop").click()
        await page.get_by_text("Stopped after").wait_for()
        await page.locator(".primary:enabled").wait_for()

        await page.set_viewport_size({"width": 390, "height": 800})  # a phone's
        await page.goto(f"{url}/#/console?env=textcraft&item=0")
        await page.locator(".opening", has_text="Goal: craft").wait_for()
        await page.get_by_label("Your action").fill(HOSTILE)
        await page.keyboard.press("Enter")
        await page.locator(".live-turns .observation", has_text="window.owned").wait_for()
        assert await page.evaluate("document.documentElement.scrollWidth") <= 390
        assert await page.evaluate("window.owned") is None
        assert await page.locator("#view :is(script, iframe, b)").count() == 0
        assert all(request.startswith(url) for request in requests)
        assert troubles == []
