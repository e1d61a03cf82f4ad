"""Keys and receipts agree with DVC, and change with exactly what a stage depends on."""

import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from prefect.filesystems import LocalFileSystem
from prefect.results import ResultStore
from prefect.serializers import JSONSerializer

from envs.errors import ConfigError
from flows.lineage.stages import (
    FINISHED,
    IfChanged,
    Receipt,
    Stage,
    cache_key,
    changed_inputs,
    claim_checkpoints,
    declared_stages,
    find_difference,
    make_receipt,
    mark_finished,
    stage_key,
    would_resume,
)
from flows.orchestrator.runs import read_receipt
from flows.run import STAGES
from tasks.config.pipelines import Pipeline, load_pipeline, read_yaml
from tasks.data.hashes import path_md5
from tasks.reporting.comparison.runs import UnfinishedRun, read_run
from tasks.runs.rounds import RoundResult
from tests.support.report_toy import write_workspace
from tests.support.stage_files import AGENT_STAGES, changed_keys, keys, write_stage_files

ROOT = Path(__file__).parents[2]
NAME = "textcraft-cpu"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_stage_files(tmp_path)
    return tmp_path


def record_inputs(pipeline: Pipeline) -> Stage:
    """Record the inputs of training as a run that resumes it does; return the stage."""
    train = declared_stages(NAME, pipeline=pipeline, workspace=Path("runs") / NAME)["train"]
    mark_finished(train, stage_key(train))
    assert claim_checkpoints(train, if_changed="refuse")
    return train


def changed_names(train: Stage) -> list[str]:
    """What a run that resumes says has changed: the first word of each line."""
    changes = changed_inputs(train)
    assert changes is not None
    return [change.split()[0] for change in changes]


@pytest.mark.heavy
def test_hashes_are_those_that_dvc_writes(project: Path) -> None:
    from dvc.repo import Repo

    with Repo.init(no_scm=True) as repo:
        for name in STAGES:
            repo.commit(f"{name}@{NAME}", force=True)
    lock = read_yaml(Path("dvc.lock"))["stages"]
    stages = declared_stages(NAME, pipeline=load_pipeline(NAME), workspace=Path("runs") / NAME)
    assert set(stages) == set(STAGES)
    for name, stage in stages.items():
        lock_entry = lock[f"{name}@{NAME}"]
        assert {str(p): path_md5(p) for p in stage.deps} == {d["path"]: d["md5"] for d in lock_entry["deps"]}
        assert {str(p): path_md5(p) for p in stage.outs} == {d["path"]: d["md5"] for d in lock_entry["outs"]}
        prefix = f"pipelines.{NAME}"
        parameter_keys = {
            key.removeprefix(prefix).lstrip(".") for key in lock_entry["params"]["pipelines.yaml"]
        }
        assert parameter_keys == set(stage.params)


def test_caches_of_python_are_no_input(project: Path) -> None:
    before = keys()
    cache = Path("envs/__pycache__")
    cache.mkdir()
    (cache / "x.pyc").write_bytes(b"1")
    assert keys() == before


@pytest.mark.parametrize(
    ("override", "stages_to_run"),
    [
        ({"data.split_seed": 7}, {"prepare", "provision", "warmup", "train", "evaluate", "report"}),
        ({"warmup.lr": 1.0e-4}, {"warmup", "report"}),
        ({"train.lr": 1.0e-4}, {"train", "report"}),
        ({"horizon.max_turns": [4, 8]}, {"train", "report"}),
        ({"evaluate.samples_per_item": 2}, {"evaluate", "report"}),
        ({"evaluate.quick_items": 2}, {"train", "evaluate", "report"}),
        ({"evaluate.temperature": 0.5}, {"evaluate", "report"}),
        ({"seed": 3}, {"warmup", "train", "evaluate", "report"}),
    ],
)
def test_a_parameter_changes_the_keys_of_the_stages_that_obey_it(
    project: Path, override: dict[str, object], stages_to_run: set[str]
) -> None:
    assert changed_keys(keys(), keys(load_pipeline(NAME, overrides=override))) == stages_to_run


@pytest.mark.parametrize(
    ("file", "stages"),
    [
        ("tasks/reporting/templates/report.html", {"report"}),
        ("tasks/tracking/traces.py", {"report"}),
        ("tasks/verl/trainer.py", {"train", "evaluate"}),
        ("tasks/verl/sft.py", {"warmup", "train", "evaluate"}),
        ("tasks/rollout/runner.py", {"train", "evaluate"}),
        ("flows/train_agent.py", set()),
    ],
)
def test_code_changes_the_keys_of_the_stages_that_it_decides(
    project: Path, file: str, stages: set[str]
) -> None:
    before = keys()
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    Path(file).write_text("other\n")
    assert changed_keys(before, keys()) == stages


def test_training_depends_on_the_files_of_trajectories_that_it_learns_from(project: Path) -> None:
    file = Path("mine.jsonl")
    file.write_text("one\n")
    block = {"algorithm": {"name": "sft", "data": [str(file)]}, "steps": 2, "lr": 1e-3}
    pipeline = load_pipeline(NAME, overrides={"train": block | {"micro_batch_tokens": 8192}})
    train, before = record_inputs(pipeline), keys(pipeline)
    file.write_text("other\n")
    assert changed_keys(before, keys(pipeline)) == {"train"}
    assert changed_names(train) == ["mine.jsonl"]


def test_a_downloaded_data_set_is_an_input_of_all_that_play_its_environment(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WINGSPAN_DATA", str(tmp_path / "sets"))
    pipeline = load_pipeline(NAME, overrides={"data.parts": {"alfworld": {}}})
    without, without_it = keys(), keys(pipeline)
    receipt = tmp_path / "sets" / "alfworld" / ".receipt.json"
    receipt.parent.mkdir(parents=True)
    receipt.write_text(json.dumps({"files": {"a": {"sha256": "1"}}}))
    train, before = record_inputs(pipeline), keys(pipeline)
    assert changed_keys(without_it, before) == {"prepare", *AGENT_STAGES}
    receipt.write_text(json.dumps({"files": {"a": {"sha256": "2"}}}))
    assert changed_keys(before, keys(pipeline)) == {"prepare", *AGENT_STAGES}
    assert changed_names(train) == [str(receipt)]
    assert keys() == without


def test_the_stage_whose_outputs_dvc_keeps_is_resumable(project: Path) -> None:
    stages = declared_stages(NAME, pipeline=load_pipeline(NAME), workspace=Path("runs") / NAME)
    assert [name for name, stage in stages.items() if stage.is_resumable] == ["train"]
    mark = Path("runs", NAME) / FINISHED
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.write_text(stage_key(stages["evaluate"]))
    assert not would_resume(stages["evaluate"], if_changed="refuse")


def test_contents_and_not_times_change_keys(project: Path) -> None:
    before = keys()
    data = Path("runs", NAME, "data", "train.jsonl")
    data.write_text(data.read_text())
    assert keys() == before
    data.write_text("other\n")
    assert changed_keys(before, keys()) == {"provision", "warmup", "train", "report"}


def test_environments_on_other_servers_are_provisioned_again(project: Path) -> None:
    on_servers = [
        load_pipeline(NAME, overrides={"servers": {"textcraft": {"urls": [url]}}})
        for url in ("http://one:8000", "http://two:8000")
    ]
    first, second = map(keys, on_servers)
    assert changed_keys(keys(), first) == {"provision", "report"}
    assert changed_keys(first, second) == {"provision", "report"}


def test_training_that_chooses_the_best_policy_depends_on_the_temperature_of_quick_evaluations(
    project: Path,
) -> None:
    def best(temperature: float) -> Pipeline:
        values = {"train.final_policy": "best", "evaluate.temperature": temperature}
        return load_pipeline(NAME, overrides=values)

    assert changed_keys(keys(best(1.0)), keys(best(0.5))) == {"train", "evaluate", "report"}
    workspace = Path("runs", NAME)
    first, second = (
        declared_stages(NAME, pipeline=best(temperature), workspace=workspace)["train"]
        for temperature in (1.0, 0.5)
    )
    claim_checkpoints(first, if_changed="refuse")
    round_0 = RoundResult(temperature=1.0, index=0, first_step=1, last_step=2, evaluation={}, seconds=1.0)
    file = workspace / "train" / "rounds" / "00.json"
    file.parent.mkdir()
    file.write_text(json.dumps(asdict(round_0)))
    with pytest.raises(ConfigError, match=r"from other inputs: evaluate\.temperature: 1\.0 → 0\.5\. Undo"):
        claim_checkpoints(second, if_changed="refuse")
    assert claim_checkpoints(first, if_changed="refuse")


def test_another_workspace_has_its_own_paths_and_the_same_keys(project: Path) -> None:
    other_workspace = Path("runs") / f"{NAME}-other"
    shutil.copytree(Path("runs") / NAME, other_workspace)
    pipeline = load_pipeline(NAME)
    stages = declared_stages(NAME, pipeline=pipeline, workspace=other_workspace)
    for name, stage in stages.items():
        assert all(out.is_relative_to(other_workspace) for out in stage.outs)
        assert stage_key(stage) == keys()[name]


def test_a_receipt_holds_until_an_output_is_altered_or_gone(project: Path) -> None:
    stage = declared_stages(NAME, pipeline=load_pipeline(NAME), workspace=Path("runs") / NAME)["train"]
    receipt = make_receipt(stage)
    stored_receipt = JSONSerializer().loads(JSONSerializer().dumps(receipt))
    assert stored_receipt == receipt
    assert isinstance(stored_receipt, Receipt)
    assert find_difference(stage, stored_receipt) is None
    policy = Path("runs", NAME, "policy")
    (policy / "a.txt").write_text("altered")
    assert find_difference(stage, stored_receipt) == f"{policy} was changed"
    shutil.rmtree(policy)
    assert find_difference(stage, stored_receipt) == f"{policy} is missing"
    for other_outputs in ({"train/best": "0" * 32}, {**receipt.outputs, "train/best": "0" * 32}):
        other = Receipt("train", other_outputs)
        assert find_difference(stage, other) == "dvc.yaml declares other outputs"


def test_a_missing_input_is_named(project: Path) -> None:
    Path("runs", NAME, "data", "test.jsonl").unlink()
    with pytest.raises(ConfigError, match=rf"runs/{NAME}/data/test.jsonl"):
        keys()


def test_without_a_warmup_training_reads_the_model(project: Path) -> None:
    pipeline = load_pipeline(NAME, overrides={"warmup": None})
    stages = declared_stages(NAME, pipeline=pipeline, workspace=Path("runs") / NAME)
    assert "warmup" not in stages
    assert Path(pipeline.model) in stages["train"].deps


@pytest.mark.parametrize(
    "agent",
    [
        {"program": "mine.play:play"},
        {"format": "mine.play:Agent"},
        {"tools": ["calculator", "mine.play:look"]},
        {"reward": "mine.play:right"},
        {"reward": {"string_equal": 1.0, "mine.play:right": 0.5}},
    ],
)
def test_a_users_own_code_is_an_input_of_the_stages_that_run_it(project: Path, agent: dict[str, Any]) -> None:
    Path("mine").mkdir()
    Path("mine/play.py").write_text("from mine import words\n")
    Path("mine/words.py").write_text("HELLO = 'hello'\n")
    pipeline = load_pipeline(NAME, overrides={"agent": {"instructions": False, **agent}})
    train, before = record_inputs(pipeline), keys(pipeline)
    Path("mine/words.py").write_text("HELLO = 'hi'\n")
    assert changed_keys(before, keys(pipeline)) == AGENT_STAGES
    assert changed_names(train) == []  # training resumes after a fix of the code


def test_an_environment_of_the_users_own_is_an_input_of_all_that_play_it(project: Path) -> None:
    Path("guess_of_mine.py").write_text((ROOT / "tests" / "support" / "own_env.py").read_text())
    pipeline = load_pipeline(NAME, overrides={"data.parts": {"guess": {"env": "guess_of_mine:SPEC"}}})
    train, before = record_inputs(pipeline), keys(pipeline)
    Path("guess_of_mine.py").write_text("SPEC = None\n")
    assert changed_keys(before, keys(pipeline)) == {"prepare", *AGENT_STAGES}
    assert changed_names(train) == []


ALGORITHM_OF_MINE = """
from typing import Literal

from tasks.algorithms.builtin.grpo import Grpo
from tasks.algorithms.losses import Vanilla
from {loss_module} import Capped


class Mine(Grpo):
    name: str = "mine"
    loss: Capped = Capped()
"""
LOSS_OF_MINE = """
from typing import Literal

from tasks.algorithms.losses import Vanilla


class Capped(Vanilla):
    name: Literal["capped"] = "capped"
"""


@pytest.mark.parametrize("changed", ["algorithm", "loss"])
def test_an_algorithm_and_a_loss_of_the_users_own_are_inputs_of_training(project: Path, changed: str) -> None:
    names = {part: f"{part}_of_mine_{changed}" for part in ("algorithm", "loss")}  # imported only once
    Path(f"{names['loss']}.py").write_text(LOSS_OF_MINE)
    Path(f"{names['algorithm']}.py").write_text(ALGORITHM_OF_MINE.format(loss_module=names["loss"]))
    pipeline = load_pipeline(NAME, overrides={"train.algorithm": f"{names['algorithm']}:Mine"})
    train, before = record_inputs(pipeline), keys(pipeline)
    Path(f"{names[changed]}.py").write_text("# corrected\n")
    assert changed_keys(before, keys(pipeline)) == {"train"}
    assert changed_names(train) == []


def test_a_module_that_is_one_file_is_an_input_too(project: Path) -> None:
    Path("one_file_of_mine.py").write_text("")
    pipeline = load_pipeline(NAME, overrides={"agent.tools": ["one_file_of_mine:look"]})
    before = keys(pipeline)
    Path("another_file_of_mine.py").write_text("")
    assert keys(pipeline) == before
    Path("one_file_of_mine.py").write_text("look = None\n")
    assert changed_keys(before, keys(pipeline)) == AGENT_STAGES


def test_code_in_a_package_that_a_stage_declares_is_no_other_input(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    pipeline = load_pipeline(NAME, overrides={"agent.tools": ["agents.custom.mine:look"]})
    stages = declared_stages(NAME, pipeline=pipeline, workspace=Path("runs") / NAME)
    assert {path for stage in stages.values() for path in stage.user_code} == set()


def test_the_text_of_a_prompt_is_an_input_and_training_begins_anew_with_another(project: Path) -> None:
    Path("brief.md").write_text("Be brief.\n")
    pipeline = load_pipeline(NAME, overrides={"agent.prompt": "brief.md"})
    train, before = record_inputs(pipeline), keys(pipeline)
    Path("brief.md").write_text("Be long.\n")
    assert changed_keys(before, keys(pipeline)) == AGENT_STAGES
    assert changed_names(train) == ["brief.md"]


def test_own_code_that_is_not_there_is_named(project: Path) -> None:
    pipeline = load_pipeline(NAME, overrides={"agent.tools": ["nowhere_at_all.x:look"]})
    with pytest.raises(ConfigError, match=r"'nowhere_at_all.x:look': there is no module 'nowhere_at_all'"):
        keys(pipeline)


def test_finished_rounds_of_offline_training_are_not_lost_to_a_change(project: Path) -> None:
    name = "textcraft-agentevol-cpu"
    stages = declared_stages(name, pipeline=load_pipeline(name), workspace=Path("runs", name))
    for path in stages["train"].deps:
        if not path.exists():
            path.mkdir(parents=True)

    def claim(overrides: dict[str, object] | None = None) -> bool:
        pipeline = load_pipeline(name, overrides=overrides)
        train = declared_stages(name, pipeline=pipeline, workspace=Path("runs", name))["train"]
        return claim_checkpoints(train, if_changed="refuse")

    assert not claim()
    finished_round = Path("runs", name, "train", "rounds", "00.json")
    finished_round.parent.mkdir()
    done = RoundResult(temperature=1.0, index=0, first_step=1, last_step=36, evaluation={}, seconds=1.0)
    finished_round.write_text(json.dumps(asdict(done)))
    with pytest.raises(ConfigError, match=r"\(step 36\) from other inputs: train\.lr"):
        claim({"train.lr": 1.0})
    assert claim()
    assert finished_round.exists()


def test_a_training_that_begins_anew_is_not_compared_by_the_evaluation_of_the_one_before(
    project: Path,
) -> None:
    workspace = Path("runs", NAME)
    write_workspace(workspace)
    assert read_run(workspace).after == 0.5
    train = declared_stages(NAME, pipeline=load_pipeline(NAME), workspace=workspace)["train"]
    (workspace / FINISHED).write_text("the key of other code")
    step = (workspace / "train" / "metrics.jsonl").read_text().splitlines()[0]
    assert not claim_checkpoints(train, if_changed="refuse")
    (workspace / "train" / "metrics.jsonl").write_text(step + "\n")
    with pytest.raises(UnfinishedRun, match="has not been evaluated"):
        read_run(workspace)


def test_a_stop_while_training_is_deleted_leaves_none_to_resume(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever files are left, they would be an interrupted training, and go on."""
    train = declared_stages(NAME, pipeline=load_pipeline(NAME), workspace=Path("runs", NAME))["train"]
    assert not claim_checkpoints(train, if_changed="refuse")
    checkpoint = train.workspace / "train" / "checkpoints" / "global_step_4"
    checkpoint.mkdir(parents=True)
    (checkpoint / "complete").write_text("{}")
    (train.workspace / FINISHED).write_text("the key of other code")

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", stop)
        with pytest.raises(KeyboardInterrupt):
            claim_checkpoints(train, if_changed="refuse")
    assert checkpoint.exists()
    assert not claim_checkpoints(train, if_changed="refuse")
    assert not checkpoint.exists()


@pytest.mark.parametrize("letter", ["d", "\N{LATIN SMALL LETTER U WITH DIAERESIS}"])
def test_a_receipt_is_kept_of_a_workspace_with_a_long_path(tmp_path: Path, letter: str) -> None:
    folder = LocalFileSystem(basepath=str(tmp_path / "prefect"))
    store = ResultStore(result_storage=folder, serializer=JSONSerializer())
    for length in range(1, 120):
        workspace = tmp_path / (letter * 60) / (letter * length)
        stage = Stage(name="prepare", workspace=workspace, command="", deps=(), params={}, outs=())
        key = cache_key(stage, stage_key(stage))
        store.write(Receipt("prepare", {"length": str(length)}), key=key)
        assert read_receipt(store, key) == Receipt("prepare", {"length": str(length)})


def test_a_completed_training_that_was_partly_deleted_is_not_resumed_by_its_own_parameters(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop leaves the mark of completion, and the user takes the change of parameters back."""

    def train_stage(overrides: dict[str, object]) -> Stage:
        pipeline = load_pipeline(NAME, overrides=overrides)
        return declared_stages(NAME, pipeline=pipeline, workspace=Path("runs", NAME))["train"]

    train = train_stage({})
    assert not claim_checkpoints(train, if_changed="refuse")
    checkpoints = train.workspace / "train" / "checkpoints"
    for step in (4, 8):
        (checkpoints / f"global_step_{step}").mkdir(parents=True)
        (checkpoints / f"global_step_{step}" / "complete").write_text("{}")
    (train.workspace / FINISHED).write_text(stage_key(train))

    def delete_one_checkpoint(folder: Path, **_: object) -> None:
        os.remove(folder / "checkpoints" / "global_step_8" / "complete")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", delete_one_checkpoint)
        with pytest.raises(KeyboardInterrupt):
            claim_checkpoints(train_stage({"train.lr": 1.0}), if_changed="refuse")
    assert not claim_checkpoints(train, if_changed="refuse")
    assert not checkpoints.exists()


def test_checkpoints_stay_for_the_same_training_and_go_for_any_other(project: Path) -> None:
    def train_stage(overrides: dict[str, object] | None = None) -> Stage:
        pipeline = load_pipeline(NAME, overrides=overrides)
        return declared_stages(NAME, pipeline=pipeline, workspace=Path("runs") / NAME)["train"]

    def claim(overrides: dict[str, object] | None = None, if_changed: IfChanged = "refuse") -> bool:
        return claim_checkpoints(train_stage(overrides), if_changed=if_changed)

    def make_checkpoint() -> None:
        checkpoint.mkdir(parents=True)
        (checkpoint / "complete").write_text("{}")

    checkpoint = Path("runs", NAME, "train", "checkpoints", "global_step_4")
    assert not claim()  # nobody knows whose these were
    make_checkpoint()
    steps = Path("runs", NAME, "train", "metrics.jsonl")
    steps.write_text('{"step": 4}\n{"step": 5, "lo')  # the disk was full
    assert claim()
    assert steps.read_text() == '{"step": 4}\n'
    inputs = Path("runs", NAME, "train", "inputs.json")
    recorded_inputs = inputs.read_text()
    for content in ("{", '{"params": {}}'):
        inputs.write_text(content)
        with pytest.raises(
            ConfigError, match=rf"{inputs} is damaged .*; restore it, or delete {inputs.parent} to"
        ):
            claim()
    inputs.write_text(recorded_inputs)
    Path("tasks/stages/train.py").write_text("mended\n")
    assert claim()
    assert checkpoint.exists()
    Path("runs", NAME, FINISHED).write_text(stage_key(train_stage()))
    assert claim()  # to write again what was lost of it
    Path("tasks/stages/train.py").write_text("better\n")
    assert not claim(), "what was completed is done anew"
    make_checkpoint()
    assert claim()
    with pytest.raises(ConfigError, match=r"\(step 4\) from other inputs: train\.lr: 0\.0003 → 1\.0\. Undo"):
        claim({"train.lr": 1.0})
    Path("runs", NAME, "data", "train.jsonl").write_text("other items\n")
    with pytest.raises(ConfigError, match=r"train\.lr: 0\.0003 → 1\.0; data/train\.jsonl has other content"):
        claim({"train.lr": 1.0})
    assert checkpoint.exists()
    assert claim({"train.lr": 1.0}, if_changed="resume")
    assert claim({"train.lr": 1.0}), "that is its input now"
    assert not claim(if_changed="restart")
    assert not checkpoint.exists()
    assert not Path("runs", NAME, "policy").exists()
