"""MLflow's record of a run, read back from a real SQLite store."""

import getpass
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import threading
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from tokenizers import Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from typer.testing import CliRunner

from agents.types import Completion, FinishReason, StopReason, Trajectory, Turn
from envs.errors import ConfigError, WingspanError
from envs.types import Item
from flows.cli.command_line import app
from flows.commands.runs import run_rows
from tasks.config.agent import JudgeBlock
from tasks.config.parameters import changed_parameters, parameters_of, write_changes
from tasks.config.pipelines import Pipeline, ServerSettings, load_pipeline
from tasks.config.watch import WatchSettings
from tasks.data.trajectories import write_trajectories
from tasks.evaluation.outcomes import OUTCOMES
from tasks.evaluation.record import read_record
from tasks.runs.usage import Usage, write_usage
from tasks.tracking.batches import MAX_PARAMS
from tasks.tracking.connection import check_tracking, connect, experiment_of, has_run
from tasks.tracking.evaluations import EXPERIMENT, record_evaluation
from tasks.tracking.facts import round_params
from tasks.tracking.model import promote_best
from tasks.tracking.names import step_metric, summary_metric
from tasks.tracking.record import is_recorded, recorded_page, write_record
from tasks.tracking.recorded_runs import PID, PROCESSES, TIME, WORKSPACE, heartbeat, is_gone, mark_gone
from tasks.tracking.traces import MAX_SPANS, evaluation_traces
from tasks.tracking.tracker import Tracker
from tasks.verl.checkpoints import mark_complete
from tasks.verl.rewinds import Rewind, write_rewind
from tests.support.chat_server import chat_server, says
from tests.support.evaluation_toy import FIRST, record_of
from tests.support.lineage_toy import lineage_of
from tests.support.report_toy import write_evaluation
from tests.support.sockets import free_port
from tests.support.tracked_runs import start_tracked_runs
from tests.support.waiting import wait_until

PIPELINES = Path(__file__).parents[2] / "pipelines.yaml"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MLflow takes seconds to make a database: one for all tests, each with runs of its own."""
    return tmp_path_factory.mktemp("mlflow")


@pytest.fixture
def workspace(store: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(store)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{store}/mlflow.db")
    return Path("runs", request.node.name)


@pytest.fixture
def pipeline() -> Pipeline:
    parts = {"textcraft": {}, "craft?easy=yes": {"env": "textcraft"}}
    overrides = {"train.steps": 5, "train.steps_per_round": 2, "warmup.lr": 0.25, "data.parts": parts}
    return load_pipeline("textcraft-cpu", overrides=overrides, file=PIPELINES)


def write_step(workspace: Path, step: int) -> None:
    file = workspace / "train" / "metrics.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    numbers = {"success": step / 10, "stop_max_turns": 1, "envs_live/shop:text?actions=false": 3}
    numbers |= {"kl": 0.5, "seconds": 2.0, "horizon": 10 + step // 3, "temperature": 1 - step / 10}
    with file.open("a") as lines:
        lines.write(json.dumps({"step": step, **numbers}) + "\n")


def write_round(workspace: Path, index: int, *, steps: tuple[int, int]) -> None:
    for step in range(steps[0], steps[1] + 1):
        write_step(workspace, step)
    file = workspace / "train" / "rounds" / f"{index:02}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    round_end = {
        "index": index,
        "first_step": steps[0],
        "last_step": steps[1],
        "seconds": 1.0,
        "temperature": 1.0,
    }
    file.write_text(json.dumps({**round_end, "evaluation": {"success": 0.5 + index / 10, "episodes": 6}}))
    for step in steps:
        file = workspace / "train" / "trajectories" / f"step_{step:04d}.jsonl"
        # Two samples of each of three items, of which the first is traced.
        write_trajectories(file, [episode(item, sample_index=c) for item in range(3) for c in range(2)])


def episode(index: int, *, sample_index: int = 0, **labels: str) -> Trajectory:
    """Of 10 s: two turns of 3 s of sampling and 1 s of the environment each."""
    completion = Completion(
        token_ids=(1, 2), logprobs=(-0.5, -0.5), finish_reason=FinishReason.STOP, policy_version=5
    )
    turns = [
        Turn(
            completion=completion,
            text=f"Action: get {n}",
            action=f"get {n}",
            observation=f"Got {n}",
            reward=0.0,
            observation_ids=(7,),
            sampling_s=3.0,
            env_s=1.0,
        )
        for n in (1, 2)
    ]
    return Trajectory(
        item=Item(f"textcraft_{index}", "textcraft", metadata={"depth": 1}),
        sample_index=sample_index,
        prompt_ids=(1, 2, 3),
        turns=tuple(turns),
        stop_reason=StopReason.MAX_TURNS,
        reward=0.0,
        success=False,
        seconds=10.0,
        labels=labels,
    )


def write_results(workspace: Path, *, trajectories: int = 3, num_solved: int = 6) -> None:
    """Of 8 test items, 2 are solved before training, and the first `num_solved` after it."""
    counts, greedy = {"episodes": 8, "dropped": 0}, {"success": 0.5, "episodes": 8, "dropped": 0}
    before = {"sampled": {"success": 0.25, "success_depth_2": 0.125, **counts}, "greedy": greedy}
    after = {"sampled": {"success": num_solved / 8, **counts}, "greedy": greedy}
    data = workspace / "data" / "test.jsonl"
    data.parent.mkdir(parents=True, exist_ok=True)
    data.write_text("{}\n" * 8)
    outcomes = {
        policy: {
            mode: {f"textcraft_{item}": [item < count] for item in range(8)} for mode in ("sampled", "greedy")
        }
        for policy, count in (("before", 2), ("after", num_solved))
    }
    (workspace / OUTCOMES).write_text(json.dumps(outcomes))
    (workspace / "evaluation.json").write_text(json.dumps({"before": before, "after": after}))
    (workspace / "timing.json").write_text(json.dumps({"stages": {"train": 12.5}}))
    write_usage(workspace, "train", Usage(cpu_s=20.5, peak_memory_bytes=3_000_000), is_resumed=False)
    (workspace / "report").mkdir()
    (workspace / "report" / "index.html").write_text("<p>a report</p>")
    (workspace / "policy").mkdir()
    (workspace / "policy" / "config.json").write_text('{"model_type": "llama"}')
    write_tokenizer(workspace / "policy")
    episodes = [
        episode(index, policy=policy, mode=mode)
        for policy in ("before", "after")
        for mode in ("sampled", "greedy")
        for index in range(trajectories)
    ]
    write_trajectories(workspace / "evaluation_trajectories.jsonl", episodes)


def write_tokenizer(folder: Path) -> None:
    """Its tokens 1, 2 and 3 are two words, a blank line, and three words."""
    words = {"<unk>": 0, "Play fair.": 1, "\n\n": 2, "Goal: a log": 3}
    tokenizer = Tokenizer(WordLevel(words, unk_token="<unk>"))
    tokenizer.decoder = Fuse()
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))


def runs_of(workspace: Path) -> tuple[Any, dict[int, Any]]:
    """The parent run, and the rounds' runs by number."""
    import mlflow

    client = mlflow.MlflowClient()
    parent = client.get_run(json.loads((workspace / "mlflow.json").read_text())["run_id"])
    children = client.search_runs(
        [parent.info.experiment_id], filter_string=f"tags.`mlflow.parentRunId` = '{parent.info.run_id}'"
    )
    return parent, {int(run.data.tags["round"]): run for run in children}


def traces_of(workspace: Path) -> list[Any]:
    import mlflow

    parent, _ = runs_of(workspace)
    traces: list[Any] = mlflow.search_traces(
        locations=[parent.info.experiment_id], run_id=parent.info.run_id, return_type="list"
    )
    return traces


def series(run: Any, key: str) -> list[tuple[int, float]]:
    import mlflow

    return sorted((m.step, m.value) for m in mlflow.MlflowClient().get_metric_history(run.info.run_id, key))


@pytest.mark.heavy
def test_a_whole_run_is_recorded(workspace: Path, pipeline: Pipeline) -> None:
    import mlflow

    with Tracker("one", pipeline=pipeline, workspace=workspace) as tracker:
        tracker.tag({"git.commit": "abc"})
        for index, steps in enumerate([(1, 2), (3, 4), (5, 5)]):
            write_round(workspace, index, steps=steps)
            tracker.sync_training()
        write_results(workspace)
        (workspace / "train" / "prompt.md").write_text("Be brief.\n")
        lineage_of(workspace).write(workspace)
        tracker.finish()
    parent, rounds = runs_of(workspace)
    client = mlflow.MlflowClient()
    artifacts = [
        *client.list_artifacts(parent.info.run_id),
        *client.list_artifacts(parent.info.run_id, "train"),
    ]
    assert {"lineage.json", "evaluation.json", "train/metrics.jsonl"} <= {file.path for file in artifacts}
    assert parent.info.status == "FINISHED"
    assert parent.data.tags["git.commit"] == "abc"
    assert parent.data.params["warmup.lr"] == "0.25"
    assert parent.data.params["data.parts.craft_easy_yes.env"] == "textcraft"
    assert parent.data.params["horizon.max_turns"] == str(pipeline.horizon.max_turns)
    assert series(parent, "rollout/success") == [(1, 0.1), (2, 0.2), (3, 0.3), (4, 0.4), (5, 0.5)]
    assert parent.data.metrics["rollout/counts/stop_max_turns"] == 1
    assert parent.data.metrics["train/kl"] == 0.5
    assert parent.data.metrics["time/step"] == 2.0
    assert parent.data.metrics["system/envs_live/shop:text_actions_false"] == 3.0
    assert series(parent, "eval/quick/success") == [(2, 0.5), (4, 0.6), (5, 0.7)]
    assert series(parent, "eval/sampled/success") == [(0, 0.25), (5, 0.75)]
    assert series(parent, "eval/sampled/success_depth_2") == [(0, 0.125)]
    assert parent.data.metrics["eval/sampled/counts/episodes"] == 8
    assert parent.data.metrics["time/stages/train"] == 12.5
    assert parent.data.metrics["usage/cpu_s/train"] == 20.5
    assert parent.data.metrics["usage/peak_memory_bytes/train"] == 3_000_000
    assert {n: series(run, "rollout/success") for n, run in rounds.items()} == {
        1: [(1, 0.1), (2, 0.2)],
        2: [(3, 0.3), (4, 0.4)],
        3: [(5, 0.5)],
    }
    assert {run.info.status for run in rounds.values()} == {"FINISHED"}
    assert is_recorded(workspace, pipeline=pipeline)
    for name in ("cpu_utilization_percentage", "system_memory_usage_percentage", "disk_usage_percentage"):
        assert 0 <= parent.data.metrics[f"system/{name}"] <= 100

    page = mlflow.artifacts.download_artifacts(run_id=parent.info.run_id, artifact_path="report/index.html")
    assert Path(page).read_text() == "<p>a report</p>"
    prompt = mlflow.artifacts.download_artifacts(run_id=parent.info.run_id, artifact_path="prompt.md")
    assert Path(prompt).read_text() == "Be brief.\n"
    policy = Path(mlflow.artifacts.download_artifacts("models:/one/1"))
    assert json.loads((policy / "config.json").read_text()) == {"model_type": "llama"}


@pytest.mark.heavy
def test_a_trace_shows_the_task_and_the_turns_with_the_times_they_took(
    workspace: Path, pipeline: Pipeline
) -> None:
    write_round(workspace, 0, steps=(1, 2))
    write_results(workspace, trajectories=30)
    with Tracker("two", pipeline=pipeline, workspace=workspace) as tracker:
        tracker.finish()
    traces = {trace.info.tags["mlflow.traceName"]: trace for trace in traces_of(workspace)}
    of_rounds = {f"step {step}, textcraft_{index}" for step in (1, 2) for index in (0, 1)}
    assert of_rounds < set(traces)
    for policy in ("before", "after"):
        names = {name for name in traces if name.startswith(f"{policy} training, textcraft_")}
        assert len(names) == 10
        assert {traces[name].info.tags["policy"] for name in names} == {policy}
    trace = traces["after training, textcraft_0"]
    assert trace.info.tags["stop_reason"] == "max_turns"
    assert trace.info.tags["depth"] == "1"
    root, *spans = sorted(trace.data.spans, key=lambda span: span.start_time_ns)
    assert root.inputs == {"task": "Goal: a log", "prompt": "Play fair.\n\nGoal: a log"}
    assert [(s.span_type, (s.end_time_ns - s.start_time_ns) / 1e9) for s in (root, *spans)] == [
        ("AGENT", pytest.approx(10)),
        *[("CHAT_MODEL", pytest.approx(3)), ("TOOL", pytest.approx(1))] * 2,
    ]
    assert {span.parent_id for span in spans} == {root.span_id}
    chat, tool, second, _ = spans
    assert chat.inputs["messages"][0]["content"] == root.inputs["prompt"]
    assert chat.outputs["choices"][0]["message"]["content"] == "Action: get 1"
    assert (tool.inputs, tool.outputs) == ({"action": "get 1"}, "Got 1")
    assert second.inputs["messages"][0]["content"] == "Got 1"
    # The prompt's three tokens; for the second turn, also the two of the first and one of its answer.
    assert [span.attributes["mlflow.chat.tokenUsage"]["input_tokens"] for span in (chat, second)] == [3, 6]
    assessments = {assessment.name: assessment.feedback.value for assessment in trace.info.assessments}
    assert assessments == {"success": False, "reward": 0.0}


@pytest.mark.heavy
def test_a_trace_of_interleaved_conversations_has_the_context_of_each(
    workspace: Path, pipeline: Pipeline
) -> None:
    write_results(workspace)
    first, last = episode(0, policy="after", mode="sampled").turns
    turns = (first, replace(first, prompt_ids=(1, 2, 3, 4)), replace(last, previous_turn=0))
    interleaved = replace(episode(0, policy="after", mode="sampled"), turns=turns)
    write_trajectories(workspace / "evaluation_trajectories.jsonl", [interleaved])
    with Tracker("interleaved", pipeline=pipeline, workspace=workspace) as tracker:
        tracker.finish()
    [trace] = traces_of(workspace)
    chats = sorted(
        (span for span in trace.data.spans if span.span_type == "CHAT_MODEL"), key=lambda span: span.name
    )
    # The first and the last see the prompt's three tokens, the last also the first's two and an answer's one.
    assert [span.attributes["mlflow.chat.tokenUsage"]["input_tokens"] for span in chats] == [3, 4, 6]
    assert chats[2].inputs["messages"][0]["content"] == "Got 1"


def test_an_item_with_two_kept_samples_has_one_trace_for_each_policy(tmp_path: Path) -> None:
    write_evaluation(tmp_path)  # of toy_1 before training and of toy_2 after it, two samples are kept
    traces = evaluation_traces(tmp_path / "evaluation_trajectories.jsonl")
    assert [trace.name for trace in traces] == [
        f"{policy} training, toy_{index}" for policy in ("before", "after") for index in range(4)
    ]
    assert {trace.trajectory.sample_index for trace in traces} == {0}


@pytest.mark.parametrize(("items", "last"), [(4, 3), (19, 17), (39, 35), (200, 180)])
def test_the_traces_of_an_evaluation_are_spread_over_its_items(tmp_path: Path, items: int, last: int) -> None:
    """Ten items at most, in equal distances; test items come sorted, and the last ones are the hardest."""
    file = tmp_path / "evaluation_trajectories.jsonl"
    write_trajectories(
        file,
        [episode(n, policy=policy, mode="sampled") for policy in ("before", "after") for n in range(items)],
    )
    numbers = [int(trace.trajectory.item.item_id.rpartition("_")[2]) for trace in evaluation_traces(file)]
    assert len(numbers) == 2 * min(items, 10)
    assert (min(numbers), max(numbers)) == (0, last)


@pytest.mark.heavy
def test_no_span_of_long_episodes_is_lost(workspace: Path, pipeline: Pipeline) -> None:
    """MLflow's queue drops spans where more come than it holds; here one episode alone has more."""
    write_results(workspace)
    long, short = (episode(index, policy="after", mode="sampled") for index in range(2))
    long = replace(long, turns=long.turns * (MAX_SPANS // 4 + 1))
    write_trajectories(workspace / "evaluation_trajectories.jsonl", [long, short])
    with Tracker("long", pipeline=pipeline, workspace=workspace) as tracker:
        tracker.finish()
    spans = {trace.info.tags["item"]: len(trace.data.spans) for trace in traces_of(workspace)}
    assert spans == {t.item.item_id: 1 + 2 * len(t.turns) for t in (long, short)}
    assert spans[long.item.item_id] > MAX_SPANS


@pytest.mark.heavy
def test_a_judge_s_score_is_an_assessment_by_its_model(workspace: Path, pipeline: Pipeline) -> None:
    judge = JudgeBlock(url="http://127.0.0.1:9/v1", model="big")
    for name, reward, metric in (
        ("one", "tone", "score"),
        ("two", {"tone": 0.5, "number_equal": 1.0}, "tone/score"),
    ):
        agent = pipeline.agent.model_copy(update={"judges": {"tone": judge}, "reward": reward})
        judged_pipeline = pipeline.model_copy(update={"agent": agent})
        write_results(workspace / name)
        scored_trajectories = [
            replace(
                episode(index, policy="after", mode="sampled"), metrics={f"reward/{metric}": float(index)}
            )
            for index in range(2)
        ]
        write_trajectories(workspace / name / "evaluation_trajectories.jsonl", scored_trajectories)
        with Tracker("judged", pipeline=judged_pipeline, workspace=workspace / name) as tracker:
            tracker.finish()
        scores = {
            (assessment.feedback.value, str(assessment.source.source_type), assessment.source.source_id)
            for trace in traces_of(workspace / name)
            for assessment in trace.info.assessments
            if assessment.name == "tone"
        }
        assert scores == {(0.0, "LLM_JUDGE", "big"), (1.0, "LLM_JUDGE", "big")}


def test_a_round_says_why_its_horizon_was_raised() -> None:
    steps: list[dict[str, Any]] = [
        {"step": 1, "horizon": 5},
        {"step": 2, "horizon": 8, "horizon_reason": "8 turns, because of x"},
    ]
    assert round_params(steps, first=1, last=2) == {
        "first_step": "1",
        "last_step": "2",
        "horizon": "5 → 8",
        "horizon_reason": "step 2: 8 turns, because of x",
    }


@pytest.mark.heavy
def test_no_trace_is_recorded_twice(workspace: Path, pipeline: Pipeline) -> None:
    import mlflow

    for _ in range(2):
        with Tracker("seven", pipeline=pipeline, workspace=workspace) as tracker:
            write_round(workspace, 0, steps=(1, 2))
            tracker.sync_training()
        _, rounds = runs_of(workspace)
        mlflow.MlflowClient().update_run(
            rounds[1].info.run_id, status="RUNNING"
        )  # as if killed before the end
    assert len(traces_of(workspace)) == 4


@pytest.mark.heavy
def test_the_run_says_what_it_is_in_mlflow_s_own_columns(workspace: Path, pipeline: Pipeline) -> None:
    import mlflow

    default = load_pipeline("textcraft-cpu", file=PIPELINES)
    changes = changed_parameters(pipeline, default=default)
    assert changes["warmup.lr"] == (default.warmup and default.warmup.lr, 0.25)
    write_changes(workspace, name="eight", changes=changes)
    with Tracker("eight", pipeline=pipeline, workspace=workspace) as tracker:
        code = {"git.commit": "abc", "git.url": "https://git.example.org/me/wingspan/tree/abc"}
        tracker.tag(code | {"git.dirty": "true", "md5.data/test.jsonl": "12ab"})
        write_round(workspace, 0, steps=(1, 2))
        write_results(workspace)
        tracker.finish()
    parent, rounds = runs_of(workspace)
    experiment = mlflow.get_experiment(parent.info.experiment_id)
    assert experiment.tags["mlflow.experimentKind"] == "custom_model_development"
    assert parent.data.tags["mlflow.source.name"] == "wingspan run eight"
    assert parent.data.tags["mlflow.source.git.commit"] == "abc"
    assert parent.data.tags["mlflow.user"] == getpass.getuser()
    note = parent.data.tags["mlflow.note.content"]
    assert "25.0% before, 75.0% after" in note
    assert f"- `warmup.lr`: {default.warmup and default.warmup.lr} → 0.25" in note
    assert f"runs/{parent.info.run_id}/artifacts/report/index.html" in note
    assert f"Code: commit [`abc`]({code['git.url']}) and uncommitted changes." in note
    assert "`data/test.jsonl`: MD5 `12ab`." in note
    (data,) = parent.inputs.dataset_inputs
    assert data.dataset.digest == hashlib.md5(b"{}\n" * 8).hexdigest()
    assert [(tag.key, tag.value) for tag in data.tags] == [("mlflow.data.context", "evaluation")]
    assert rounds[1].data.params == {
        "first_step": "1",
        "last_step": "2",
        "horizon": "10",
        "temperature": "0.9 → 0.8",
    }


@pytest.mark.heavy
def test_a_version_is_the_champion_if_a_paired_test_says_so(workspace: Path, pipeline: Pipeline) -> None:
    """With d items that only one side solves, all on the same side, the exact p-value is 2 / 2^d."""
    client = connect()
    before = "the policy before training"
    tests = [  # solved of 8, items, champion and challenger after it, tested against, p-value
        (6, "a", None, 1, before, "0.12"),
        (8, "a", 2, None, before, "0.031"),
        (3, "a", 2, 3, "version 2", "0.062"),
        (2, "a", 2, 4, "version 2", "0.031"),
        (8, "b", 2, 5, "version 2, which is not comparable", None),
    ]
    for number, (num_solved, items, champion, challenger, opponent, p_value) in enumerate(tests, start=1):
        folder = workspace / str(number)
        write_round(folder, 0, steps=(1, 2))
        write_results(folder, num_solved=num_solved)
        with Tracker("nine", pipeline=pipeline, workspace=folder) as tracker:
            tracker.tag({"md5.data/test.jsonl": items, "git.commit": "abc"})
            promotion = tracker.finish()
        version = client.get_model_version("nine", str(number))
        assert version.tags["success"] == f"{num_solved / 8:.4f}"
        assert version.tags["base_model"] == "models/textcraft-base"
        assert version.tags["git.commit"] == "abc"
        assert "Success on the test split: 25.0% before" in str(version.description)
        assert (version.tags["test.against"], version.tags.get("test.p_value")) == (opponent, p_value)
        assert (promotion is not None) == (champion == number)
        if promotion is not None:
            assert (promotion.model, promotion.version) == ("nine", str(number))
            assert promotion.test["against"] == opponent
        aliases = {"champion": champion, "challenger": challenger}
        assert client.get_registered_model("nine").aliases == {
            alias: number for alias, number in aliases.items() if number is not None
        }
    best = client.get_model_version_by_alias("nine", "champion").tags
    low, high = map(float, best["test.interval"].split(" to "))
    assert low < float(best["test.difference"]) == 0.75 < high <= 1
    assert best["test.items"] == "8"


@pytest.mark.heavy
def test_a_champion_whose_outcomes_were_deleted_is_not_comparable(
    workspace: Path, pipeline: Pipeline
) -> None:
    against = []
    for name in ("1", "2"):
        folder = workspace / name
        write_round(folder, 0, steps=(1, 2))
        write_results(folder, num_solved=8)
        with Tracker("purged", pipeline=pipeline, workspace=folder) as tracker:
            tracker.tag({"md5.data/test.jsonl": "a"})
            tracker.finish()
        run, _ = runs_of(folder)
        Path(run.info.artifact_uri.removeprefix("file://"), OUTCOMES).unlink()
        against.append(connect().get_model_version("purged", name).tags["test.against"])
    assert against == ["the policy before training", "version 1, which is not comparable"]
    assert connect().get_registered_model("purged").aliases == {"champion": 1, "challenger": 2}


@pytest.mark.heavy
def test_a_policy_that_did_not_change_gets_no_alias(workspace: Path, pipeline: Pipeline) -> None:
    """Although its episodes, which are sampled anew, were better by chance."""
    write_round(workspace, 0, steps=(1, 2))
    metrics = workspace / "train" / "metrics.jsonl"
    lines = [json.loads(line) | {"trained": 0, "informative_groups": 0} for line in metrics.open()]
    metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_results(workspace, num_solved=8)
    with Tracker("same", pipeline=pipeline, workspace=workspace) as tracker:
        assert tracker.finish() is None
    assert promote_best(workspace, name="same", num_candidates=1) is None
    client = connect()
    assert client.get_registered_model("same").aliases == {}
    tags = client.get_model_version("same", "1").tags
    assert tags["unchanged"] == "no group was informative: the policy did not change"
    assert not [key for key in tags if key.startswith("test.")]


@pytest.mark.heavy
def test_the_best_of_a_sweep_is_promoted_if_the_test_allows_for_their_number(
    workspace: Path, pipeline: Pipeline
) -> None:
    """Six items, solved after training alone: p is 2 / 2^6."""
    write_round(workspace, 0, steps=(1, 2))
    write_results(workspace, num_solved=8)
    with Tracker("swept", pipeline=pipeline, workspace=workspace, is_candidate=False) as tracker:
        assert tracker.finish() is None
    client = connect()
    assert client.get_registered_model("swept").aliases == {}
    assert promote_best(workspace, name="swept", num_candidates=2) is None  # p is 2 × 0.031
    assert client.get_registered_model("swept").aliases == {"challenger": 1}
    promotion = promote_best(workspace, name="swept", num_candidates=1)
    assert promotion is not None
    assert (promotion.test["p_value"], promotion.test["candidates"]) == ("0.031", "1")
    assert client.get_registered_model("swept").aliases == {"champion": 1}
    assert promote_best(workspace, name="swept", num_candidates=1) is None  # it is the champion


@pytest.mark.heavy
def test_a_copy_of_the_version_in_another_model_is_not_taken_for_it(
    workspace: Path, pipeline: Pipeline
) -> None:
    """MLflow's "Promote model": version 1 of `released` is a copy of version 2 of `copied`."""
    earlier = workspace.with_name("earlier")
    for folder in (earlier, workspace):
        write_round(folder, 0, steps=(1, 2))
        write_results(folder, num_solved=8)
        with Tracker("copied", pipeline=pipeline, workspace=folder, is_candidate=False) as tracker:
            tracker.finish()
    client = connect()
    client.copy_model_version("models:/copied/2", "released")
    promotion = promote_best(workspace, name="copied", num_candidates=1)
    assert promotion is not None
    assert (promotion.model, promotion.version) == ("copied", "2")
    assert client.get_registered_model("copied").aliases == {"champion": 2}
    assert client.get_registered_model("released").aliases == {}
    assert "test.against" not in client.get_model_version("copied", "1").tags


@pytest.mark.heavy
def test_policies_are_ranked_by_their_score_on_a_named_data_set(workspace: Path) -> None:
    import mlflow

    steps = {"train.steps": 5, "train.steps_per_round": 2}
    pipeline = load_pipeline("textcraft-cpu", overrides=steps, file=PIPELINES)
    write_round(workspace, 0, steps=(1, 2))
    write_round(workspace, 1, steps=(3, 4))
    write_results(workspace)
    (workspace / "train" / "best").mkdir()
    (workspace / "train" / "best.json").write_text('{"index": 1}')
    with Tracker("ten", pipeline=pipeline, workspace=workspace) as tracker:
        tracker.finish()
    parent, _ = runs_of(workspace)
    client = mlflow.MlflowClient()
    digest = hashlib.md5(b"{}\n" * 8).hexdigest()

    def ranking(metric: str, dataset: str) -> list[tuple[str, str]]:
        models = client.search_logged_models(
            [parent.info.experiment_id],
            filter_string=f"source_run_id = '{parent.info.run_id}'",
            order_by=[
                {
                    "field_name": f"metrics.{metric}",
                    "ascending": False,
                    "dataset_name": dataset,
                    "dataset_digest": digest,
                }
            ],
        )
        return [
            (model.tags["policy"], str(model.params["step"]))
            for model in models
            if (metric, dataset) in {(m.key, m.dataset_name) for m in model.metrics or []}
        ]

    # As docs/tracking.md asks for them: invented recipes are not evaluated.
    assert ranking("eval/sampled/success", "textcraft test") == [("final", "5"), ("start", "0")]
    assert ranking("eval/quick/success", "textcraft test, 6 items") == [("best", "4")]
    # The scores are the run's own, not recorded twice.
    assert series(parent, "eval/sampled/success") == [(0, 0.25), (5, 0.75)]
    assert series(parent, "eval/quick/success") == [(2, 0.5), (4, 0.6)]
    (version,) = client.search_model_versions("name = 'ten'")
    final = client.get_logged_model(str(version.source).removeprefix("models:/"))
    assert (final.tags["policy"], final.status) == ("final", "READY")
    assert {output.model_id for output in parent.outputs.model_outputs} >= {final.model_id}


@pytest.mark.heavy
def test_the_evaluation_of_the_best_policy_is_at_the_step_that_it_is_of(workspace: Path) -> None:
    """The best round ended with step 2 of 4."""
    import mlflow

    options = {"train.steps": 4, "train.steps_per_round": 2, "train.final_policy": "best"}
    pipeline = load_pipeline("textcraft-cpu", overrides=options, file=PIPELINES)
    write_round(workspace, 0, steps=(1, 2))
    write_round(workspace, 1, steps=(3, 4))
    write_results(workspace)
    (workspace / "train" / "best").mkdir()
    (workspace / "train" / "best.json").write_text('{"index": 0}')
    with Tracker("early", pipeline=pipeline, workspace=workspace) as tracker:
        tracker.finish()
    parent, _ = runs_of(workspace)
    assert series(parent, "eval/sampled/success") == [(0, 0.25), (2, 0.75)]
    assert series(parent, "time/stages/train") == [(4, 12.5)]
    models = mlflow.MlflowClient().search_logged_models(
        [parent.info.experiment_id], filter_string=f"source_run_id = '{parent.info.run_id}'"
    )
    assert {model.tags["policy"]: model.params["step"] for model in models} == {"start": "0", "final": "2"}


@pytest.mark.heavy
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
    assert [step for step, _ in series(again, "rollout/success")] == [1, 2, 3, 4]
    assert sorted(rounds) == [1, 2]
    assert [step for step, _ in series(rounds[1], "rollout/success")] == [1, 2]


@pytest.mark.heavy
def test_other_parameters_are_another_run(workspace: Path, pipeline: Pipeline) -> None:
    with Tracker("four", pipeline=pipeline, workspace=workspace):
        pass
    first, _ = runs_of(workspace)
    other_pipeline = pipeline.model_copy(update={"seed": 9})
    with Tracker("four", pipeline=other_pipeline, workspace=workspace):
        pass
    second, _ = runs_of(workspace)
    assert second.info.run_id != first.info.run_id
    assert second.data.params["seed"] == "9"


def test_the_password_of_a_server_is_not_in_the_description(workspace: Path, pipeline: Pipeline) -> None:
    servers = {"textcraft": ServerSettings(urls=["http://any:s3cret-canary@host:8000"])}
    secret_pipeline = pipeline.model_copy(update={"servers": servers})
    write_changes(workspace, name="one", changes=changed_parameters(secret_pipeline, default=pipeline))
    with Tracker("one", pipeline=secret_pipeline, workspace=workspace):
        pass
    parent, _ = runs_of(workspace)
    assert "['http://[redacted]@host:8000']" in parent.data.tags["mlflow.note.content"]
    assert "s3cret-canary" not in str(parent.to_dictionary())


@pytest.mark.heavy
def test_a_training_that_begins_anew_is_another_run(workspace: Path, pipeline: Pipeline) -> None:
    """As after `--if-changed restart`, with the same parameters: MLflow would keep the deleted steps."""
    with Tracker("anew", pipeline=pipeline, workspace=workspace) as tracker:
        write_round(workspace, 0, steps=(1, 2))
        tracker.sync_training()
    first, _ = runs_of(workspace)
    shutil.rmtree(workspace / "train")
    with Tracker("anew", pipeline=pipeline, workspace=workspace) as tracker:
        tracker.tag({"git.commit": "abc"})
        tracker.sync_training()
        write_round(workspace, 1, steps=(3, 4))
        tracker.sync_training()
    second, rounds = runs_of(workspace)
    assert second.info.run_id != first.info.run_id
    assert [step for step, _ in series(second, "rollout/success")] == [3, 4]
    assert sorted(rounds) == [2]
    assert second.data.params["warmup.lr"] == "0.25"
    assert second.data.tags["git.commit"] == "abc"
    assert second.data.tags[WORKSPACE] == str(workspace.resolve())
    ended_run = connect().get_run(first.info.run_id)
    assert ended_run.info.status == "KILLED"
    assert series(ended_run, "eval/quick/success") == [(2, 0.5)]


def test_a_failing_run_is_marked_as_failed_and_its_error_propagates(
    workspace: Path, pipeline: Pipeline
) -> None:
    with pytest.raises(ZeroDivisionError), Tracker("five", pipeline=pipeline, workspace=workspace):
        _ = 1 / 0
    parent, _ = runs_of(workspace)
    assert parent.info.status == "FAILED"


@pytest.mark.heavy
def test_a_run_that_is_stopped_is_killed_and_so_is_its_open_round(
    workspace: Path, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow

    with Tracker("seven", pipeline=pipeline, workspace=workspace) as tracker:
        write_round(workspace, 0, steps=(1, 2))
        write_round(workspace, 1, steps=(3, 4))
        tracker.sync_training()
    mlflow.MlflowClient().update_run(runs_of(workspace)[1][2].info.run_id, status="RUNNING")
    is_connecting = threading.Event()

    def signalling_connect() -> Any:
        is_connecting.set()
        return connect()

    monkeypatch.setattr("tasks.tracking.tracker.connect", signalling_connect)
    tracker = Tracker("seven", pipeline=pipeline, workspace=workspace)
    assert is_connecting.wait(60)
    with pytest.raises(KeyboardInterrupt), tracker:
        raise KeyboardInterrupt
    parent, rounds = runs_of(workspace)
    assert parent.info.status == "KILLED"
    assert [rounds[number].info.status for number in (1, 2)] == ["FINISHED", "KILLED"]
    assert next(row for row in run_rows() if row[0] == workspace.name)[1] == "stopped"


@pytest.mark.heavy
def test_runs_whose_process_is_gone_are_killed_and_others_are_not(workspace: Path) -> None:
    names = ("dead", "alive", "elsewhere", "silent")
    workspaces = {name: workspace / name for name in names}
    live = [workspaces[name] for name in ("dead", "alive")]
    pipeline = load_pipeline("textcraft-cpu", file=PIPELINES)
    processes = start_tracked_runs(*live, seconds=1000)
    try:
        wait_until(lambda: all((folder / "mlflow.json").exists() for folder in live))
        client = connect()
        experiment = experiment_of(client)
        wait_until(lambda: all(PID in runs_of(folder)[0].data.tags for folder in live))
        os.kill(int(runs_of(workspaces["dead"])[0].data.tags[PID]), signal.SIGKILL)
        assert processes.stdout is not None
        assert processes.stdout.readline() == f"{-signal.SIGKILL}\n"  # it has ended
        for name, age in (("elsewhere", 60), ("silent", 3600)):
            run = client.create_run(experiment, run_name=name)
            tags = heartbeat() | {PROCESSES: "of another machine", PID: "1", TIME: str(time.time() - age)}
            for key, value in tags.items():
                client.set_tag(run.info.run_id, key, value)
            workspaces[name].mkdir(parents=True)
            write_record(workspaces[name], pipeline=pipeline, run=run, is_finished=False)
        mark_gone(client, experiment_id=experiment)
        traces = {name: runs_of(folder)[0].info.status for name, folder in workspaces.items()}
        assert traces == {"dead": "KILLED", "alive": "RUNNING", "elsewhere": "RUNNING", "silent": "KILLED"}
        rows = {row[0]: row for row in run_rows()}
        assert rows["dead"][1] == "killed"
        assert rows["alive"][1] == "running"
        with Tracker("dead", pipeline=pipeline, workspace=workspaces["dead"]) as tracker:
            tracker.wait()  # it goes on
            tracker.kill()
        assert {row[0]: row for row in run_rows()}["dead"][1] == "stopped"
    finally:
        os.killpg(processes.pid, signal.SIGKILL)
        processes.communicate()


def test_a_clock_that_is_set_ends_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tags = heartbeat()
    for entry in os.listdir("/proc"):
        if entry != "stat":
            (tmp_path / entry).symlink_to(f"/proc/{entry}")
    lines = Path("/proc/stat").read_text().splitlines()
    btime = next(int(line.split()[1]) for line in lines if line.startswith("btime"))
    text = "\n".join(lines).replace(f"btime {btime}", f"btime {btime + 3600}")
    (tmp_path / "stat").write_text(text)  # as Linux has it when the clock was set forward by an hour
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
    assert not is_gone(tags, now=time.time() + 3600)


def test_another_process_with_the_id_of_a_run_is_not_its_process() -> None:
    tags = heartbeat()
    child = subprocess.Popen(["sleep", "1000"])
    try:
        assert is_gone(tags | {PID: str(child.pid)}, now=time.time())
    finally:
        child.kill()
        child.wait()
    assert is_gone(tags | {PID: str(child.pid)}, now=time.time())


def test_the_progress_of_a_run_is_not_that_of_another_in_its_workspace(
    workspace: Path, pipeline: Pipeline
) -> None:
    client = connect()
    experiment, tags = experiment_of(client), {WORKSPACE: str(workspace.resolve())}
    write_step(workspace, 3)  # of a run before them
    os.utime(workspace / "train" / "metrics.jsonl", (0, 0))

    def begin_run(name: str) -> None:
        run = client.create_run(experiment, run_name=name, tags=tags)
        client.log_param(run.info.run_id, "train.steps", 4)
        write_record(workspace, pipeline=pipeline, run=run, is_finished=False)

    def progress() -> dict[str, tuple[str, ...]]:
        return {row[0]: row[2:4] for row in run_rows() if row[0] in ("stopped early", "later")}

    begin_run("stopped early")
    assert progress() == {"stopped early": ("0/4", "")}
    begin_run("later")
    write_step(workspace, 4)
    assert progress() == {"stopped early": ("", ""), "later": ("4/4", "0.40")}
    with (workspace / "train" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "success": "0.5"}\n')
    assert progress() == {"stopped early": ("", ""), "later": ("", "")}
    rows = {row[0]: row for row in run_rows()}
    assert re.match(r"line 3 of .*/train/metrics\.jsonl is damaged \(its success is", rows["later"][-1])
    (workspace / "mlflow.json").write_text('{"run_id": "')
    rows = {row[0]: row for row in run_rows()}
    assert rows["later"][2:4] == ("", "")
    assert re.match(r".*/mlflow\.json is damaged \(", rows["later"][-1])


def test_a_record_that_cannot_be_written_is_an_error_at_the_end(workspace: Path, pipeline: Pipeline) -> None:
    outputs = pytest.raises(WingspanError, match=r"incomplete .*evaluation\.json")
    with outputs, Tracker("six", pipeline=pipeline, workspace=workspace) as tracker:
        tracker.finish()  # nothing was evaluated
    assert not is_recorded(workspace, pipeline=pipeline)


@pytest.mark.heavy
def test_a_finished_run_is_recorded_in_each_store_that_is_named(
    workspace: Path, pipeline: Pipeline, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow

    def record() -> str:
        with Tracker("two", pipeline=pipeline, workspace=workspace) as tracker:
            tracker.finish()
        return str(json.loads((workspace / "mlflow.json").read_text())["run_id"])

    write_round(workspace, 0, steps=(1, 2))
    write_results(workspace)
    first_id = record()
    assert is_recorded(workspace, pipeline=pipeline)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///mlflow.db")  # the same file
    assert is_recorded(workspace, pipeline=pipeline)
    assert first_id in recorded_page(workspace)

    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{store}/other.db")
    assert not is_recorded(workspace, pipeline=pipeline)
    assert first_id not in recorded_page(workspace)
    second_id = record()
    assert is_recorded(workspace, pipeline=pipeline)
    run = mlflow.MlflowClient(f"sqlite:///{store}/other.db").get_run(second_id)
    assert (run.info.status, run.data.metrics["eval/sampled/success"]) == ("FINISHED", 0.75)


def test_the_record_of_a_run_has_no_password(
    tmp_path: Path, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.entities import Run, RunData, RunInfo

    info = RunInfo("1" * 32, "7", "me", "RUNNING", 0, None, "active")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://me:first-secret@tracking/")
    write_record(tmp_path, pipeline=pipeline, run=Run(info, RunData()), is_finished=True)
    assert "secret" not in (tmp_path / "mlflow.json").read_text()
    for uri in ("https://me:second-secret@tracking", "https://tracking/"):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        assert is_recorded(tmp_path, pipeline=pipeline)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://me:first-secret@other/")
    assert not is_recorded(tmp_path, pipeline=pipeline)


@pytest.mark.heavy
def test_a_run_goes_on_while_its_server_is_away_and_is_recorded_later(
    workspace: Path, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with monkeypatch.context() as away:
        away.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{port}")
        away.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        ends = pytest.raises(WingspanError, match="fix the cause and run the same command to complete it")
        with ends, Tracker("eleven", pipeline=pipeline, workspace=workspace) as tracker:
            write_round(workspace, 0, steps=(1, 2))
            tracker.sync_training()
            tracker.wait()
            write_results(workspace)
            tracker.finish()
    with Tracker("eleven", pipeline=pipeline, workspace=workspace) as tracker:
        tracker.finish()
    parent, rounds = runs_of(workspace)
    assert (parent.info.status, sorted(rounds)) == ("FINISHED", [1])
    assert [step for step, _ in series(parent, "rollout/success")] == [1, 2]


@pytest.mark.heavy
def test_parameters_that_a_failure_interrupts_are_completed(
    store: Path, workspace: Path, pipeline: Pipeline
) -> None:
    connect()  # the database has its tables
    with closing(sqlite3.connect(store / "mlflow.db")) as database, database:
        database.execute(
            f"CREATE TRIGGER full BEFORE INSERT ON params WHEN (SELECT count(*) FROM params"
            f" WHERE run_uuid = NEW.run_uuid) >= {MAX_PARAMS} BEGIN SELECT RAISE(ABORT, 'full'); END"
        )
    with (
        pytest.raises(WingspanError, match="incomplete"),
        Tracker("full", pipeline=pipeline, workspace=workspace) as tracker,
    ):
        tracker.wait()
    with closing(sqlite3.connect(store / "mlflow.db")) as database, database:
        database.execute("DROP TRIGGER full")
    assert len(runs_of(workspace)[0].data.params) == MAX_PARAMS
    with Tracker("full", pipeline=pipeline, workspace=workspace) as tracker:
        tracker.wait()
    recorded_params = runs_of(workspace)[0].data.params
    assert recorded_params["horizon.max_turns"] == str(pipeline.horizon.max_turns)
    assert len(recorded_params) == len(parameters_of(pipeline)) > MAX_PARAMS


def test_a_server_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    with pytest.raises(ConfigError, match=r"MLFLOW_TRACKING_URI=http://127\.0\.0\.1:9 .*mlflow\.db"):
        check_tracking()


@pytest.mark.heavy
@pytest.mark.usefixtures("workspace")
def test_a_store_that_does_not_answer_does_not_lack_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a resumed run would be recorded as another, beside one that seems to go on."""
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    assert not has_run(connect(), "0" * 32)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    gone = MlflowClient(tracking_uri=f"http://127.0.0.1:{free_port()}")
    with pytest.raises(MlflowException, match="Connection refused"):
        has_run(gone, "0" * 32)


def test_two_first_runs_at_once_make_one_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    statuses, errors = start_tracked_runs(tmp_path / "a", tmp_path / "b").communicate()
    assert statuses.split() == ["0", "0"], errors
    assert "MLflow:" not in errors, errors


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("success_depth_2", "rollout/success_depth_2"),
        ("tool_calls/search", "rollout/tool_calls/search"),
        ("dropped_EnvCrashed", "rollout/counts/dropped_EnvCrashed"),
        ("kl_reference", "train/kl_reference"),
        ("observation_loss", "train/observation_loss"),
        ("rollout_probs_diff_max", "train/rollout_probs_diff_max"),
        ("importance_capped", "train/importance_capped"),
        ("horizon_rooms", "train/horizon_rooms"),
        ("seconds_weight_sync", "time/weight_sync"),
        ("tokens_per_s", "time/tokens_per_s"),
        ("mfu", "time/mfu"),
        ("idle_cores", "time/idle_cores"),
        ("env_step_seconds/shop:text?a=b", "time/env_step/shop:text_a_b"),
    ],
)
def test_a_metric_is_in_the_section_of_its_kind(key: str, name: str) -> None:
    assert step_metric(key) == name


@pytest.mark.usefixtures("workspace")
def test_any_text_in_the_metadata_gives_a_metric_that_mlflow_accepts() -> None:
    texts = ["http://x.org/a", "a/../b", "folder/", "", ".", "x" * 300, "x" * 300 + "y"]
    names = {summary_metric(f"success_source_{text}", group="eval/quick") for text in texts}
    assert len(names) == len(texts)
    client = connect()
    run_id = client.create_run(experiment_of(client)).info.run_id
    for name in names:
        client.log_metric(run_id, name, 0.5)
    assert set(client.get_run(run_id).data.metrics) == names


def recorded_evaluations(folder: Path) -> list[Any]:
    """MLflow's runs of the evaluation in `folder`."""
    client = connect()
    experiment = client.get_experiment_by_name(EXPERIMENT)
    assert experiment is not None
    return list(client.search_runs([experiment.experiment_id], f"attributes.run_name = '{folder.name}'"))


def test_an_evaluation_is_recorded_and_is_no_training(workspace: Path) -> None:
    record = record_of(FIRST)
    file = record.write(workspace)
    page = record_evaluation(record, workspace)
    client = connect()
    (run,) = recorded_evaluations(workspace)
    assert run.info.run_id in page
    assert run.info.status == "FINISHED"
    assert run.data.metrics["eval/avg_at_2"] == pytest.approx(0.5)
    assert run.data.metrics["eval/pass_hat_2"] == pytest.approx(2 / 6)
    assert run.data.params["sampling.samples"] == "2"
    folder = workspace / "from-mlflow"
    folder.mkdir()
    assert read_record(Path(client.download_artifacts(run.info.run_id, file.name, str(folder)))) == record
    assert workspace.name not in [row[0] for row in run_rows()]


def test_the_password_of_a_server_is_not_in_the_artifact_of_an_evaluation(workspace: Path) -> None:
    record = record_of(FIRST)
    servers = {"toy": {"urls": ["http://any:s3cret-canary@host:8000"]}}
    record = record.model_copy(update={"settings": {"servers": servers}})
    record.write(workspace)
    record_evaluation(record, workspace)
    (run,) = [run for run in recorded_evaluations(workspace) if run.info.run_name == workspace.name]
    text = Path(connect().download_artifacts(run.info.run_id, "record.json")).read_text()
    assert "http://[redacted]@host:8000" in text
    assert "s3cret-canary" not in text
    assert "s3cret-canary" not in str(run.to_dictionary())


@pytest.mark.heavy
def test_a_finished_evaluation_whose_recording_failed_is_only_recorded(workspace: Path) -> None:
    def evaluate(*options: str) -> str:
        arguments = ["evaluate", server.url, "tests.support.own_env:SPEC", "--model", "toy", "--samples", "2"]
        done = CliRunner().invoke(app, [*arguments, "--out", str(workspace), *options])
        assert (done.exit_code == 0) == (done.exception is None), done.output
        return str(done.exception or done.stdout)

    artifacts, elsewhere = Path("mlartifacts"), Path("elsewhere")
    artifacts.mkdir(exist_ok=True)
    with chat_server(lambda body: says("Action: 6")) as server:
        artifacts.rename(elsewhere)
        artifacts.touch()  # a file, below which MLflow can write nothing
        try:
            evaluate("--track")
            assert f"MLflow has no record of {workspace} (" in evaluate("--track", "--k", "1")
            assert len(server.requests) == 8  # the first record has other rates
        finally:
            artifacts.unlink()
            elsewhere.rename(artifacts)
        record = read_record(workspace)
        assert "MLflow: " in evaluate("--track", "--k", "1")
        assert len(server.requests) == 8
        assert read_record(workspace) == record
        runs = recorded_evaluations(workspace)
        assert sorted(run.info.status for run in runs) == ["FAILED", "FAILED", "FINISHED"]
        finished = [run for run in runs if run.info.status == "FINISHED"]
        assert [run.data.metrics["eval/avg_at_2"] for run in finished] == [0.5]
        evaluate("--track", "--k", "1")  # MLflow has it: again, as without --track
        assert len(server.requests) == 12


def test_signs_of_a_collapse_are_a_tag_before_a_round_has_ended(workspace: Path, pipeline: Pipeline) -> None:
    write_step(workspace, 1)
    alert = {"monitor": "kl", "step": 1, "value": 0.3, "limit": 0.1, "text": "the KL is 0.3"}
    (workspace / "train" / "alerts.jsonl").write_text(json.dumps(alert) + "\n")
    with Tracker("toy", pipeline=pipeline, workspace=workspace) as tracker:
        tracker.sync_training()
    run_id = json.loads((workspace / "mlflow.json").read_text())["run_id"]
    assert connect().get_run(run_id).data.tags["wingspan.collapse"] == "kl at step 1"
    assert step_metric("alerts") == "train/alerts"


@pytest.mark.heavy
def test_what_a_rewind_can_undo_is_recorded_when_it_no_longer_can(
    workspace: Path, pipeline: Pipeline
) -> None:
    """MLflow keeps every value of a step that it was given, so it is given each step once."""
    watch = WatchSettings(on_collapse="rewind", window=2)
    train = pipeline.train.model_copy(update={"watch": watch, "steps": 6, "steps_per_round": 2})
    pipeline = pipeline.model_copy(update={"train": train})
    folder = workspace / "train" / "checkpoints"

    def finish_round(index: int) -> list[int]:
        last = 2 * index + 2
        (folder / f"global_step_{last}").mkdir(parents=True)
        write_round(workspace, index, steps=(last - 1, last))
        mark_complete(folder, step=last)
        return recorded_steps()

    def recorded_steps() -> list[int]:
        tracker.sync_training()
        tracker.wait()
        return [step for step, _ in series(runs_of(workspace)[0], "rollout/success")]

    with Tracker("three", pipeline=pipeline, workspace=workspace) as tracker:
        assert finish_round(0) == []
        assert finish_round(1) == [1, 2]  # an alert at step 4 would go back to step 2
        write_rewind(workspace / "train", Rewind(from_step=5, to_step=2, reasons="the KL is 9"))
        (workspace / "train" / "rounds" / "01.json").unlink()
        lines = (workspace / "train" / "metrics.jsonl").read_text().splitlines(keepends=True)
        (workspace / "train" / "metrics.jsonl").write_text("".join(lines[:2]))
        assert recorded_steps() == [1, 2]
        assert finish_round(1) == [1, 2]
        assert finish_round(2) == [1, 2, 3, 4, 5, 6]  # the last one: nothing can undo them
    parent, rounds = runs_of(workspace)
    assert sorted(rounds) == [1, 2, 3]
    assert parent.data.tags["wingspan.collapse"] == "went back from step 5 to 2"
    assert step_metric("rewinds") == "train/rewinds"
