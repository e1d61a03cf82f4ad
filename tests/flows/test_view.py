"""`wingspan view` as a command: one line when it is ready, and its end."""

import json
import os
import re
import select
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import httpx
import pytest

from envs.errors import ConfigError
from envs.files import write_json
from flows.commands.inventory import pipeline_rows
from flows.commands.serve import view
from flows.lock import lock
from flows.plan import make_plan
from tasks.reporting.comparison.compare import compare
from tasks.reporting.results import read_results
from tasks.runs.folders import STEPS, find_runs
from tasks.runs.rounds import RoundResult, read_rounds, round_file
from tasks.runs.state import mark_stopped, read_state, recorded_state
from tasks.viewer.app import viewer_app
from tasks.viewer.overview import read_overview, summarise_runs
from tasks.viewer.viewer import Viewer
from tests.support.dvc_toy import NAME, make_project
from tests.support.http_server import serving_in_thread
from tests.support.report_toy import write_training, write_workspace

ROOT = Path(__file__).parents[2]
PROGRAM = "import sys; sys.argv[0] = 'wingspan'; from flows.cli.app import main; main()"
RUN = """
import os, signal, sys
from flows.endings.stopping import Stoppable
from flows.lock import lock
from flows.plan import make_plan
from flows.run import open_run

_, name, end = sys.argv
plan = make_plan(name, overrides={}, workspace=None)
with Stoppable(None), lock(plan.workspace), open_run(plan, stages=["prepare"]):
    if end == "failed":
        raise ValueError
    if end:
        os.kill(os.getpid(), signal.SIGINT if end == "stopped" else signal.SIGKILL)
"""


@pytest.mark.heavy
def test_it_serves_the_folder_runs_until_ctrl_c(tmp_path: Path) -> None:
    write_workspace(tmp_path / "runs" / "toy")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    command, pipe = [sys.executable, "-c", PROGRAM, "view", "--port", "0"], subprocess.PIPE
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=pipe, stderr=pipe, text=True
    ) as process:
        assert process.stdout is not None
        assert select.select([process.stdout], [], [], 60)[0]
        line = process.stdout.readline()
        match = re.fullmatch(r"1 run at (http://127\.0\.0\.1:\d+); stop with Ctrl-C\n", line)
        assert match, line
        with httpx.Client(base_url=match[1]) as client:  # its connection stays open
            (run,) = client.get("/api/runs").json()["runs"]
            assert (run["name"], run["step"]) == ("toy", 4)
            assert client.get("/api/trajectories?run=toy").json()["total"] == 18
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
        assert process.communicate() == ("", "")
    assert list((tmp_path / "cache" / "wingspan" / "viewer").glob("toy-*.sqlite"))


def test_a_run_is_live_while_a_command_works_on_it(tmp_path: Path) -> None:
    """Whatever it has written last: of a run that has ended, or of a training step that takes long."""
    write_workspace(tmp_path / "toy")
    (run,) = find_runs([tmp_path])
    with lock(run.folder):
        for file in run.folder.rglob("*"):
            os.utime(file, (0, 0))
        assert summarise_runs([run])[0].state == "running"
    (run.folder / "timing.json").touch()
    assert summarise_runs([run])[0].state == ""


@pytest.mark.heavy
@pytest.mark.parametrize("end", ["failed", "stopped", "killed", ""])
def test_how_a_run_has_ended_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    monkeypatch.chdir(tmp_path)
    make_project(tmp_path)
    plan = make_plan(NAME, overrides={}, workspace=None)
    write_training(plan.workspace)
    (run,) = find_runs([Path("runs")])
    assert summarise_runs([run])[0].state == ""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(
        [sys.executable, "-c", RUN, NAME, end], env=environment, timeout=120, stderr=subprocess.DEVNULL
    )
    assert summarise_runs([run])[0].state == end
    last_runs = {name: last_run for name, last_run, *_ in pipeline_rows()}
    assert last_runs[NAME] == (end or "unfinished")


DAMAGED = [
    '{"before": {',
    "[1]",
    '{"after": 1}',
    '{"after": {"sampled": [0.5]}}',
    '{"a": {"b": {"success": "x"}}}',
    '{"after": {"sampled": {"success": 0.5}}}',
    "[" * 9999,
]


@pytest.mark.heavy
@pytest.mark.parametrize("content", DAMAGED)
def test_a_damaged_evaluation_hides_no_other_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    monkeypatch.chdir(tmp_path)
    make_project(tmp_path)
    write_workspace(Path("runs", NAME))
    write_workspace(Path("runs/babyai-cpu"))
    file = Path("runs", NAME, "evaluation.json")
    file.write_text(content)
    last_runs = {name: last_run for name, last_run, *_ in pipeline_rows()}
    assert last_runs[NAME] == "evaluation.json is damaged"
    assert last_runs["babyai-cpu"].startswith("0.25 ")

    app = viewer_app(Viewer([Path("runs")], cache=tmp_path / "cache"), host="127.0.0.1")
    with serving_in_thread(app) as url, httpx.Client(base_url=url) as client:
        other, damaged = client.get("/api/runs").json()["runs"]
        assert (other["name"], other["success"], other["damage"]) == ("babyai-cpu", 0.5, "")
        assert damaged["damage"].startswith(f"{file} is damaged (")
        assert client.get(f"/api/run?run={NAME}").json()["evaluation"] == {}

    comparison, _ = compare([Path("runs")], tmp_path / "out")
    assert comparison.names == ["babyai-cpu"]
    assert comparison.notes[0].startswith(f"{NAME} is left out: {file} is damaged (")
    with pytest.raises(ConfigError, match=f"^{file} is damaged"):
        compare([file.parent], tmp_path / "out")


DAMAGED_STEPS = [
    '{"step": 1',
    "[1]",
    '{"success": 0.5}',
    '{"step": "1"}',
    '{"step": 1, "success": "0.5"}',
    '{"step": 1, "success": null}',
    '{"step": 1, "success": [0.5]}',
    '{"step": 1, "horizon_reason": 7}',
]


@pytest.mark.parametrize("line", DAMAGED_STEPS)
def test_damaged_steps_hide_no_other_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    monkeypatch.chdir(tmp_path)
    write_workspace(Path("runs/damaged"))
    write_workspace(Path("runs/other"))
    file = Path("runs/damaged/train/metrics.jsonl")
    file.write_text(line + "\n")
    message = f"line 1 of {file} is damaged ("

    app = viewer_app(Viewer([Path("runs")], cache=tmp_path / "cache"), host="127.0.0.1")
    with serving_in_thread(app) as url, httpx.Client(base_url=url) as client:
        damaged, other = client.get("/api/runs").json()["runs"]
        assert (other["name"], other["step"], other["damage"]) == ("other", 4, "")
        assert (damaged["step"], damaged["curve"], damaged["success"]) == (0, [], 0.5)
        assert damaged["damage"].startswith(message)
        assert client.get("/api/run?run=damaged").json()["series"] == {}

    comparison, _ = compare([Path("runs")], tmp_path / "out")
    assert comparison.names == ["other"]
    assert comparison.notes[0].startswith(f"damaged is left out: {message}")
    with pytest.raises(ConfigError, match=re.escape(message)):
        read_results(Path("runs/damaged"))


@pytest.mark.parametrize(
    "name",
    [
        *("train/rounds/01.json", "train/alerts.jsonl", "train/rewinds.jsonl", "train/metrics.jsonl"),
        "evaluation.json",
    ],
)
def test_damage_is_named_until_it_is_mended_in_its_place(tmp_path: Path, name: str) -> None:
    write_workspace(tmp_path / "toy")
    alert = {"monitor": "kl", "step": 3, "value": 1.0, "limit": 0.1, "text": "the KL is 1"}
    (tmp_path / "toy" / "train" / "alerts.jsonl").write_text(json.dumps(alert) + "\n")
    (run,) = find_runs([tmp_path])
    file = run.folder / name
    content = file.read_bytes()
    (neighbour,) = find_runs([run.folder / "evaluation_trajectories.jsonl"])

    def read_damage() -> str:
        of_run, of_neighbour = summarise_runs([run, neighbour])
        assert of_neighbour.damage == ""
        return of_run.damage

    assert read_damage() == ""
    file.write_bytes(content.replace(b"{", b"[[", 1))
    assert re.match(rf"(line 1 of )?{file} is damaged \(", read_damage())
    file.write_bytes(content)
    assert read_damage() == ""
    overview = read_overview(run)
    assert overview["alerts"] == [alert]
    assert overview["rewinds"] == [{"from_step": 4, "to_step": 2, "reasons": "the KL is 9"}]


def test_a_hundred_rounds_are_in_order(tmp_path: Path) -> None:
    for index in range(102):
        done = RoundResult(
            temperature=1.0, index=index, first_step=index, last_step=index, evaluation={}, seconds=1.0
        )
        write_json(round_file(tmp_path, index), asdict(done))
    assert [done.index for done in read_rounds(tmp_path)] == [*range(102)]


def test_a_step_that_is_being_written_is_no_damage(tmp_path: Path) -> None:
    write_workspace(tmp_path / "toy")
    (run,) = find_runs([tmp_path])
    with (run.folder / STEPS).open("a") as file:
        file.write('{"step": 5, "succ')
    (summary,) = summarise_runs([run])
    assert (summary.step, summary.damage) == (4, "")


def test_a_signal_that_libraries_turn_into_an_error_has_stopped_a_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError), recorded_state(tmp_path):
        raise ConfigError("the trainer's process is gone")
    assert read_state(tmp_path) == "failed"
    mark_stopped(tmp_path)
    assert read_state(tmp_path) == "stopped"
    with recorded_state(tmp_path):
        pass
    mark_stopped(tmp_path)  # which came after its end
    assert read_state(tmp_path) == ""


async def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no .*nowhere; give a run's folder"):
        await view([tmp_path / "nowhere"], host="127.0.0.1", port=0, token=None, say=pytest.fail)
