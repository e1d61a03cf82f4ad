"""What a run writes of its lineage, in a real Git repository."""

import json
import shutil
import subprocess
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from flows.commands.lineage import format_code
from flows.lineage.reuse import copy_outputs
from flows.lineage.stages import Stage, declared_stages, make_receipt, stage_key
from flows.plan import Plan
from flows.recorder import Recorder
from tasks.config.pipelines import load_pipeline
from tasks.data.hashes import path_md5
from tasks.runs.provenance import head_commit, installed_packages, make_patch, provenance, uncommitted_files
from tasks.tracking.lineage_record import LINEAGE, PATCH, LineageRecord, read_lineage
from tests.support.dvc_toy import commit, git

ROOT = Path(__file__).parents[2]
NAME = "textcraft-cpu"
WORKSPACE = Path("runs") / NAME


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of the real declarations, in which every file that a stage reads or writes is small."""
    for name in ("dvc.yaml", "pipelines.yaml", ".dvcignore", ".gitignore"):
        shutil.copy(ROOT / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    git("init", "-q", "-b", "main", cwd=tmp_path)
    for key, value in {"user.name": "t", "user.email": "t@t"}.items():
        git("config", key, value, cwd=tmp_path)
    for stage in make_plan().stages.values():
        for path in (*stage.deps, *stage.outs):
            file = path if path.suffix else path / "a.txt"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{path}\n")
    commit(tmp_path, "the code")
    return tmp_path


def make_plan(overrides: Mapping[str, Any] | None = None) -> Plan:
    pipeline = load_pipeline(NAME, overrides=dict(overrides or {}))
    return Plan(
        name=NAME,
        pipeline=pipeline,
        workspace=WORKSPACE,
        stages=declared_stages(NAME, pipeline=pipeline, workspace=WORKSPACE),
        is_tracked=not overrides,
        overrides=overrides or {},
    )


def record(plan: Plan, *names: str, is_resumed: bool = False) -> LineageRecord:
    """Let the stages `names` of `plan` work in one run."""
    recorder = Recorder(plan)
    for name in names:
        recorder.begin(plan.stages[name], key=stage_key(plan.stages[name]), is_resumed=is_resumed)
        recorder.finish(make_receipt(plan.stages[name]))
    return read_lineage(WORKSPACE / LINEAGE)


def test_the_record_holds_commit_parameters_hashes_and_versions(project: Path) -> None:
    plan = make_plan({"train.lr": 0.25})
    lineage = record(plan, *plan.stages)
    assert lineage.code.commit == subprocess.check_output(["git", "rev-parse", "HEAD"], text=True).strip()
    assert lineage.code.uncommitted == ()
    assert (lineage.overrides, lineage.parameters["train"]["lr"]) == ({"train.lr": 0.25}, 0.25)
    assert lineage.seed == 0
    assert load_pipeline(NAME, overrides={"train.lr": 0.25}) == type(plan.pipeline)(**lineage.parameters)
    assert lineage.data == {"models/textcraft-base": path_md5(Path("models/textcraft-base"))}
    assert lineage.items == {"train": 1, "test": 1}
    assert lineage.environments["textcraft"].packages == {"textcraft": version("textcraft")}
    assert lineage.packages["pydantic"] == version("pydantic")
    assert list(lineage.stages) == list(plan.stages)
    train = lineage.stages["train"]
    assert train.reads.keys() == {str(dep) for dep in plan.stages["train"].deps}
    assert train.reads["runs/textcraft-cpu/data/train.jsonl"] == path_md5(WORKSPACE / "data" / "train.jsonl")
    assert train.writes["policy"] == path_md5(WORKSPACE / "policy")
    assert "train" in train.params


def test_versions_are_those_of_the_installed_packages() -> None:
    packages = installed_packages()
    assert {name: packages[name] for name in ("numpy", "pydantic-core", "typing-extensions")} == {
        name: version(name) for name in ("numpy", "pydantic-core", "typing-extensions")
    }


def test_a_stage_that_is_up_to_date_keeps_its_record(project: Path) -> None:
    first = record(make_plan(), "prepare", "train")
    (project / "tasks/stages/train.py").write_text("better\n")
    commit(project, "better")
    second = record(make_plan(), "train")
    assert second.stages["prepare"] == first.stages["prepare"]
    assert second.code.commit == head_commit() != first.code.commit
    assert second.stages["train"].code == second.code
    assert second.stages["train"].resumed == ()


def test_outputs_that_dvc_has_brought_have_no_record_of_others(project: Path) -> None:
    plan = make_plan()
    lineage = record(plan, *plan.stages)
    train = plan.stages["train"]
    recorder = Recorder(plan)
    recorder.accept(make_receipt(train))  # as after `dvc repro`, whose stages are recorded
    assert read_lineage(WORKSPACE / LINEAGE) == lineage
    (WORKSPACE / "policy" / "a.txt").write_text("of another run\n")  # as after `dvc pull`
    recorder.accept(make_receipt(train))
    assert not (WORKSPACE / LINEAGE).exists()


def test_training_that_went_on_with_other_code_says_so(project: Path) -> None:
    first = record(make_plan(), "train")
    assert record(make_plan(), "train", is_resumed=True).stages["train"].resumed == ()
    (project / "tasks/stages/train.py").write_text("mended\n")
    commit(project, "mended")
    assert record(make_plan(), "train", is_resumed=True).stages["train"].resumed == (first.code,)
    assert record(make_plan(), "train").stages["train"].resumed == ()


def test_training_that_went_on_after_another_change_of_the_same_file_says_so(project: Path) -> None:
    (project / "tasks/stages/train.py").write_text("first\n")
    first = record(make_plan(), "train")
    assert record(make_plan(), "train", is_resumed=True).stages["train"].resumed == ()
    (project / "tasks/stages/train.py").write_text("second\n")
    second = record(make_plan(), "train", is_resumed=True)
    assert first.code.uncommitted == second.code.uncommitted == ("tasks/stages/train.py",)
    assert second.stages["train"].resumed == (first.code,)


def on_servers(*urls: str) -> Plan:
    return make_plan({"servers": {"textcraft": {"urls": list(urls)}}})


def test_each_stage_has_the_servers_on_which_it_ran_episodes(project: Path) -> None:
    first = on_servers("http://any:pw@one:8000", "http://two:8000")
    record(first, *first.stages)
    lineage = record(on_servers("http://three:8000"), "provision")  # the other stages are up to date
    urls = ("http://one:8000", "http://two:8000")
    assert {name: stage.servers for name, stage in lineage.stages.items() if stage.servers} == {
        "provision": {"textcraft": ("http://three:8000",)},
        "train": {"textcraft": urls},
        "evaluate": {"textcraft": urls},
    }


def test_training_that_went_on_elsewhere_has_the_servers_of_all_attempts(project: Path) -> None:
    record(on_servers("http://one:8000"), "train")
    record(on_servers("http://two:8000"), "train", is_resumed=True)
    resumed = record(make_plan(), "train", is_resumed=True).stages["train"]
    assert resumed.servers == {"textcraft": ("http://one:8000", "http://two:8000")}
    assert record(make_plan(), "train").stages["train"].servers == {}


def test_an_unfinished_stage_has_written_nothing(project: Path) -> None:
    plan = make_plan()
    Recorder(plan).begin(plan.stages["prepare"], key="k", is_resumed=False)
    assert read_lineage(WORKSPACE / LINEAGE).stages["prepare"].writes == {}


def change_files(project: Path) -> list[str]:
    """Change, add and delete a file, all of them code; returns their names."""
    (project / "pipelines.yaml").write_text((project / "pipelines.yaml").read_text() + "# mine\n")
    (project / "tasks" / "new [1].py").write_bytes(b"\x00\xff binary\n")
    (project / "tasks/stages/train.py").unlink()
    return ["pipelines.yaml", "tasks/new [1].py", "tasks/stages/train.py"]


def test_the_patch_makes_of_the_commit_what_the_run_was_made_from(
    project: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    names = change_files(project)
    status = subprocess.check_output(["git", "status", "--porcelain"], text=True)
    plan = make_plan()
    lineage = record(plan, "prepare")
    assert sorted(lineage.code.uncommitted or ()) == names
    assert subprocess.check_output(["git", "status", "--porcelain"], text=True) == status, "the index changed"
    patch = WORKSPACE / PATCH
    assert lineage.patch_md5 == path_md5(patch)
    clone = tmp_path_factory.mktemp("clone")
    git("clone", "-q", str(project), str(clone), cwd=project)
    git("apply", str(patch.absolute()), cwd=clone)
    for name in names:
        file = project / name
        assert (clone / name).exists() == file.exists()
        if file.exists():
            assert (clone / name).read_bytes() == file.read_bytes()
    git("checkout", "-q", "--", ".", cwd=project)
    (project / "tasks" / "new [1].py").unlink()
    assert record(plan, "prepare").patch_md5 is None
    assert not patch.exists()


def test_the_users_git_settings_do_not_change_the_patch(project: Path) -> None:
    names = change_files(project)
    patch = make_patch(names)
    for key, value in {"color.ui": "always", "diff.noprefix": "true", "diff.relative": "true"}.items():
        git("config", key, value, cwd=project)
    assert make_patch(names) == patch


@pytest.mark.parametrize("commits", [0, 1])
def test_a_repository_within_this_one_makes_no_patch(project: Path, commits: int) -> None:
    (project / "inner").mkdir()
    git("init", "-q", cwd=project / "inner")
    (project / "inner" / "a.py").write_text("a = 1\n")
    for key, value in {"user.name": "t", "user.email": "t@t"}.items():
        git("config", key, value, cwd=project / "inner")
    if commits:
        commit(project / "inner", "the inner code")
    (project / "tasks/stages/train.py").write_text("changed\n")  # so that there is some difference
    lineage = record(make_plan(), "prepare")
    assert lineage.code.uncommitted is not None
    assert {Path(file).parts[0] for file in lineage.code.uncommitted} == {"inner", "tasks"}
    assert (lineage.patch_md5, (WORKSPACE / PATCH).exists()) == (None, False)


@pytest.mark.heavy
def test_more_files_than_a_command_can_name_make_no_patch(project: Path) -> None:
    (project / "new.py").touch()
    long_name = "./" * 2000 + "new.py"
    assert make_patch([long_name])
    assert make_patch([long_name] * 2000) is None


def test_what_git_does_not_say_is_recorded_as_unknown(project: Path) -> None:
    (project / "new.py").touch()
    (project / ".git" / "index").write_bytes(b"no index")
    lineage = record(make_plan(), "prepare")
    assert (lineage.code.commit, lineage.code.uncommitted) == (head_commit(), None)
    assert lineage.patch_md5 is None
    assert provenance(envs=[], uncommitted=uncommitted_files())["git.dirty"] == "unknown"
    assert format_code(lineage.code).endswith("; whether all code was committed is unknown")


def test_a_patch_with_a_secret_is_not_written(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "c4n4ry-of-this-test")
    (project / "tasks" / "mine.py").write_text("TOKEN = 'c4n4ry-of-this-test'\n")
    lineage = record(make_plan({"description": "c4n4ry-of-this-test"}), "prepare")
    assert (lineage.code.uncommitted, lineage.patch_md5) == (("tasks/mine.py",), None)
    assert not (WORKSPACE / PATCH).exists()
    assert "c4n4ry" not in (WORKSPACE / LINEAGE).read_text()
    assert lineage.has_secrets


def test_data_that_has_a_hash_is_no_uncommitted_change(project: Path) -> None:
    rows = Path("data/mine.jsonl")
    rows.write_text(json.dumps({"question": "1 + 1?", "answer": "2"}) + "\n")
    parts = {"mine": {"env": "question", "train": str(rows), "test": str(rows)}}
    plan = make_plan({"data.parts": parts, "agent.reward": "string_equal"})
    lineage = record(plan, "prepare")
    assert lineage.code.uncommitted == ()
    assert lineage.data[str(rows)] == path_md5(rows)
    assert uncommitted_files() == [str(rows)]


def test_a_prompt_is_listed_with_its_hash_and_its_text_is_in_the_patch(project: Path) -> None:
    prompt = Path("brief.md")
    prompt.write_text("Be brief.\n")
    lineage = record(make_plan({"agent.prompt": str(prompt)}), "prepare")
    assert lineage.prompts == {"brief.md": path_md5(prompt)}
    assert lineage.code.uncommitted == ("brief.md",)
    assert "+Be brief." in (WORKSPACE / PATCH).read_text()


@pytest.mark.parametrize("place", ["beside", "within"])
def test_the_code_of_ones_own_environment_is_listed_with_its_hash(
    project: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    folder = project if place == "within" else tmp_path_factory.mktemp(place)
    module = f"own_environment_{place}"
    file = folder / f"{module}.py"
    shutil.copy(ROOT / "tests" / "support" / "own_env.py", file)
    monkeypatch.syspath_prepend(folder)
    env = f"{module}:SPEC"
    plan = make_plan({"data.parts": {env: {}}, "warmup": None})
    path = file.name if place == "within" else str(file)
    assert record(plan, "prepare").environments[env].code == {path: path_md5(file)}


def test_outside_of_a_repository_there_is_no_commit(project: Path) -> None:
    shutil.rmtree(".git")
    lineage = record(make_plan(), "prepare")
    assert (lineage.code.commit, lineage.code.uncommitted) == (None, None)


def stage_elsewhere(name: str, workspace: str, overrides: Mapping[str, Any] | None = None) -> Stage:
    """In another workspace, with the items of the first and no outputs."""
    pipeline, folder = load_pipeline(NAME, overrides=dict(overrides or {})), Path("runs") / workspace
    shutil.copytree(WORKSPACE / "data", folder / "data")
    return declared_stages(NAME, pipeline=pipeline, workspace=folder)[name]


def test_a_warm_up_from_the_same_inputs_is_copied_from_the_workspace_beside(project: Path) -> None:
    record(make_plan(), "prepare", "warmup")
    stage = stage_elsewhere("warmup", "other-lr", {"train.lr": 0.25})  # which the warm-up does not use
    assert copy_outputs(stage, stage_key(stage)) == WORKSPACE
    assert path_md5(stage.workspace / "warmup") == path_md5(WORKSPACE / "warmup")


def test_a_warm_up_from_other_inputs_is_not_copied(project: Path) -> None:
    record(make_plan(), "prepare", "warmup")
    stage = stage_elsewhere("warmup", "other-seed", {"seed": 7})
    assert copy_outputs(stage, stage_key(stage)) is None
    stage = stage_elsewhere("prepare", "same")  # takes less time than to look for it
    assert copy_outputs(stage, stage_key(stage)) is None


def test_a_warm_up_is_not_copied_over_itself(project: Path) -> None:
    """As where Prefect has lost its receipt: the stage runs again, and what it wrote stays until then."""
    record(make_plan(), "prepare", "warmup")
    stage, before = make_plan().stages["warmup"], path_md5(WORKSPACE / "warmup")
    assert copy_outputs(stage, stage_key(stage)) is None
    assert path_md5(WORKSPACE / "warmup") == before
    other = stage_elsewhere("warmup", "other")
    assert copy_outputs(other, stage_key(other)) == WORKSPACE


def test_a_warm_up_that_was_changed_since_is_not_copied(project: Path) -> None:
    record(make_plan(), "prepare", "warmup")
    (WORKSPACE / "warmup" / "added").touch()
    stage = stage_elsewhere("warmup", "other")
    assert copy_outputs(stage, stage_key(stage)) is None
    shutil.rmtree(WORKSPACE / "warmup")
    assert copy_outputs(stage, stage_key(stage)) is None


def test_a_warm_up_that_cannot_be_read_is_not_copied(project: Path) -> None:
    """As where another run replaces it meanwhile."""
    (WORKSPACE / "warmup").mkdir(parents=True, exist_ok=True)
    (WORKSPACE / "warmup" / "gone").symlink_to("nowhere")
    record(make_plan(), "prepare", "warmup")
    stage = stage_elsewhere("warmup", "other")
    assert copy_outputs(stage, stage_key(stage)) is None
