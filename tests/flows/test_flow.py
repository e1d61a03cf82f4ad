"""The whole pipeline, small, for real: Prefect, DVC, MLflow, Ray and verl; killed, resumed, repeated.

One story in one project, told in order, because each chapter costs a start of Prefect and of verl: a run
is killed in the middle of training; the same command finishes it; once more, it does nothing; DVC agrees;
a lost output is made again.
"""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
NAME = "textcraft-cpu"
STEPS, STEPS_PER_ROUND = 6, 2
SMALL = {
    "warmup": {"demonstrations": 6, "steps": 1, "batch_size": 2},
    "rollout": {"items_per_step": 2, "group_size": 2, "max_tokens_per_turn": 8},
    "train": {"steps": STEPS, "steps_per_round": STEPS_PER_ROUND, "save_every": 1, "mini_batches": 1},
    "horizon": {"max_turns": [2, 3], "steps_per_stage": 3},
    "evaluate": {"max_turns": 2, "samples_per_item": 1, "quick_items": 4},
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    make_project(folder)
    return folder


def make_project(folder: Path) -> None:
    """This checkout with a random model and settings that take seconds."""
    from tasks.base_model.model import make_model, make_tokenizer

    for name in ("dvc.yaml", ".dvcignore", "constraints.txt"):
        shutil.copy(ROOT / name, folder / name)
    for name in ("data", "envs", "agents", "tasks", "flows", ".dvc"):
        shutil.copytree(
            ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "cache", "tmp")
        )
    document = yaml.safe_load((ROOT / "pipelines.yaml").read_text())
    for block, values in SMALL.items():
        document["pipelines"][NAME][block].update(values)
    (folder / "pipelines.yaml").write_text(yaml.safe_dump(document))
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(folder / "models" / "textcraft-base")
    model = make_model(tokenizer, layers=2, width=128, seed=0)
    model.save_pretrained(folder / "models" / "textcraft-base")
    subprocess.run(["git", "init", "--quiet", "."], cwd=folder, check=True)
    # The command that dvc.yaml names, for whichever interpreter runs the tests.
    binaries = folder / ".bin"
    binaries.mkdir()
    code = "import sys; sys.path.insert(0, '.'); from flows.cli.app import main; main()"
    (binaries / "wingspan").write_text(f'#!/bin/sh\nexec {sys.executable} -c "{code}" "$@"\n')
    (binaries / "wingspan").chmod(0o755)


def environment_of(project: Path) -> dict[str, str]:
    environment = {
        **os.environ,
        "PATH": f"{project / '.bin'}{os.pathsep}{os.environ['PATH']}",
        "PREFECT_HOME": str(project / ".prefect"),
        "PYTHONPATH": "",
    }
    environment.pop("PREFECT_API_URL", None)
    environment.pop("MLFLOW_TRACKING_URI", None)
    return environment


def command(project: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start it; its lines go to a file."""
    with (project / "output").open("w") as output:
        return subprocess.Popen(
            arguments, cwd=project, env=environment_of(project), stdout=output, stderr=output, text=True
        )


def run(project: Path, *arguments: str) -> list[str]:
    """Run it to its end; returns its lines."""
    process = command(project, *arguments)
    status = process.wait(timeout=1200)
    said = (project / "output").read_text()
    assert status == 0, said
    return said.splitlines()


def wait_until(true: Callable[[], bool], *, process: subprocess.Popen[str], project: Path) -> None:
    deadline = time.monotonic() + 1200
    while not true():
        assert process.poll() is None, (project / "output").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def steps_done(project: Path) -> list[int]:
    file = project / "runs" / NAME / "train" / "metrics.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    return [json.loads(line)["step"] for line in lines]


def flow_states(project: Path) -> list[str]:
    """States of the flow runs, in the order in which they began."""
    with sqlite3.connect(project / ".prefect" / "prefect.db") as database:
        rows = database.execute("select state_type from flow_run order by expected_start_time")
        return [state for (state,) in rows]


def recorded(project: Path) -> tuple[Any, list[Any]]:
    """MLflow's parent run and its rounds, in order."""
    import mlflow

    mlflow.set_tracking_uri(f"sqlite:///{project}/mlflow.db")
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("wingspan")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    (parent,) = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    rounds = [run for run in runs if run.data.tags.get("mlflow.parentRunId") == parent.info.run_id]
    return parent, sorted(rounds, key=lambda run: int(run.data.tags["round"]))


def steps_recorded(run: Any) -> list[int]:
    import mlflow

    return sorted(
        metric.step for metric in mlflow.MlflowClient().get_metric_history(run.info.run_id, "rollout/success")
    )


def planned(project: Path) -> list[str]:
    """What `wingspan plan` says."""
    return run(project, "wingspan", "plan", NAME)


def processes_of(project: Path) -> dict[int, str]:
    """Command lines of the processes that were started by a command in `project`, however they were left."""
    mark = f"PREFECT_HOME={project / '.prefect'}".encode()
    found = {}
    for process in psutil.process_iter():
        with suppress(OSError, psutil.Error):
            if mark in Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0"):
                found[process.pid] = " ".join(process.cmdline())
    return found


def wait_for_nothing_left(project: Path) -> None:
    """Until all processes are gone; 10 s on an idle machine, and the guardian has 8 s for stubborn ones."""
    deadline = time.monotonic() + 60
    while left := processes_of(project):
        assert time.monotonic() < deadline, left
        time.sleep(0.2)


def test_killed_in_the_middle_of_training(project: Path) -> None:
    process = command(project, "wingspan", "run", NAME)
    # Past the first round, so that there is something finished to keep, and within the second.
    wait_until(lambda: len(steps_done(project)) > STEPS_PER_ROUND, process=process, project=project)
    folder = next(
        Path(value.decode().removeprefix("WINGSPAN_RUN="))
        for child in psutil.Process(process.pid).children()
        for value in Path(f"/proc/{child.pid}/environ").read_bytes().split(b"\0")
        if value.startswith(b"WINGSPAN_RUN=")
    )
    assert (folder / "ray").is_dir()
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_for_nothing_left(project)
    assert not folder.exists()
    assert steps_done(project) == list(range(1, len(steps_done(project)) + 1))
    assert len(steps_done(project)) < STEPS
    _, *earlier, train, _, _ = planned(project)
    assert all("  be skipped  finished" in line for line in earlier)
    assert "it goes on after step " in train


def test_the_record_says_that_it_was_killed(project: Path) -> None:
    assert recorded(project)[0].info.status == "RUNNING"
    (line,) = run(project, "wingspan", "runs")
    assert line.split()[:2] == [NAME, "killed"]
    parent, rounds = recorded(project)
    assert {run.info.status for run in (parent, *rounds)} <= {"KILLED", "FINISHED"}
    assert parent.info.status == "KILLED"


def test_the_same_command_finishes_it(project: Path) -> None:
    def written() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in (project / "runs" / NAME / "warmup").iterdir()}

    before = written()
    said = run(project, "wingspan", "run", NAME)
    for stage in ("prepare", "provision", "warmup"):
        assert f"{stage}: cached" in said
    assert {
        path: path.stat().st_mtime_ns for path in (project / "runs" / NAME / "warmup").iterdir()
    } == before
    assert steps_done(project) == list(range(1, STEPS + 1))
    for phase in ("starting Ray", "starting the trainer", "quick evaluation"):
        assert f"train: {phase}" in said
    # 100 items, by two policies, once sampled and once greedy.
    assert [line for line in said if line.startswith("evaluate: episode ")][-1] == "evaluate: episode 400/400"
    assert any("mlflow ui" in line for line in said)
    assert flow_states(project) == ["CRASHED", "COMPLETED"]
    evaluation = json.loads((project / "runs" / NAME / "evaluation.json").read_text())
    for policy in ("before", "after"):
        assert evaluation[policy]["greedy"]["episodes"] + evaluation[policy]["greedy"]["dropped"] == 100
    assert (project / "runs" / NAME / "report" / "index.html").stat().st_size > 1000


def test_no_step_is_recorded_twice(project: Path) -> None:
    parent, rounds = recorded(project)
    assert parent.info.status == "FINISHED"
    assert Counter(steps_recorded(parent)) == Counter(range(1, STEPS + 1))
    assert [steps_recorded(run) for run in rounds] == [[1, 2], [3, 4], [5, 6]]
    assert {"seed", "md5.data/test.jsonl", "version.verl", "md5.dvc.lock"} <= parent.data.tags.keys()


def test_the_registered_policy_loads(project: Path) -> None:
    import mlflow
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = mlflow.artifacts.download_artifacts(f"models:/{NAME}/1")
    policy = AutoModelForCausalLM.from_pretrained(folder)
    assert policy.get_input_embeddings().num_embeddings == len(AutoTokenizer.from_pretrained(folder))


def test_dvc_finds_nothing_to_do(project: Path) -> None:
    said = run(project, sys.executable, "-m", "dvc", "repro", f"report@{NAME}")
    assert not any(line.startswith("Running stage") for line in said), said


def test_once_more_does_nothing(project: Path) -> None:
    _, *stages = planned(project)
    assert all("  be skipped  finished" in line for line in stages)
    said = run(project, "wingspan", "run", NAME)
    stages = [line for line in said if line.endswith(": cached")]
    assert len(stages) == 6, said
    recorded(project)  # asserts that there is one parent run still


def test_what_was_lost_is_made_again_and_nothing_else(project: Path) -> None:
    (project / "runs" / NAME / "evaluation.json").unlink()
    said = run(project, "wingspan", "run", NAME)
    assert [line for line in said if line.endswith(": cached")] == [
        f"{stage}: cached" for stage in ("prepare", "provision", "warmup", "train")
    ]
    assert any(line.startswith("evaluate: done") for line in said)


def test_dvc_reruns_exactly_what_a_parameter_touches(project: Path) -> None:
    file = project / "pipelines.yaml"
    document = yaml.safe_load(file.read_text())
    document["pipelines"][NAME]["evaluate"]["samples_per_item"] = 2
    file.write_text(yaml.safe_dump(document))
    said = run(project, sys.executable, "-m", "dvc", "repro", f"report@{NAME}")
    rerun = [line.split("'")[1] for line in said if line.startswith("Running stage")]
    assert rerun == [f"evaluate@{NAME}", f"report@{NAME}"]
    evaluation = json.loads((project / "runs" / NAME / "evaluation.json").read_text())
    assert evaluation["after"]["sampled"]["episodes"] == 200
