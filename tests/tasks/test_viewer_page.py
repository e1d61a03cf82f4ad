"""The viewer over HTTP: by a client, and as a person sees it in Chromium."""

import base64
import json
import re
import shutil
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from agents.types import Trajectory
from envs.builtin.browser.program import CHROMIUM
from envs.network.client import tls_context
from envs.types import Image, Item
from tasks.data.trajectories import trajectory_to_dict, write_trajectories
from tasks.data.updates import TrajectoryUpdate, TurnUpdate, update_file, write_updates
from tasks.reporting.pages import duration
from tasks.viewer import viewer as viewer_module
from tasks.viewer.app import HEADERS, STATIC, viewer_app
from tasks.viewer.viewer import Viewer
from tests.support.http_server import serving_in_thread
from tests.support.needs import needs
from tests.support.report_toy import ITEMS, make_trajectory, write_training, write_workspace
from tests.support.viewer_page import open_viewer, watch
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
HOSTILE = (
    "<script>window.owned = 1</script><img src=x onerror='window.owned = 2'></pre>"
    "<iframe srcdoc='<script>parent.owned = 3</script>'></iframe> \u202egnissapyb \x00\x1b[31m"
)
ONE = "run=toy&address=step_0001:1"
READS = (
    *("runs", "run?run=toy", "state?run=toy", "trajectories?run=toy&q=success:true", "groups?run=toy"),
    *("facets?run=toy", f"trajectory?{ONE}", f"place?{ONE}", f"tokens?{ONE}", "item?run=toy&item=toy_0"),
    *("sides?run=toy&group=step_0001:1", f"sides?{ONE}&address=evaluation:1"),
    "image?run=toy&address=step_0002:1&turn=0&number=0",
)
MISTAKES = {
    "run?run=no": (404, "there is no run 'no'"),
    "trajectories?run=toy&q=depht:1": (400, "did you mean 'depth'"),
    "trajectories?run=toy&sort=hope": (400, "cannot sort by 'hope'"),
    "trajectories?run=toy&offset=x": (400, "offset='x'"),
    "trajectory?run=toy&address=step_0001:999": (404, "there is no trajectory step_0001:999"),
    "trajectory?run=toy&address=../../etc/passwd:1": (404, "there is no trajectory"),
    "tokens?run=toy&address=step_0001:999": (404, "there is no trajectory step_0001:999"),
    "sides?run=toy&group=no:1": (404, "there is no trajectory no:1"),
    "sides?run=toy": (400, "no trajectory is named"),
    "item?run=toy&item=no": (404, "'no'"),
    "image?run=toy&address=step_0002:1&turn=0&number=1": (404, "no such image"),
    "no": (404, "Not Found"),
}


def write_steps(folder: Path, *, steps: int = 3) -> None:
    """Groups of four: two solved at once, one in other ways, one not at all."""
    for step in range(1, steps + 1):
        group = [
            make_trajectory(ITEMS[0], success=True),
            make_trajectory(ITEMS[0], success=True),
            make_trajectory(ITEMS[0], success=False, turns=3, action='search({"query": "logs"})'),
            make_trajectory(ITEMS[0], success=False, turns=5),
        ]
        numbered = [replace(trajectory, sample_index=number) for number, trajectory in enumerate(group)]
        write_trajectories(step_file(folder, step), numbered)


def step_file(folder: Path, step: int) -> Path:
    return folder / "train" / "trajectories" / f"step_{step:04d}.jsonl"


def hostile_trajectory() -> Trajectory:
    item = Item(item_id=f"x_{HOSTILE}", env=HOSTILE, metadata={HOSTILE: HOSTILE}, fields={HOSTILE: HOSTILE})
    trajectory = make_trajectory(item, success=False, action=f'{{"{HOSTILE}"}}')
    images = (Image(PNG, "image/png"), Image(b"<svg onload='window.owned = 4'/>", "image/svg+xml"))
    turn = replace(
        trajectory.turns[0], thought=HOSTILE, observation=HOSTILE * 60, text=HOSTILE, images=images
    )
    return replace(
        trajectory,
        turns=(turn, replace(turn, is_malformed=True)),
        labels={"policy": HOSTILE},
        metrics={HOSTILE: 1.0},
    )


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """A finished run."""
    folder = tmp_path / "runs" / "toy"
    write_workspace(folder)
    write_steps(folder)
    write_trajectories(step_file(folder, 2), [hostile_trajectory()])
    for number, is_solved in ((1, False), (2, True)):
        episodes = [make_trajectory(ITEMS[1], success=is_solved, version=2 * number)]
        write_trajectories(folder / "train" / "trajectories" / f"round_{number:02d}.jsonl", episodes)
    numbers = TurnUpdate(advantages=-0.5, log_ratios=[0.0, 0.2, -0.02], entropies=[0.01, 0.2, 1.5])
    updates = [
        TrajectoryUpdate(item_id="toy_0", sample_index=number, turns=[numbers] * turns if turns else None)
        for number, turns in enumerate((0, 2, 3, 5))
    ]
    write_updates(update_file(step_file(folder, 3).parent, 3), updates)
    (folder / "policy").mkdir()
    shutil.copy(ROOT / "models" / "textcraft-base" / "tokenizer.json", folder / "policy")
    return folder


@contextmanager
def viewing(folder: Path, *, token: str | None = None, **options: Any) -> Iterator[httpx.Client]:
    viewer = Viewer([folder.parent], cache=folder.parent.parent / "cache")
    app = viewer_app(viewer, host="127.0.0.1", token=token)
    with (
        serving_in_thread(app) as url,
        httpx.Client(base_url=url, timeout=30, verify=tls_context(), **options) as client,
    ):
        yield client


def test_every_answer_is_json_that_a_browser_reads_and_forbids_scripts(toy: Path) -> None:
    with viewing(toy) as client:
        for read in READS:
            answer = client.get(f"/api/{read}")
            assert answer.status_code == 200, (read, answer.text)
            assert answer.headers.items() >= HEADERS.items()
            if not read.startswith("image"):
                json.loads(answer.text, parse_constant=pytest.fail)
        for mistake, (status, text) in MISTAKES.items():
            answer = client.get(f"/api/{mistake}")
            assert answer.status_code == status, mistake
            assert text in answer.json()["error"], mistake
            assert answer.headers.items() >= HEADERS.items()
        pages = {path.name: client.get(f"/static/{path.name}") for path in STATIC.iterdir()}
        assert all(page.status_code == 200 for page in pages.values())
        assert pages["main.js"].headers["content-type"].startswith("text/javascript")
        assert client.get("/").text == (STATIC / "index.html").read_text()
        assert "--paper" in client.get("/static/palette.css").text
        assert client.get("/static/%2e%2e/app.py").status_code == 404


def test_runs_of_a_pipeline_show_the_parameters_that_they_do_not_share(toy: Path) -> None:
    """Even if `pipelines.yaml` has changed in between, so that none of them has changed it."""
    recorded = {
        "toy": (
            "textcraft-cpu",
            "report/parameters.json",
            {"seed": 0, "rollout": {"max_tokens_per_turn": 96}},
        ),
        "later": (
            "textcraft-cpu",
            "report/parameters.json",
            {"seed": 0, "rollout": {"max_tokens_per_turn": 144}},
        ),
        "going-on": ("textcraft-cpu", "train/inputs.json", {"params": {"seed": 1, "description": "x"}}),
        "other": ("babyai-cpu", "report/parameters.json", {"seed": 5, "description": "y"}),
    }
    for name, (pipeline, file, parameters) in recorded.items():
        folder = toy.with_name(name)
        write_training(folder)
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_text(json.dumps(parameters))
        (folder / "parameters.json").write_text(json.dumps({"pipeline": pipeline, "changed": {}}))
    with viewing(toy) as client:
        runs = {run["name"]: run["differing"] for run in client.get("/api/runs").json()["runs"]}
        assert runs == {
            "toy": {"rollout.max_tokens_per_turn": 96, "seed": 0},
            "later": {"rollout.max_tokens_per_turn": 144, "seed": 0},
            "going-on": {"seed": 1},
            "other": {},
        }
        summary = client.get("/api/run?run=later").json()["summary"]
        assert summary["differing"] == runs["later"]


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("parameters.json", {"pipeline": {"name": "textcraft-cpu"}, "changed": {}}),
        ("parameters.json", {"pipeline": ["textcraft-cpu"], "changed": ["seed"]}),
        ("parameters.json", {"pipeline": "textcraft-cpu", "changed": {"seed": 7, "train.lr": [1, 2]}}),
        ("train/inputs.json", {"params": {"train": [60]}}),
        ("train/inputs.json", {"params": [60]}),
        ("report/parameters.json", {"train": {"steps": {}}, "data": []}),
    ],
)
def test_damaged_parameters_do_not_hide_the_runs(toy: Path, file: str, content: object) -> None:
    (toy / "report").mkdir(exist_ok=True)
    (toy / file).write_text(json.dumps(content))
    write_workspace(toy.parent / "another")
    with viewing(toy) as client:
        runs = {run["name"]: run for run in client.get("/api/runs").json()["runs"]}
        assert runs.keys() == {"another", "toy"}
        assert runs["toy"]["pipeline"] in (None, "textcraft-cpu")
        assert runs["toy"]["changed"] in ({}, {"train.lr": [1, 2]})
        assert runs["toy"]["steps"] is None
        assert client.get("/api/run?run=toy").status_code == 200


def test_lists_and_trajectories_hold_what_the_files_hold(toy: Path) -> None:
    with viewing(toy) as client:
        run = client.get("/api/run?run=toy").json()
        assert [run["summary"][key] for key in ("step", "success", "kind")] == [4, 0.5, "run"]
        assert run["series"]["turns"] == [2.0, 3.0, 4.0, 5.0]
        assert run["kept"] == [[1, 4, 2], [2, 1, 0], [3, 4, 2]]
        assert run["kept_by_round"] == [[1, 1, 0], [2, 1, 1]]
        listed = client.get(
            "/api/trajectories", params={"run": "toy", "q": "step:3", "sort": "-turns"}
        ).json()
        assert [(row["address"], row["turns"]) for row in listed["rows"]] == [
            ("step_0003:4", 5), ("step_0003:3", 3), ("step_0003:1", 2), ("step_0003:2", 2)
        ]  # fmt: skip
        shown = client.get("/api/trajectory?run=toy&address=step_0003:3").json()
        assert [turn["calls"][0]["name"] for turn in shown["turns"]] == ["search"] * 3
        assert [row["address"] for row in shown["siblings"]] == [f"step_0003:{line}" for line in (1, 2, 3, 4)]
        assert shown["prompt"]["tokens"] == 2
        assert isinstance(shown["prompt"]["text"], str)
        tokens = client.get("/api/tokens?run=toy&address=step_0003:3").json()["turns"][0]
        assert tokens["logprob"] == [-0.5, -1.0, -0.25, None]
        assert tokens["log_ratio"] == [0.0, 0.2, -0.02, None]
        assert [turn["advantage"] for turn in shown["turns"]] == [-0.5] * 3
        answer = client.get("/api/image?run=toy&address=step_0002:1&turn=0&number=0")
        assert (answer.content, answer.headers["content-type"]) == (PNG, "image/png")
        history = client.get("/api/item?run=toy&item=toy_0").json()["rows"]
        assert [row["step"] for row in history] == [None] * 2 + [1] * 4 + [3] * 4 + [None] * 2
        history = client.get("/api/item?run=toy&item=toy_1").json()["rows"]
        assert [row["round"] for row in history] == [None] * 3 + [1, 2] + [None] * 2
        assert [row["labels"].get("policy") for row in history[::5]] == ["before", "after"]


@pytest.mark.heavy
def test_a_growing_run_and_a_new_one_are_seen(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(viewer_module, "REFRESH_S", 0.1)
    with viewing(toy) as client:
        state = client.get("/api/state?run=toy").json()
        line = json.dumps(trajectory_to_dict(make_trajectory(ITEMS[1], success=True)))
        with step_file(toy, 3).open("a") as file:
            file.write(line[:100])
            file.flush()
            wait_until(
                lambda: client.get("/api/state?run=toy").json()["generation"] > state["generation"],
                poll_s=0.2,
            )
            assert client.get("/api/trajectories?run=toy&q=step:3").json()["total"] == 4
            file.write(line[100:] + "\n")
        wait_until(lambda: client.get("/api/trajectories?run=toy&q=step:3").json()["total"] == 5, poll_s=0.2)
        write_workspace(toy.parent / "another")
        wait_until(lambda: len(client.get("/api/runs").json()["runs"]) == 2, poll_s=0.2)
        shutil.rmtree(toy)
        wait_until(lambda: client.get("/api/run?run=toy").status_code == 404, poll_s=0.2)


def test_annotations_are_taken_from_the_page_alone(toy: Path) -> None:
    with viewing(toy) as client:
        shown = client.get("/api/trajectory?run=toy&address=step_0001:2").json()
        body = {
            "run": "toy",
            "address": "step_0001:2",
            "digest": shown["digest"],
            "label": "loop",
            "note": " a\nb ",
        }
        port = client.base_url.port
        assert port is not None
        mistakes: list[tuple[int, dict[str, str], dict[str, str]]] = [
            (403, {"origin": "https://example.org"}, {}),
            (403, {"origin": f"http://127.0.0.1:{port + 1}"}, {}),
            (415, {"content-type": "text/plain"}, {}),
            (400, {"host": "example.org"}, {}),
            (409, {}, {"digest": "0" * 16}),
            (404, {}, {"address": "step_0001:99"}),
            (422, {}, {"label": "two words"}),
            (422, {}, {"note": "x" * 5000}),
            (422, {}, {"file": "/etc/passwd"}),
        ]
        for status, headers, change in mistakes:
            sent = {"content-type": "application/json", **headers}
            answer = client.post("/api/annotations", content=json.dumps(body | change), headers=sent)
            assert answer.status_code == status, (headers, change)
        assert not (toy / "annotations.jsonl").exists()
        own = {"origin": f"http://127.0.0.1:{port}"}
        assert client.post("/api/annotations", json=body, headers=own).json() == {
            "label": "loop",
            "note": "a\nb",
        }
        found = client.get("/api/trajectories?run=toy&q=label:loop").json()["rows"]
        assert [(row["address"], row["note"]) for row in found] == [("step_0001:2", "a\nb")]
        written = json.loads((toy / "annotations.jsonl").read_text())
        assert (written["file"], written["line"], written["item"], written["sample"]) == (
            "step_0001",
            2,
            "toy_0",
            1,
        )


def test_a_page_of_another_name_gets_nothing(toy: Path) -> None:
    with viewing(toy, headers={"host": "rebound.example.org"}) as client:
        for path in ("/", "/api/runs", "/static/main.js"):
            assert client.get(path).status_code == 400


def test_a_token_is_given_once_in_the_address(toy: Path) -> None:
    with viewing(toy, token="a b/ü") as client:
        for path in ("/", "/api/runs", "/static/main.js", "/?token=", "/?token=a", "/api/runs?token=a b/ü"):
            answer = client.get(path)
            assert (answer.status_code, "requires its token" in answer.text) == (401, True), path
            assert answer.headers.items() >= HEADERS.items()
        answer = client.get("/", params={"token": "a b/ü"})
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        assert {"HttpOnly", "SameSite=strict"} <= set(answer.headers["set-cookie"].split("; "))
        for path in ("/", "/api/runs", "/static/main.js"):
            assert client.get(path).status_code == 200


def test_the_page_is_part_of_the_package() -> None:
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["*"]
    assert {f"**/*{path.suffix}" for path in STATIC.iterdir()} <= set(patterns)
    for path in STATIC.iterdir():
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|innerHTML|eval\(", path.read_text()), path


@pytest.mark.browser
@needs(CHROMIUM)
async def test_the_list_of_runs_fits_the_window_and_says_which_are_unfinished(toy: Path) -> None:
    for name in ("step-34-of-textcraft-cpu-on-textcraft-and-babyai-4f2a61b0", "half-way", "broken"):
        write_training(toy.with_name(name))
    (toy.with_name("broken") / "state.json").write_text('{"state": "failed"}')
    overrides = {f"rollout.parameter_{number}": [0.25, 0.5] for number in range(3)}
    changes = {"pipeline": "textcraft-cpu", "changed": overrides}
    (toy / "parameters.json").write_text(json.dumps(changes))
    async with open_viewer(toy.parent) as (page, url):
        await page.goto(url)
        for width in (1280, 1440):
            await page.set_viewport_size({"width": width, "height": 800})
            await page.get_by_role("columnheader", name="written").wait_for()
            scrolled = await page.eval_on_selector(".scroll", "box => box.scrollWidth - box.clientWidth")
            assert scrolled == 0
        finished, unfinished = (page.get_by_role("row").filter(has_text=name) for name in ("toy", "half-way"))
        assert "unfinished" not in await finished.inner_text()
        text = await unfinished.inner_text()
        assert "unfinished" in text
        assert re.search(r"step 4\s+\d", text)
        assert "failed" in await page.get_by_role("row").filter(has_text="broken").inner_text()


@pytest.mark.browser
@needs(CHROMIUM)
async def test_a_turn_of_an_address_need_be_no_whole_number(toy: Path) -> None:
    async with open_viewer(toy.parent) as (page, url):
        _, troubles = watch(page)
        for turn, number in (("1.5", "1"), ("-2", "1"), ("99", "3"), ("1e999", "3"), ("x", None)):
            await page.goto(f"{url}/#/run/toy/at/step_0001:3?turn={turn}")
            await page.get_by_role("heading", name="toy_0 sample 2").wait_for()
            await page.wait_for_function("document.querySelectorAll('.turns li').length == 3")
            selected = page.locator(".turns li.selected .turn-number")
            assert await selected.all_inner_texts() == ([] if number is None else [number]), turn
            await page.goto(f"{url}/#/run/toy")
            await page.get_by_role("heading", name="Evaluation").wait_for()
        await page.goto(f"{url}/#/run/toy/fork/step_0001:3?turn=2.5")
        await page.get_by_role("heading", name="toy_0 fork at turn 2", exact=True).wait_for()
        assert troubles == []


@pytest.mark.browser
@needs(CHROMIUM)
async def test_a_console_of_an_unknown_environment_starts_no_other(toy: Path) -> None:
    async with open_viewer(toy.parent) as (page, url):
        address = f"{url}/#/console?env=nothing&item=3"
        await page.goto(address)
        await page.get_by_text("There is no environment 'nothing' here").wait_for()
        assert page.url == address


@pytest.mark.browser
@needs(CHROMIUM)
async def test_a_list_in_order_is_sorted_by_no_column(toy: Path) -> None:
    async with open_viewer(toy.parent) as (page, url):
        for sort, sorted_columns in (("", []), ("-turns", ["turns ↓"])):
            await page.goto(f"{url}/?of={sort}#/run/toy/trajectories?sort={sort}")  # a page of its own
            await page.locator(".total", has_text="29 trajectories").wait_for()
            assert await page.locator("th[aria-sort]").all_inner_texts() == sorted_columns


@pytest.mark.browser
@needs(CHROMIUM)
async def test_a_list_with_long_names_and_much_metadata_fits_a_window_of_1200_pixels(toy: Path) -> None:
    """The names and metadata are those of WebShop, whose list was 1296 pixels wide where 930 were free."""
    metadata = {"attributes": 3, "category": "electronics", "options": 0}
    item = Item(item_id="webshop-mini:text?actions=false_151", env="webshop-mini", metadata=metadata)
    failed_trajectory = make_trajectory(item, success=False, turns=25)
    labels = {"policy": "before", "mode": "sampled"}
    write_trajectories(step_file(toy, 4), [failed_trajectory, replace(failed_trajectory, labels=labels)])
    async with open_viewer(toy.parent) as (page, url):
        await page.set_viewport_size({"width": 1200, "height": 800})
        for place in ("trajectories?q=step:4", "groups?q=step:4"):
            await page.goto(f"{url}/#/run/toy/{place}")
            await page.locator("td.tags", has_text="electronics").first.wait_for()
            box = page.locator(".rows .scroll")
            assert await box.evaluate("box => box.scrollWidth - box.clientWidth") == 0, place
            name = page.get_by_role("link", name=item.item_id).first
            assert await name.is_visible()


@pytest.mark.browser
@needs(CHROMIUM)
async def test_a_long_list_stays_where_it_is_when_its_run_grows_and_when_it_is_returned_to(toy: Path) -> None:
    write_trajectories(step_file(toy, 4), [make_trajectory(ITEMS[1], success=True)] * 650)
    read_rows = "[...document.querySelectorAll('table.list tbody tr')]"
    read_selected = "document.querySelector('tr.selected a')?.getAttribute('href')"
    async with open_viewer(toy.parent) as (page, url):
        await page.goto(f"{url}/#/run/toy/trajectories?sort=-step")
        await page.locator(".total", has_text="679 trajectories").wait_for()
        for key in "jjj":
            await page.keyboard.press(key)
        for rows in range(100, 700, 100):
            await page.wait_for_function(f"() => {read_rows}.length >= {rows}")
            await page.evaluate("scrollTo(0, document.body.scrollHeight)")
        await page.wait_for_function(f"() => {read_rows}.length == 679")
        scrolled = await page.evaluate("scrollY")
        write_trajectories(step_file(toy, 5), [make_trajectory(ITEMS[1], success=True)] * 2)
        await page.locator(".total", has_text="681 trajectories").wait_for()
        await page.wait_for_function(f"() => {read_rows}.length >= 679")
        assert await page.evaluate("scrollY") == scrolled
        assert await page.evaluate(read_selected) == "#/run/toy/at/step_0004:3?sort=-step"
        await page.evaluate(f"{read_rows}[620].click()")
        await page.get_by_role("heading", name="toy_1 sample 0").wait_for()
        await page.keyboard.press("u")
        await page.locator(".total", has_text="681 trajectories").wait_for()
        assert await page.evaluate(read_selected) == "#/run/toy/at/step_0004:619?sort=-step"


@pytest.mark.browser
@needs(CHROMIUM)
async def test_pages_of_a_growing_run_stay_as_they_were_opened_scrolled_and_focused(toy: Path) -> None:
    write_training(toy, turns=[2] * 60, horizons=[5] * 60)
    async with open_viewer(toy.parent) as (page, url):
        await page.goto(f"{url}/#/run/toy/groups?q=step:1&sort=-reward")
        await page.get_by_role("link", name="toy_0").click()
        await page.wait_for_url(f"{url}/#/run/toy/group/step_0001:1?q=step:1&sort=-reward")
        await page.get_by_text("Prompt, 2 tokens").click()
        async with page.expect_response("**/api/sides?*"):
            write_trajectories(step_file(toy, 4), [make_trajectory(ITEMS[1], success=True)])
        await page.wait_for_event("request", lambda request: "/api/state?" in request.url)
        assert await page.locator("pre.prompt").is_visible()
        await page.keyboard.press("u")
        await page.wait_for_url(f"{url}/#/run/toy/groups?q=step:1&sort=-reward")

        await page.goto(f"{url}/#/run/toy")
        await page.get_by_role("heading", name="Steps").wait_for()
        read_row = "box => box.scrollHeight - box.scrollTop"
        steps = page.locator(".tall")
        await steps.evaluate("box => { box.scrollTop = 300; }")
        in_sight = await steps.evaluate(read_row)
        write_training(toy, turns=[2] * 61, horizons=[5] * 61)
        await page.get_by_role("rowheader", name="61", exact=True).wait_for()
        assert await steps.evaluate(read_row) == in_sight

        await page.goto(url)
        link = page.get_by_role("link", name="toy", exact=True)
        await link.focus()
        await page.keyboard.press("j")
        write_training(toy.with_name("another"))
        await page.get_by_role("link", name="another").wait_for()
        for _ in range(2):
            await page.wait_for_event("request", lambda request: "/api/runs" in request.url)
            assert await link.evaluate("link => link === document.activeElement")
        assert await page.locator("tr.selected a").inner_text() == "toy"


@pytest.mark.browser
@needs(CHROMIUM)
async def test_a_value_between_two_that_are_missing_is_a_point(toy: Path) -> None:
    async with open_viewer(toy.parent) as (page, url):
        await page.goto(url)
        for call, x, y in (
            # From 48 to 352, and from 8 to 110; from 1 to 119, and from 20 to 2.
            ("chart({ steps: [1, 2, 3, 4, 5], values, from0to1: true })", 200, 59),
            ("sparkline(values)", 60, 11),
        ):
            has_ink = await page.evaluate(
                f"""import('/static/charts.js').then(({{ chart, sparkline }}) => {{
                    const values = [0.5, null, 0.5, null, 1];
                    document.body.append({call});
                    const path = [...document.querySelectorAll('path')].at(-1);
                    return path.isPointInStroke(new DOMPoint({x}, {y}));
                }})"""
            )
            assert has_ink, call


@pytest.mark.browser
@needs(CHROMIUM)
async def test_a_long_number_keeps_the_digits_before_its_point(toy: Path) -> None:
    values = [1234.5678, -98765.4, 999.96, 123.456, 12, 0.00012]
    async with open_viewer(toy.parent) as (page, url):
        await page.goto(url)
        texts = await page.evaluate(
            f"import('/static/dom.js').then(({{ number }}) => {values}.map((value) => number(value)))"
        )
    assert texts == ["1235", "−98765", "1000", "123", "12", "1.2e−4"]


@pytest.mark.browser
@needs(CHROMIUM)
async def test_a_person_finds_reads_and_annotates_trajectories(toy: Path) -> None:
    async with open_viewer(toy.parent) as (page, url):
        requests, troubles = watch(page)

        await page.goto(url)
        await page.keyboard.press("j")
        await page.get_by_role("link", name="toy", exact=True).wait_for()
        await page.keyboard.press("j")
        await page.keyboard.press("Enter")
        await page.get_by_role("heading", name="Evaluation").wait_for()
        await page.keyboard.press("/")
        await page.locator(".total", has_text="29 trajectories").wait_for()

        await page.keyboard.press("/")
        await page.keyboard.type("step:3 turns>2")
        await page.keyboard.press("Enter")
        await page.locator(".total", has_text="2 trajectories").wait_for()
        assert page.url == f"{url}/#/run/toy/trajectories?q=step:3+turns%3E2"
        await page.get_by_role("button", name="max turns").click()
        await page.wait_for_url("**/#/run/toy/trajectories?q=step:3+turns%3E2+stop:max_turns")
        await page.locator(".total", has_text="2 trajectories").wait_for()
        await page.keyboard.press("j")
        await page.keyboard.press("Enter")
        await page.get_by_role("heading", name="toy_0 sample 2").wait_for()
        await page.locator(".place", has_text="1 of 2").wait_for()
        assert await page.locator(".turns .call").count() == 3
        assert await page.locator(".turns .text.observation").first.inner_text() == "Got 1 log"
        await page.keyboard.press("j")
        await page.keyboard.press("j")
        await page.keyboard.press("s")
        await page.keyboard.press("s")
        await page.locator(".turns .token").nth(11).wait_for()
        assert page.url.endswith("&show=logprob&turn=2")
        unlikely = page.locator(".turns li.selected .token.level-1")
        assert await unlikely.count() == 1  # exp(−1) < 1/2 < exp(−0.5)

        for show, levels in (
            ("advantage", ["loss-1"] * 3),
            ("log_ratio", ["level-0", "level-2", "level-1"]),
            ("entropy", ["level-0", "level-1", "level-3"]),
        ):
            await page.locator(f"button[data-show={show}]").click()
            await page.locator(f"#turn-2 .by-{show} .token").nth(3).wait_for()
            kinds = await page.eval_on_selector_all(
                "#turn-2 .token", "tokens => tokens.map(token => token.classList[1])"
            )
            assert kinds == [*levels, "unsampled"]
        assert page.url.endswith("&show=entropy&turn=2")
        for _ in range(3):  # from the last choice to the first, and on to the log-probs
            await page.keyboard.press("s")
        await page.locator("#turn-2 .by-logprob").wait_for()
        assert sum("/api/tokens?" in request for request in requests) == 1
        first = await page.context.new_page()
        await first.goto(f"{url}/#/run/toy/at/step_0003:1?show=entropy")  # not trained on
        await first.get_by_text("did not learn from this trajectory").wait_for()
        assert await first.locator(".shown button").count() == 4
        await first.locator(".shown button[aria-pressed=true]", has_text="text").wait_for()
        await first.close()

        again = await page.context.new_page()  # the address alone shows the same
        await again.goto(page.url)
        await again.locator("#turn-2.selected .token").first.wait_for()
        await again.close()

        await page.get_by_label("Label").fill("loop")
        await page.get_by_label("Note").fill("searches on")
        await page.get_by_role("button", name="Save").click()
        await page.get_by_text("saved", exact=True).wait_for()
        await page.keyboard.press("Escape")
        await page.keyboard.press("ArrowRight")
        await page.get_by_role("heading", name="toy_0 sample 3").wait_for()
        await page.goto(f"{url}/#/run/toy/trajectories?q=step:1,3&sort=-turns")
        await page.locator(".total", has_text="8 trajectories").wait_for()
        for key in "jxjxc":  # from what was seen last
            await page.keyboard.press(key)
        await page.wait_for_url(f"{url}/#/run/toy/sides?at=step_0001:3&at=step_0003:3&q=step:1,3&sort=-turns")
        await page.get_by_text("all acted alike").wait_for()
        await page.keyboard.press("u")  # the same list
        await page.wait_for_url(f"{url}/#/run/toy/trajectories?q=step:1,3&sort=-turns")
        await page.goto(f"{url}/#/run/toy/at/step_0003:4?q=step:3+turns%3E2+stop:max_turns")
        await page.get_by_role("heading", name="toy_0 sample 3").wait_for()
        await page.keyboard.press("u")  # the list is as it was left, at what was seen last
        assert await page.locator("tr.selected td").nth(1).inner_text() == "3"
        await page.keyboard.press("Enter")
        await page.get_by_role("heading", name="toy_0 sample 3").wait_for()
        await page.keyboard.press("g")
        await page.get_by_text("3 distinct sequences of actions").wait_for()
        assert await page.locator(".side-head").count() == 3  # two of the four acted alike
        assert await page.locator(".side-head", has_text="parts at turn 1").count() == 1
        assert await page.locator(".side-head", has_text="parts at turn 3").count() == 1
        await page.keyboard.press("i")
        await page.get_by_role("row", name="step 3").wait_for()
        assert await page.locator(".dot").count() == 12
        await page.goto(f"{url}/#/run/toy/trajectories?q=label:loop")
        await page.locator("td.note", has_text="searches on").wait_for()

        await page.goto(f"{url}/#/run/toy")
        quick_evaluations = page.get_by_role("heading", name="Rounds").locator("..").get_by_role("row")
        await quick_evaluations.nth(2).get_by_role("link").nth(1).click()
        await page.wait_for_url(f"{url}/#/run/toy/trajectories?q=round:2")
        await page.locator(".total", has_text="1 trajectory").wait_for()
        await page.keyboard.press("j")
        await page.keyboard.press("Enter")
        await page.get_by_role("link", name="after round 2").wait_for()
        await page.keyboard.press("i")
        await page.get_by_role("row", name="after round 2").wait_for()
        whens = await page.locator(".history th[scope=row]").all_inner_texts()
        assert [when.partition(",")[0] for when in whens] == [
            *["evaluation"] * 2,
            "after round 1",
            "after round 2",
            *["evaluation"] * 2,
        ]
        await page.get_by_role("link", name="The quick evaluations after each round").click()
        await page.wait_for_url(f"{url}/#/run/toy/sides?at=round_01:1&at=round_02:1")

        write_steps(toy, steps=1)
        write_trajectories(step_file(toy, 4), [make_trajectory(ITEMS[2], success=True)])
        await page.goto(f"{url}/#/run/toy/trajectories?q=step:4..5")
        await page.locator(".total", has_text="1 trajectory").wait_for()
        write_trajectories(step_file(toy, 5), [make_trajectory(ITEMS[2], success=True)])
        await page.locator(".total", has_text="2 trajectories").wait_for()  # by itself

        await page.goto(f"{url}/#/run/toy/at/step_0003:4?show=nothing")
        await page.locator(".shown button[aria-pressed=true]", has_text="text").wait_for()
        numbers = "dom => [dom.percent(0.0625), dom.fixed(-0.001, 2), dom.fixed(-0.2, 2)]"  # as the report's
        shown = await page.evaluate(f"import('/static/dom.js').then({numbers})")
        assert shown == ["6.2%", "0.00", "\u22120.20"]
        durations = [12.34, 59.94, 59.96, 60.5, 61.5, 179.5, 179.7, 3599.4, 3599.6, 3600, 7530, 90_000.5]
        numbers = f"dom => {durations}.map(dom.seconds)"
        shown = await page.evaluate(f"import('/static/dom.js').then({numbers})")
        assert shown == [duration(value) for value in durations]
        chart = "({ chart }) => chart({ steps: [1, 2], values: [-0.0013, 0.034] })"
        texts = "chart => [...chart.querySelectorAll('text')].map(one => one.textContent)"
        shown = await page.evaluate(f"import('/static/charts.js').then({chart}).then({texts})")
        assert shown == ["0.02", "0.04", "0", "1", "2"]

        policy = "a-policy-with-a-long-name, step 51"
        fork = replace(
            make_trajectory(ITEMS[0], success=True),
            labels={"parent": "step_0003:4", "turn": 2, "policy": policy},
        )
        write_trajectories(toy / "forks.jsonl", [fork])
        await page.set_viewport_size({"width": 1280, "height": 800})
        await page.goto(f"{url}/#/run/toy/trajectories?q=phase:fork")
        await page.locator(".total", has_text="1 trajectory").wait_for()
        await page.goto(f"{url}/#/run/toy/at/forks:1")
        await page.get_by_role("heading", name="toy_0 sample 0").wait_for()
        await page.get_by_label("Note").fill("a long note: " + "it goes on, " * 8)
        await page.get_by_role("button", name="Save").click()
        await page.get_by_text("saved", exact=True).wait_for()
        for place in ("trajectories", "groups"):
            await page.goto(f"{url}/#/run/toy/{place}?q=phase:fork")
            when = page.locator("td", has_text="fork of step_0003:4 at turn 2 by a-policy-with-a-long-name")
            await when.wait_for()
            width = "box => [box.scrollWidth - box.clientWidth]"
            assert await page.locator(".rows .scroll").evaluate(width) == [0], place

        item = f"item?item={quote('x_' + HOSTILE)}"
        one = "at/step_0002:1"
        await page.set_viewport_size({"width": 390, "height": 800})  # a phone's
        boxes = "[...document.querySelectorAll('.scroll')]"  # of the tables
        await page.goto(f"{url}/#/run/toy")
        await page.get_by_role("heading", name="Steps").wait_for()
        assert await page.evaluate(f"{boxes}.map(box => box.scrollWidth - box.clientWidth)") == [0, 0, 0]
        for place in ("trajectories", "groups", one, f"{one}?show=owner", "group/step_0002:1", item):
            await page.goto(f"{url}/#/run/toy/{place}")
            await page.locator("#view", has_text="window.owned").wait_for()
            assert await page.evaluate("document.documentElement.scrollWidth") <= 390, place
            assert await page.evaluate(f"{boxes}.every(box => box.scrollWidth <= box.clientWidth)"), place
            assert await page.evaluate("window.owned") is None
            assert await page.locator("#view :is(script, iframe, b)").count() == 0
            words = await page.evaluate("document.body.textContent")
            assert ("[U+202E]gnissapyb" in words, "\u202e" in words) == (True, False), place
        await page.goto(f"{url}/#/run/toy/at/step_0002:1")
        image = page.locator(".images img").first
        await image.scroll_into_view_if_needed()
        assert await image.evaluate("image => image.decode().then(() => image.naturalWidth)") == 1
        await page.get_by_text("An image of type image/svg+xml is not shown.").first.wait_for()
        await page.get_by_role("button", name="more characters").first.click()
        assert await page.evaluate("window.owned") is None
        assert all(request.startswith(url) for request in requests)
        assert troubles == []

        await page.goto(f"{url}/#/run/toy/trajectories?q=depht:1")
        await page.get_by_role("alert").get_by_text("did you mean 'depth'").wait_for()
        assert await page.get_by_text("Nothing meets all conditions").count() == 0

        await page.goto(f"{url}/#/run/nothing")
        await page.get_by_role("alert").get_by_text("there is no run 'nothing'").wait_for()
        await page.goto(f"{url}/#/nowhere")
        await page.get_by_role("alert").get_by_text("There is no such page: #/nowhere").wait_for()
        refused = "Failed to load resource: the server responded with a status of"  # the browser's own words
        assert [trouble for trouble in troubles if not trouble.startswith(refused)] == []
