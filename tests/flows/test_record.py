"""The record of a finished run, in DVC and MLflow, of a run that was stopped while it wrote it."""

import json
import shutil
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from envs.errors import WingspanError
from flows.display.display import Display
from flows.lineage.stages import cache_key, declared_stages, default_workspace, make_receipt, stage_key
from flows.orchestrator.runs import open_local_results
from flows.plan import Plan
from flows.run import RECORD, Run, read_finished
from tasks.config.pipelines import load_pipeline, read_yaml
from tasks.data.hashes import path_md5
from tasks.evaluation.outcomes import OUTCOMES
from tasks.tracking.connection import connect
from tasks.tracking.record import is_recorded
from tests.support.dvc_toy import NAME, make_project
from tests.tasks.test_tracking import runs_of, write_tokenizer


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """Of a run all of whose stages have just finished."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    make_project(tmp_path)
    pipeline, workspace = load_pipeline(NAME), default_workspace(NAME)
    shutil.copytree(tmp_path / ".git" / "results" / "first", workspace)
    (workspace / "policy" / "config.json").write_text(json.dumps({"model_type": "llama"}))
    write_tokenizer(workspace / "policy")
    stages = declared_stages(NAME, pipeline=pipeline, workspace=workspace)
    return Plan(name=NAME, pipeline=pipeline, workspace=workspace, stages=stages, is_tracked=True)


def record(plan: Plan) -> None:
    """As a run does at its end."""
    with ExitStack() as closing:
        display = Display("a run", stages=[*plan.stages, RECORD], steps={}, steps_per_round=1)
        run = Run(plan, display=display, closing=closing, page=None, flow_run_id="1")
        for stage in plan.stages.values():
            run.key(stage)
        run.record(make_receipt(plan.stages["report"]))


@pytest.mark.heavy
def test_a_run_that_is_stopped_while_dvc_records_it_is_recorded_by_the_next(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("flows.run.commit_to_dvc", stop)
        with pytest.raises(KeyboardInterrupt):
            record(plan)
    record(plan)
    assert is_recorded(plan.workspace, pipeline=plan.pipeline)
    lock = read_yaml(Path("dvc.lock"))["stages"]
    assert lock.keys() == {f"{stage}@{NAME}" for stage in plan.stages}
    [policy] = [out for out in lock[f"train@{NAME}"]["outs"] if out["path"].endswith("/policy")]
    assert policy["md5"] == path_md5(plan.workspace / "policy")
    parent, _ = runs_of(plan.workspace)
    assert parent.info.status == "FINISHED"
    assert parent.data.tags["md5.dvc.lock"] == path_md5(Path("dvc.lock"))


@pytest.mark.heavy
def test_a_finished_run_without_promotion_is_tested_once_promotion_is_asked_for(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of six items that only training solves; p is 2 / 2^6."""
    # MLflow keeps the connection of a relative address, whose file another test may have left elsewhere.
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{Path.cwd()}/mlflow.db")
    outcomes = {f"item_{n}": [False] for n in range(6)}
    solved = {item: [True] for item in outcomes}
    both_modes = {"before": outcomes, "after": solved}
    file = plan.workspace / OUTCOMES
    file.write_text(json.dumps({policy: {"sampled": s, "greedy": s} for policy, s in both_modes.items()}))
    without = replace(plan, is_candidate=False)
    record(without)
    run_id = json.loads((plan.workspace / "mlflow.json").read_text())["run_id"]
    client = connect()
    assert client.get_registered_model(NAME).aliases == {}
    record(without)
    assert client.get_registered_model(NAME).aliases == {}
    receipts = open_local_results()
    for stage in plan.stages.values():
        receipts.write(make_receipt(stage), key=cache_key(stage, stage_key(stage)))
    assert read_finished(without) is not None
    assert read_finished(plan) is None
    record(plan)
    assert read_finished(plan) is not None
    assert client.get_registered_model(NAME).aliases == {"champion": 1}
    tags = client.get_model_version(NAME, "1").tags
    record(plan)
    assert client.get_model_version(NAME, "1").tags == tags
    [version] = client.search_model_versions(f"name = '{NAME}'")
    assert version.run_id == run_id == json.loads((plan.workspace / "mlflow.json").read_text())["run_id"]


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("file", "content"),
    [(".dvc/config", "[core\n"), ("other.dvc", "outs:\n- pathh: 1\n"), (".dvc/tmp", "a file")],
)
def test_mlflow_has_the_record_of_a_run_that_dvc_refuses(plan: Plan, file: str, content: str) -> None:
    if Path(file).is_dir():
        shutil.rmtree(file)
    Path(file).write_text(content)
    with pytest.raises(
        WingspanError, match=r"^DVC did not record this run \(.*\); fix that, then run `dvc commit`"
    ):
        record(plan)
    assert is_recorded(plan.workspace, pipeline=plan.pipeline)
    parent, _ = runs_of(plan.workspace)
    assert parent.info.status == "FINISHED"
