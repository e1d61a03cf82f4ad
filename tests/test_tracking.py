"""MLflow's record of a run, read back from a real SQLite store."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from agents.types import Completion, FinishReason, StopReason, Trajectory, Turn
from envs.errors import ConfigError, WingspanError
from envs.types import Item
from flows.runs import run_rows
from tasks.pipelines import load_pipeline
from tasks.recorded_runs import PID, PROCESSES, TIME, heartbeat, mark_gone
from tasks.settings import Pipeline
from tasks.tracking import Tracker, check_tracking, connect, experiment_of, is_recorded
from tasks.trajectories import write_trajectories

PIPELINES = Path(__file__).parents[1] / "pipelines.yaml"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MLflow takes seconds to make a database: one for all tests, each with runs of its own."""
    return tmp_path_factory.mktemp("mlflow")


@pytest.fixture
def workspace(store: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(store)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{store}/mlflow.db")
    return Path("runs") / request.node.name


@pytest.fixture
def pipeline() -> Pipeline:
    parts = {"textcraft": {}, "craft?easy=yes": {"env": "textcraft"}}
    overrides = {"train.steps": 5, "train.steps_per_round": 2, "warmup.lr": 0.25, "data.parts": parts}
    return load_pipeline("textcraft-cpu", overrides=overrides, file=PIPELINES)


def write_step(workspace: Path, step: int) -> None:
    file = workspace / "train" / "metrics.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    numbers = {"success": step / 10, "stop_max_turns": 1, "envs_live/shop:text?actions=false": 3}
    with file.open("a") as lines:
        lines.write(json.dumps({"step": step, **numbers}) + "\n")


def write_round(workspace: Path, index: int, *, steps: tuple[int, int]) -> None:
    for step in range(steps[0], steps[1] + 1):
        write_step(workspace, step)
    file = workspace / "train" / "rounds" / f"{index:02}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    ended = {"index": index, "first_step": steps[0], "last_step": steps[1], "seconds": 1.0}
    file.write_text(json.dumps({**ended, "evaluation": {"success": 0.5 + index / 10}}))


def write_results(workspace: Path, *, trajectories: int = 3) -> None:
    summary = {"sampled": {"success": 0.25, "success_depth_2": 0.125}, "greedy": {"success": 0.5}}
    (workspace / "evaluation.json").write_text(json.dumps({"before": summary, "after": summary}))
    (workspace / "timing.json").write_text(json.dumps({"stages": {"train": 12.5}}))
    (workspace / "report").mkdir()
    (workspace / "report" / "index.html").write_text("<p>a report</p>")
    (workspace / "policy").mkdir()
    (workspace / "policy" / "config.json").write_text('{"model_type": "llama"}')
    completion = Completion(
        token_ids=[1, 2], logprobs=[-0.5, -0.5], finish_reason=FinishReason.STOP, policy_version=5
    )
    turns = [
        Turn(
            completion=completion,
            text=f"Action: get {n}",
            action=f"get {n}",
            observation=f"Got {n}",
            reward=0.0,
            observation_ids=[],
        )
        for n in (1, 2)
    ]
    played = [
        Trajectory(
            item=Item(f"textcraft_{index}", "textcraft", metadata={"depth": 1}),
            chain=0,
            prompt_ids=[1],
            turns=turns,
            stop_reason=StopReason.MAX_TURNS,
            reward=0.0,
            success=False,
            seconds=1.0,
            metrics={"policy": policy, "mode": "sampled"},
        )
        for index in range(trajectories)
        for policy in ("before", "after")
    ]
    write_trajectories(workspace / "evaluation_trajectories.jsonl", played)


def runs_of(workspace: Path) -> tuple[Any, dict[int, Any]]:
    """The parent run, and the rounds' runs by number."""
    import mlflow

    client = mlflow.MlflowClient()
    parent = client.get_run(json.loads((workspace / "mlflow.json").read_text())["run_id"])
    children = client.search_runs(
        [parent.info.experiment_id], filter_string=f"tags.`mlflow.parentRunId` = '{parent.info.run_id}'"
    )
    return parent, {int(run.data.tags["round"]): run for run in children}


def series(run: Any, key: str) -> list[tuple[int, float]]:
    import mlflow

    return sorted((m.step, m.value) for m in mlflow.MlflowClient().get_metric_history(run.info.run_id, key))


def test_a_whole_run_is_recorded(workspace: Path, pipeline: Pipeline) -> None:
    import mlflow

    with Tracker("one", pipeline=pipeline, workspace=workspace) as tracker:
        tracker.tag({"git.commit": "abc"})
        for index, steps in enumerate([(1, 2), (3, 4), (5, 5)]):
            write_round(workspace, index, steps=steps)
            tracker.sync_training()
        write_results(workspace)
        (workspace / "train" / "prompt.md").write_text("Be brief.\n")
        tracker.finish()
    parent, rounds = runs_of(workspace)
    assert parent.info.status == "FINISHED"
    assert parent.data.tags["git.commit"] == "abc"
    assert parent.data.params["warmup.lr"] == "0.25"
    assert parent.data.params["data.parts.craft_easy_yes.env"] == "textcraft"
    assert parent.data.params["horizon.rounds"] == str(pipeline.horizon.rounds)
    assert series(parent, "success") == [(1, 0.1), (2, 0.2), (3, 0.3), (4, 0.4), (5, 0.5)]
    assert parent.data.metrics["envs_live/shop:text_actions_false"] == 3.0
    assert series(parent, "quick_evaluation/success") == [(2, 0.5), (4, 0.6), (5, 0.7)]
    assert parent.data.metrics["evaluation/after/sampled/success_depth_2"] == 0.125
    assert parent.data.metrics["seconds/stages/train"] == 12.5
    assert {n: series(run, "success") for n, run in rounds.items()} == {
        1: [(1, 0.1), (2, 0.2)],
        2: [(3, 0.3), (4, 0.4)],
        3: [(5, 0.5)],
    }
    assert {run.info.status for run in rounds.values()} == {"FINISHED"}
    assert is_recorded(workspace, pipeline=pipeline)

    page = mlflow.artifacts.download_artifacts(run_id=parent.info.run_id, artifact_path="report/index.html")
    assert Path(page).read_text() == "<p>a report</p>"
    prompt = mlflow.artifacts.download_artifacts(run_id=parent.info.run_id, artifact_path="prompt.md")
    assert Path(prompt).read_text() == "Be brief.\n"
    policy = Path(mlflow.artifacts.download_artifacts("models:/one/1"))
    assert json.loads((policy / "config.json").read_text()) == {"model_type": "llama"}


def test_a_trace_shows_a_trajectory_turn_by_turn(workspace: Path, pipeline: Pipeline) -> None:
    import mlflow

    with Tracker("two", pipeline=pipeline, workspace=workspace) as tracker:
        write_round(workspace, 0, steps=(1, 2))
        write_results(workspace, trajectories=30)
        tracker.finish()
    parent, _ = runs_of(workspace)
    traces = mlflow.search_traces(
        locations=[parent.info.experiment_id], run_id=parent.info.run_id, return_type="list"
    )
    assert len(traces) == 10
    for trace in traces:
        assert trace.info.tags["stop_reason"] == "max_turns"
        episode, *turns = sorted(trace.data.spans, key=lambda span: span.start_time_ns)
        assert [turn.attributes["action"] for turn in turns] == ["get 1", "get 2"]
        assert {turn.parent_id for turn in turns} == {episode.span_id}
        assert turns[0].outputs == "Got 1"


def test_a_killed_run_goes_on_and_counts_no_step_twice(workspace: Path, pipeline: Pipeline) -> None:
    import mlflow

    with Tracker("three", pipeline=pipeline, workspace=workspace) as tracker:
        write_round(workspace, 0, steps=(1, 2))
        tracker.sync_training()
    parent, rounds = runs_of(workspace)
    # The kill came after the metrics of round 1 and before its run was closed.
    mlflow.MlflowClient().update_run(rounds[1].info.run_id, status="RUNNING")
    with Tracker("three", pipeline=pipeline, workspace=workspace) as tracker:
        write_round(workspace, 1, steps=(3, 4))
        tracker.sync_training()
    again, rounds = runs_of(workspace)
    assert again.info.run_id == parent.info.run_id
    assert [step for step, _ in series(again, "success")] == [1, 2, 3, 4]
    assert sorted(rounds) == [1, 2]
    assert [step for step, _ in series(rounds[1], "success")] == [1, 2]


def test_other_parameters_are_another_run(workspace: Path, pipeline: Pipeline) -> None:
    with Tracker("four", pipeline=pipeline, workspace=workspace):
        pass
    first, _ = runs_of(workspace)
    other = pipeline.model_copy(update={"seed": 9})
    with Tracker("four", pipeline=other, workspace=workspace):
        pass
    second, _ = runs_of(workspace)
    assert second.info.run_id != first.info.run_id
    assert second.data.params["seed"] == "9"


def test_a_run_that_fails_is_marked_and_its_error_is_kept(workspace: Path, pipeline: Pipeline) -> None:
    with pytest.raises(ZeroDivisionError), Tracker("five", pipeline=pipeline, workspace=workspace):
        _ = 1 / 0
    parent, _ = runs_of(workspace)
    assert parent.info.status == "FAILED"


def test_a_run_that_is_stopped_is_killed_and_so_is_its_open_round(
    workspace: Path, pipeline: Pipeline
) -> None:
    import mlflow

    with Tracker("seven", pipeline=pipeline, workspace=workspace) as tracker:
        write_round(workspace, 0, steps=(1, 2))
        write_round(workspace, 1, steps=(3, 4))
        tracker.sync_training()
    mlflow.MlflowClient().update_run(runs_of(workspace)[1][2].info.run_id, status="RUNNING")
    tracker = Tracker("seven", pipeline=pipeline, workspace=workspace)
    time.sleep(0.1)  # connecting has begun
    with pytest.raises(KeyboardInterrupt), tracker:
        raise KeyboardInterrupt
    parent, rounds = runs_of(workspace)
    assert parent.info.status == "KILLED"
    assert [rounds[number].info.status for number in (1, 2)] == ["FINISHED", "KILLED"]


def test_runs_whose_process_is_gone_are_killed_and_others_are_not(
    workspace: Path, pipeline: Pipeline
) -> None:
    code = (
        "import sys, time; from pathlib import Path; from tasks.pipelines import load_pipeline; "
        "from tasks.tracking import Tracker\n"
        f"pipeline = load_pipeline('textcraft-cpu', file=Path({str(PIPELINES)!r}))\n"
        "with Tracker('x', pipeline=pipeline, workspace=Path(sys.argv[1])): time.sleep(1000)\n"
    )
    names = ("dead", "alive", "elsewhere", "silent")
    places = {name: workspace / name for name in names}
    processes = {
        name: subprocess.Popen(
            [sys.executable, "-c", code, str(places[name])],
            env=os.environ | {"PYTHONPATH": str(PIPELINES.parent)},
        )
        for name in ("dead", "alive")
    }
    try:
        while not all((places[name] / "mlflow.json").exists() for name in processes):
            assert all(process.poll() is None for process in processes.values())
            time.sleep(0.1)
        client = connect()
        experiment = experiment_of(client)
        while not all(PID in runs_of(places[name])[0].data.tags for name in processes):
            time.sleep(0.1)
        processes["dead"].kill()
        processes["dead"].wait()
        for name, age in (("elsewhere", 60), ("silent", 3600)):
            run = client.create_run(experiment, run_name=name)
            tags = heartbeat() | {PROCESSES: "of another machine", PID: "1", TIME: str(time.time() - age)}
            for key, value in tags.items():
                client.set_tag(run.info.run_id, key, value)
            places[name].mkdir(parents=True)
            (places[name] / "mlflow.json").write_text(json.dumps({"run_id": run.info.run_id}))
        mark_gone(client, experiment_id=experiment)
        found = {name: runs_of(place)[0].info.status for name, place in places.items()}
        assert found == {"dead": "KILLED", "alive": "RUNNING", "elsewhere": "RUNNING", "silent": "KILLED"}
        rows = {row[0]: row for row in run_rows()}
        assert rows["dead"][1] == "killed"
        assert rows["alive"][1] == "running"
    finally:
        for process in processes.values():
            process.kill()
            process.wait()


def test_a_record_that_cannot_be_written_is_told_at_the_end(workspace: Path, pipeline: Pipeline) -> None:
    told = pytest.raises(WingspanError, match=r"incomplete .*evaluation\.json")
    with told, Tracker("six", pipeline=pipeline, workspace=workspace) as tracker:
        tracker.finish()  # nothing was evaluated
    assert not is_recorded(workspace, pipeline=pipeline)


def test_a_server_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    with pytest.raises(ConfigError, match=r"MLFLOW_TRACKING_URI=http://127\.0\.0\.1:9 .*mlflow\.db"):
        check_tracking()


def test_two_first_runs_at_once_make_one_database(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tasks.pipelines import load_pipeline; "
        "from tasks.tracking import Tracker\n"
        f"pipeline = load_pipeline('textcraft-cpu', file=Path({str(PIPELINES)!r}))\n"
        "with Tracker('x', pipeline=pipeline, workspace=Path(sys.argv[1])): pass\n"
    )
    environment = os.environ | {"MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db"}
    both = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / name)],
            cwd=tmp_path,
            env=environment | {"PYTHONPATH": str(PIPELINES.parent)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in "ab"
    ]
    told = [process.communicate()[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], told
    assert not any("MLflow:" in text for text in told), told
