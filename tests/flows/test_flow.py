"""The whole pipeline, small, with Prefect, DVC, MLflow, Ray and verl: stopped, killed, resumed, repeated.

One story in one project, told in order, because each chapter costs a start of Prefect and of verl: a run is
stopped by Ctrl-C twice in the warm-up, then killed in training; the same command finishes it though Prefect's
server dies; once more, it does nothing; DVC agrees; a lost output is made again; a clone that DVC fills has
nothing to do. (`test_deployments.py` has SIGTERM in training, which is how a worker cancels a run.)
"""

import json
import re
import signal
import sqlite3
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest

from tasks.runs.state import read_state
from tests.support.project import NAME, STEPS, STEPS_PER_ROUND, Project, Terminal
from tests.support.waiting import wait_until
from tests.support.yaml_files import edit_yaml

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return Project.make(tmp_path_factory.mktemp("project"))


def assert_stopped(terminal: Terminal, project: Project, *, status: int) -> None:
    assert terminal.end() == status, terminal.screen[-3000:]
    project.wait_until_all_ended()
    screen = terminal.screen.replace("^C", "")  # the terminal's echo
    lines = re.findall(rf"^stopped; .*: wingspan run {NAME}$", screen, flags=re.MULTILINE)
    assert len(lines) == 1, screen[-3000:]
    assert "Traceback" not in screen
    assert "EventsWorker" not in screen
    assert project.flow_states()[-1] == "CANCELLED"
    parent, rounds = project.mlflow_runs()
    assert parent.info.status == "KILLED"
    assert {run.info.status for run in rounds} <= {"FINISHED", "KILLED"}
    assert read_state(project.run_folder) == "stopped"


def test_ctrl_c_twice_in_the_warm_up(project: Project) -> None:
    terminal = Terminal(project)
    # MLflow's run is made meanwhile, as Prefect's was.
    terminal.wait_until(lambda: terminal.is_at("warmup") and (project.run_folder / "mlflow.json").exists())
    terminal.press_ctrl_c()
    time.sleep(0.3)
    terminal.press_ctrl_c()
    assert_stopped(terminal, project, status=130)


def modification_times(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.iterdir()}


def test_killed_in_the_middle_of_training(project: Project) -> None:
    process = project.start("wingspan", "run", NAME)

    def has_trained() -> bool:
        assert process.poll() is None, project.output
        return len(project.finished_steps()) > STEPS_PER_ROUND  # within the second round, or later

    wait_until(has_trained, timeout_s=540, poll_s=0.1)
    folder = next(
        Path(value.decode().removeprefix("WINGSPAN_RUN="))
        for child in psutil.Process(process.pid).children()
        for value in Path(f"/proc/{child.pid}/environ").read_bytes().split(b"\0")
        if value.startswith(b"WINGSPAN_RUN=")
    )
    assert (folder / "ray").is_dir()
    process.send_signal(signal.SIGKILL)
    process.wait()
    project.wait_until_all_ended()
    assert not folder.exists()
    steps = project.finished_steps()
    assert steps == list(range(1, len(steps) + 1))
    assert len(steps) < STEPS
    lines = project.output.splitlines()
    for stage in ("prepare", "provision"):  # the warm-up was stopped
        assert f"{stage}: cached" in lines
    for phase in ("starting Ray", "starting the trainer", "quick evaluation"):
        assert f"train: {phase}" in lines
    _, *earlier, train, _, _ = project.plan()
    assert all("  skip  finished" in line for line in earlier)
    assert "it resumes after step " in train


def test_the_record_says_that_it_was_killed(project: Project) -> None:
    assert project.mlflow_runs()[0].info.status == "RUNNING"
    (line,) = project.run("wingspan", "runs")
    assert line.split()[:2] == [NAME, "killed"]
    assert read_state(project.run_folder) == "killed"
    parent, rounds = project.mlflow_runs()
    assert {run.info.status for run in (parent, *rounds)} <= {"KILLED", "FINISHED"}
    assert parent.info.status == "KILLED"


def test_it_finishes_without_prefects_server(project: Project) -> None:
    warm_up = modification_times(project.run_folder / "warmup")
    before = len(project.finished_steps())
    terminal = Terminal(project)
    terminal.wait_until(lambda: len(project.finished_steps()) > before)
    project.kill_process("prefect.server")
    assert terminal.end() == 0, terminal.screen[-3000:]
    project.wait_until_all_ended()
    assert project.finished_steps() == list(range(1, STEPS + 1))
    assert "Prefect's record of this run is incomplete" in terminal.screen
    assert "mlflow ui" in terminal.screen
    assert "Traceback" not in terminal.screen
    with sqlite3.connect(project.folder / ".prefect" / "prefect.db") as database:
        assert database.execute("pragma integrity_check").fetchone() == ("ok",)
    assert modification_times(project.run_folder / "warmup") == warm_up
    assert read_state(project.run_folder) == ""
    assert (project.run_folder / "report" / "index.html").stat().st_size > 1000


def steps_recorded(run: Any) -> list[int]:
    import mlflow

    return sorted(
        metric.step for metric in mlflow.MlflowClient().get_metric_history(run.info.run_id, "rollout/success")
    )


def test_no_step_is_recorded_twice(project: Project) -> None:
    parent, rounds = project.mlflow_runs()
    assert parent.info.status == "FINISHED"
    assert Counter(steps_recorded(parent)) == Counter(range(1, STEPS + 1))
    assert [steps_recorded(run) for run in rounds] == [[1, 2], [3, 4], [5, 6]]
    assert {"seed", "md5.data/test.jsonl", "version.verl", "md5.dvc.lock"} <= parent.data.tags.keys()


def test_the_registered_policy_loads(project: Project) -> None:
    import mlflow
    from transformers import AutoModelForCausalLM, AutoTokenizer

    project.mlflow_runs()  # sets the tracking URI
    folder = mlflow.artifacts.download_artifacts(f"models:/{NAME}/1")
    policy = AutoModelForCausalLM.from_pretrained(folder)
    assert policy.get_input_embeddings().num_embeddings == len(AutoTokenizer.from_pretrained(folder))


def test_dvc_finds_nothing_to_do(project: Project) -> None:
    lines = project.run(sys.executable, "-m", "dvc", "repro", f"report@{NAME}")
    assert not any(line.startswith("Running stage") for line in lines), lines


def test_once_more_does_nothing(project: Project) -> None:
    _, *stages = project.plan()
    assert all("  skip  finished" in line for line in stages)
    lines = project.run("wingspan", "run", NAME)
    assert "next:" in lines
    assert len([line for line in lines if line.endswith(": cached")]) == 7, lines
    # No server was started for it; the last run lost its own.
    assert project.flow_states() == ["CANCELLED", "CRASHED", "RUNNING"]
    project.mlflow_runs()  # asserts that there is still one parent run


def test_in_a_reproduction_it_names_no_files(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINGSPAN_REPRODUCTION", "true")
    *stages, reason, last = project.run("wingspan", "run", NAME)
    assert last.startswith("success on the test split: ")
    assert reason == "no group was informative: the policy did not change"  # of an untrained model
    assert all(line.endswith(": cached") for line in stages)


def test_what_was_lost_is_made_again_and_nothing_else(project: Project) -> None:
    report = project.run_folder / "report" / "index.html"
    report.unlink()
    lines = project.run("wingspan", "run", NAME)
    assert [line for line in lines if line.endswith(": cached")] == [
        f"{stage}: cached" for stage in ("prepare", "provision", "warmup", "train", "evaluate")
    ]
    assert any(line.startswith("report: done") for line in lines)
    assert report.stat().st_size > 1000
    assert project.flow_states()[2:] == ["CRASHED", "COMPLETED"]


def test_prefect_draws_the_graph_with_its_rounds(project: Project) -> None:
    """`graph-v2` is what Prefect's page of a run draws."""
    code = (
        "import json, os, urllib.request as web\n"
        "from flows.endings.guardian import guard; guard()\n"
        "from flows.orchestrator.runs import TemporaryServer, server_url\n"
        "server_url(); TemporaryServer().use()\n"
        "def get(path, data=None):\n"
        "    headers = {'content-type': 'application/json'}\n"
        "    url = os.environ['PREFECT_API_URL'] + path\n"
        "    return json.load(web.urlopen(web.Request(url, data=data, headers=headers)))\n"
        "runs = get('/flow_runs/filter', b'{\"sort\": \"START_TIME_ASC\"}')\n"
        "print(json.dumps([get('/flow_runs/' + run['id'] + '/graph-v2') for run in runs]))"
    )
    graphs = [dict(graph["nodes"]) for graph in json.loads(project.run(sys.executable, "-c", code)[-1])]

    def parents(nodes: dict[str, Any]) -> dict[str, set[str]]:
        names = {key: node["label"].rpartition("-")[0] for key, node in nodes.items()}
        return {names[key]: {names[edge["id"]] for edge in node["parents"]} for key, node in nodes.items()}

    start = {"prepare": set[str](), "provision": {"prepare"}, "warmup": {"prepare", "provision"}}
    rounds = {
        "round 1: rollout and train": {"prepare", "warmup"},
        "round 1: quick evaluation": {"round 1: rollout and train"},
        "round 2: rollout and train": {"round 1: quick evaluation"},
    }
    killed_run = parents(graphs[1])  # in its second round, or later
    assert {name: killed_run.get(name) for name in start | rounds} == start | rounds
    assert parents(graphs[-1]) == start | {  # the run that made the report again
        "train": {"prepare", "warmup"},
        "evaluate": {"prepare", "warmup", "train"},
        "report": {"prepare", "provision", "train", "evaluate"},
        "record": {"report"},
    }


def test_a_clone_with_results_by_dvc_pull_has_nothing_to_do(project: Project, tmp_path: Path) -> None:
    dvc = (sys.executable, "-m", "dvc")
    project.run(*dvc, "remote", "add", "--default", "shared", str(tmp_path / "remote"))
    project.run(*dvc, "push")
    clone = project.clone(tmp_path / "clone")
    clone.run(*dvc, "pull", "--allow-missing")
    lock = (clone.folder / "dvc.lock").read_bytes()
    policy = modification_times(clone.run_folder / "policy")
    _, *stages = clone.plan()
    assert len(stages) == 6
    assert all(line.endswith("  skip  up to date, as recorded in dvc.lock") for line in stages), stages
    lines = clone.run("wingspan", "run", NAME)
    assert [line for line in lines if line.endswith(": cached")] == [
        f"{stage}: cached" for stage in ("prepare", "provision", "warmup", "train", "evaluate", "report")
    ]
    assert [line for line in lines if line.endswith(": running")] == ["record: running"]
    assert (clone.folder / "dvc.lock").read_bytes() == lock
    assert modification_times(clone.run_folder / "policy") == policy
    parent, _ = clone.mlflow_runs()  # is recorded there
    assert parent.info.status == "FINISHED"
    assert all("  skip  finished" in line for line in clone.plan()[1:])
    clone.run("wingspan", "run", NAME)
    assert clone.flow_states() == ["COMPLETED"]  # the second needed no server
    assert clone.mlflow_runs()[0].info.run_id == parent.info.run_id


def test_dvc_reruns_exactly_what_a_parameter_touches(project: Project) -> None:
    with edit_yaml(project.folder / "pipelines.yaml") as document:
        document["pipelines"][NAME]["evaluate"]["samples_per_item"] = 2
    lines = project.run(sys.executable, "-m", "dvc", "repro", f"report@{NAME}")
    rerun = [line.split("'")[1] for line in lines if line.startswith("Running stage")]
    assert rerun == [f"evaluate@{NAME}", f"report@{NAME}"]
    # Each item by two policies, twice sampled and once greedy.
    items = len((project.run_folder / "data" / "test.jsonl").read_text().splitlines())
    episodes = [line for line in lines if line.startswith("evaluate: episode ")]
    assert episodes[-1] == f"evaluate: episode {6 * items}/{6 * items}"
    evaluation = json.loads((project.run_folder / "evaluation.json").read_text())
    assert evaluation["after"]["sampled"]["episodes"] == 2 * items
    for policy in ("before", "after"):
        assert evaluation[policy]["greedy"]["episodes"] + evaluation[policy]["greedy"]["dropped"] == items
