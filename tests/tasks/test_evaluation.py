"""Any policy on any environment, and the paired comparison of two evaluations, with numbers done by hand."""

import inspect
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect.exceptions import ParameterTypeError
from typer.testing import CliRunner, Result

from agents.clients.endpoint import Endpoint
from agents.types import Trajectory
from envs.errors import ConfigError
from envs.files import write_json
from envs.types import Item
from flows.cli.command_line import app
from flows.cli.episodes import evaluate as evaluate_command
from flows.evaluate_policy import evaluate_policy as evaluation_flow
from flows.program import PROGRAM
from tasks.config.parameters import changed_parameters, write_changes
from tasks.config.pipelines import load_pipeline
from tasks.data.hashes import path_md5
from tasks.data.items import split
from tasks.data.trajectories import read_trajectories, write_trajectories
from tasks.evaluation.evaluate import MAX_HASHED_BYTES, default_folder, evaluate_policy, plan_evaluation
from tasks.evaluation.intervals import wilson
from tasks.evaluation.models import NamedPolicy, SavedPolicy, find_policy
from tasks.evaluation.pass_at_k import pass_rates
from tasks.evaluation.record import EvaluationRecord, read_record
from tasks.evaluation.request import EvaluationPlan, EvaluationRequest, make_evaluation, make_pipeline
from tasks.evaluation.summary import outcome_of, results_of
from tasks.reporting.comparison.compare import compare
from tasks.runs.progress import Progress
from tasks.runs.provenance import MAX_PATCH_BYTES
from tasks.verl import checkpoints
from tests.support.chat_server import chat_server, fails, says
from tests.support.dvc_toy import git
from tests.support.evaluation_toy import FIRST, record_of
from tests.support.report_toy import make_failure, make_trajectory
from tests.support.tiny_model import claim_parameters, save_tiny_model
from tests.support.waiting import wait_until

SAY = "tests.support.own_env:SPEC"
"""Its test items are numbers, 6 and 7, that are to be said."""
ROOT = Path(__file__).parents[2]
MODEL = Path("models/textcraft-base")
NOBODY = ["http://127.0.0.1:9/v1", "--model", "toy"]


def wingspan(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def number_in(body: Any) -> int:
    return int(body["messages"][-1]["content"].rstrip(".").split()[-1])


def says_6_always_and_7_half_the_time() -> Callable[[Any], Any]:
    calls = count()

    def script(body: Any) -> Any:
        number = number_in(body)
        return says(f"Action: {number if number == 6 or next(calls) % 2 == 0 else 0}")

    return script


# --- an endpoint: rates by hand


def test_an_endpoint_is_evaluated_and_every_rate_is_right(tmp_path: Path) -> None:
    with chat_server(says_6_always_and_7_half_the_time()) as server:
        done = wingspan(
            "evaluate", server.url, SAY, "--model", "toy", "--samples", 4, "--temperature", 0.7,
            "--max-turns", 1, "--out", tmp_path,
        )  # fmt: skip
    assert done.exit_code == 0, done.output
    record = read_record(tmp_path)
    assert record.policy == {"name": "toy", "endpoint": server.url}
    assert record.seed is None
    assert (record.sampling.samples, record.sampling.temperature) == (4, 0.7)
    assert {body["temperature"] for body in server.requests} == {0.7}
    assert [(outcome.item, sum(outcome.successes), outcome.max_turns) for outcome in record.outcomes] == [
        (f"{SAY}_6", 4, 1),
        (f"{SAY}_7", 2, 1),
    ]
    # Item 7: 2 of 4. pass@2 = 1 - C(2,2)/C(4,2) = 5/6, pass^2 = C(2,2)/C(4,2) = 1/6; pass@4 = 1, pass^4 = 0.
    rates = record.overall.rates
    means = {name: rate.mean for name, rate in rates.items() if name not in ("reward", "turns")}
    assert means == pytest.approx(
        {"avg_at_4": 0.75, "pass_at_2": 11 / 12, "pass_hat_2": 7 / 12, "pass_at_4": 1.0, "pass_hat_4": 0.5}
    )
    assert (rates["avg_at_4"].low, rates["avg_at_4"].high) == wilson(0.75, n=2)
    header, row, *_ = [
        line for line in done.output.splitlines() if "avg@4" in line or line.startswith("all ")
    ]
    assert header.split()[-7:] == ["avg@4", "pass@2", "pass^2", "pass@4", "pass^4", "reward", "turns"]
    assert row.split()[:5] == ["all", "2", "8", "0", "75.0%"]
    assert len(read_trajectories(tmp_path / "trajectories.jsonl")) == 8


def plan_and_evaluate(
    request: EvaluationRequest, policy: SavedPolicy | Endpoint, *, out: Path
) -> EvaluationRecord:
    return evaluate_policy(plan_evaluation(request, policy, out=out), policy, out=out)


@pytest.mark.heavy
def test_a_killed_evaluation_resumes_and_one_at_work_is_not_disturbed(tmp_path: Path) -> None:
    is_overloaded = True

    def script(body: Any) -> Any:
        number = number_in(body)
        if number == 7 and is_overloaded:
            return fails(503, "busy", **{"Retry-After": "600"})
        return says(f"Action: {number}")

    def has_ended(number: int, samples: int) -> bool:
        lines = [line for file in tmp_path.glob("*.partial") for line in file.read_text().splitlines()]
        return sum(f'"item_id": "{SAY}_{number}"' in line for line in lines) == samples

    with chat_server(script) as server:
        arguments = ["evaluate", server.url, SAY, *f"--model toy --samples 3 --out {tmp_path}".split()]
        process = subprocess.Popen([*PROGRAM, *arguments], stderr=subprocess.PIPE, text=True)
        try:
            wait_until(lambda: has_ended(6, samples=3))
            refused = wingspan(*arguments)
        finally:
            process.kill()
            _, errors = process.communicate()
        assert str(refused.exception) == (
            f"{tmp_path} is in use by process {process.pid}; wait for it, stop it, or give another --out"
        )
        assert (
            f"the process died unexpectedly; the same command resumes: wingspan evaluate {server.url}"
            in errors
        )
        is_overloaded = False
        done = wingspan(*arguments)
        assert done.exit_code == 0, done.output
    assert [number_in(body) for body in server.requests].count(6) == 3
    assert [outcome.successes for outcome in read_record(tmp_path).outcomes] == [[True] * 3] * 2
    assert len(read_trajectories(tmp_path / "trajectories.jsonl")) == 6
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.heavy
def test_outside_of_a_repository_a_stopped_evaluation_says_that_it_begins_anew(tmp_path: Path) -> None:
    with chat_server(lambda body: fails(503, "busy", **{"Retry-After": "600"})) as server:
        arguments = ["evaluate", server.url, SAY, "--model", "toy", "--out", "evaluation"]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "GIT_CEILING_DIRECTORIES": str(tmp_path.parent)}
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            [*PROGRAM, *arguments], cwd=tmp_path, env=environment, stdout=pipe, stderr=pipe, text=True
        )
        assert process.stdout is not None
        note = "so this evaluation begins anew and cannot be resumed"
        assert any(note in line for line in iter(process.stdout.readline, ""))
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    command = f"wingspan evaluate {server.url} {SAY} --model toy --out evaluation"
    assert errors == f"stopped; outside of a Git repository, the same command begins anew: {command}\n"


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, a Git repository with one commit."""
    folder = tmp_path / "repository"
    git("init", "-q", str(folder), cwd=tmp_path)
    identity = ("-c", "user.name=t", "-c", "user.email=t@t")
    git(*identity, "commit", "-q", "--allow-empty", "-m", "first", cwd=folder)
    monkeypatch.chdir(folder)
    return folder


def begin(policy: SavedPolicy | Endpoint) -> str:
    """Evaluate until the first of forty episodes ends, of which sixteen run at once; returns the note."""
    notes: list[str] = []

    def stop(done: int, total: int) -> None:
        raise RuntimeError("stopped")

    out = Path("out")
    plan = plan_evaluation(EvaluationRequest(envs=(SAY,), samples=20), policy, out=out)
    with pytest.raises(RuntimeError, match="stopped"):
        evaluate_policy(plan, policy, out=out, progress=Progress(on_episodes=stop, on_note=notes.append))
    return " ".join(notes)


def is_resumed(policy: SavedPolicy | Endpoint) -> bool:
    """Whether it says so; else it says that it begins anew, or is the first."""
    note = begin(policy)
    if re.fullmatch("resumes: .+ of 40 episodes had ended", note):
        return True
    assert not note or re.fullmatch("begins anew: an interrupted evaluation .+, or other code", note)
    return False


def test_an_evaluation_resumes_if_its_uncommitted_files_are_the_same(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = repository / ".git" / "commands"
    monkeypatch.setenv("GIT_TRACE", str(commands))
    with chat_server(lambda body: says("Action: 6")) as server, Path("rows.bin").open("wb") as rows:
        policy = find_policy(NamedPolicy(policy=server.url, model="toy"))
        rows.truncate(MAX_PATCH_BYTES + 1)
        assert not is_resumed(policy)
        assert commands.read_text().count("git status") == 1
        assert is_resumed(policy)
        rows.write(b"1")
        rows.flush()
        assert begin(policy).startswith("begins anew: ")
        Path(".git", "index").write_bytes(b"no index")
        unknown = (
            "Git does not list the uncommitted files, so this evaluation begins anew and cannot be resumed; "
            "check `git status`"
        )
        assert (begin(policy), begin(policy)) == (unknown, unknown)


def test_of_links_large_files_and_inner_repositories_only_what_is_code_is_read(
    repository: Path, tmp_path: Path
) -> None:
    elsewhere, large_file, link = tmp_path / "elsewhere", Path("rows.bin"), Path("data")
    elsewhere.mkdir()
    link.symlink_to(elsewhere)
    git("init", "-q", "inner", cwd=repository)
    code = Path("inner", "code.py")
    code.write_text("a = 1\n")
    with large_file.open("wb") as rows:
        rows.truncate(MAX_HASHED_BYTES + 1)

    def write(content: bytes, *, at_s: int) -> None:
        with large_file.open("r+b") as rows:
            rows.write(content)
        os.utime(large_file, (at_s, at_s))

    write(b"1", at_s=1)
    with chat_server(lambda body: says("Action: 6")) as server:
        policy = find_policy(NamedPolicy(policy=server.url, model="toy"))
        assert not is_resumed(policy)
        (elsewhere / "rows.jsonl").touch()
        Path("inner", ".git", "commands").touch()
        write(b"2", at_s=1)
        assert is_resumed(policy)
        write(b"2", at_s=2)
        assert not is_resumed(policy)
        code.write_text("a = 2\n")
        assert not is_resumed(policy)
        link.unlink()
        link.symlink_to(repository)
        assert not is_resumed(policy)


def test_a_file_that_cannot_be_read_is_named(repository: Path) -> None:
    name = "a" * 300  # longer than a file system allows, so that every question about it fails
    empty = "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"  # the hash of a file without content
    git("update-index", "--add", "--cacheinfo", f"100644,{empty},{name}", cwd=repository)
    with chat_server(lambda body: says("Action: 6")) as server:
        note = begin(find_policy(NamedPolicy(policy=server.url, model="toy")))
    assert note.startswith(f"{name} cannot be read (File name too long), so this evaluation begins anew")


def test_a_finished_evaluation_that_is_not_recorded_outlives_edits(repository: Path) -> None:
    out = Path("out")
    with chat_server(lambda body: says("Action: 6")) as server:
        policy = find_policy(NamedPolicy(policy=server.url, model="toy"))
        plan = plan_evaluation(EvaluationRequest(envs=(SAY,)), policy, out=out)
        record = evaluate_policy(plan, policy, out=out, is_tracked=True)
        Path("notes.txt").touch()
        assert evaluate_policy(plan, policy, out=out, is_tracked=True) == record
        assert len(server.requests) == 2
        # A kill left this: not all trajectories are in their place.
        Path(out, "trajectories.jsonl").rename(out / "trajectories.jsonl.0.partial")
        assert evaluate_policy(plan, policy, out=out, is_tracked=True).provenance["git.dirty"] == "true"
    assert len(server.requests) == 4
    assert len(read_trajectories(out / "trajectories.jsonl")) == 2


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    policy = find_policy(NamedPolicy(policy="http://127.0.0.1:1", model="toy"))
    (tmp_path / "notes.md").touch()
    with pytest.raises(ConfigError, match=f"^folder {tmp_path} holds files of something else; give an empty"):
        plan_evaluation(EvaluationRequest(envs=(SAY,)), policy, out=tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["notes.md"]


def test_failed_episodes_are_counted_and_are_no_zeros(tmp_path: Path) -> None:
    calls = count()

    def script(body: Any) -> Any:
        number = number_in(body)
        return fails(400, "no") if number == 7 and next(calls) % 2 else says(f"Action: {number}")

    with chat_server(script) as server:
        comparison = find_policy(NamedPolicy(policy=server.url, model="toy"))
        request = EvaluationRequest(
            envs=(SAY,), samples=2, max_turns=1, overrides={"rollout.max_attempts": 1}
        )
        record = plan_and_evaluate(request, comparison, out=tmp_path)
    overall = record.overall
    assert (overall.items, overall.episodes, overall.failed) == (2, 3, 1)
    assert record.outcomes[1].failures == {"SamplerFailed": 1}
    assert overall.rates["avg_at_2"].mean == 1.0
    assert (overall.rates["pass_hat_2"].mean, overall.rates["pass_hat_2"].items) == (1.0, 1)


def test_if_every_episode_fails_there_are_no_rates_and_the_status_says_so(tmp_path: Path) -> None:
    with chat_server(lambda _: fails(400, "no")) as server:
        done = wingspan(
            "evaluate",
            server.url,
            SAY,
            "--model",
            "toy",
            "--set",
            "rollout.max_attempts=1",
            "--out",
            tmp_path,
        )
    assert done.exit_code == 1, done.output
    assert read_record(tmp_path).overall.rates == {}


# --- a policy on this machine


@pytest.mark.heavy
def test_a_record_holds_what_repeats_it_also_after_an_interruption(tmp_path: Path) -> None:
    request = EvaluationRequest(
        envs=("textcraft",),
        where={"depth": [1, 2]},
        items=4,
        samples=2,
        max_turns=2,
        overrides={"agent.instructions": False, "rollout.max_tokens_per_turn": 24},
    )
    policy = find_policy(NamedPolicy(policy=str(MODEL)))
    first = plan_and_evaluate(request, policy, out=tmp_path / "a")
    assert first == read_record(tmp_path / "a")
    assert first.policy["md5"] == path_md5(MODEL)
    assert first.provenance["version.textcraft"]
    assert first.results["depth"].keys() == {"1", "2"}
    assert [o.item for o in first.outcomes] == [
        item.item_id for item in make_evaluation(request, policy).items
    ]
    again = EvaluationRequest(
        envs=tuple(part["env"] for part in first.settings["data"]["parts"].values()),
        where=request.where,
        items=len(first.outcomes),
        samples=first.sampling.samples,
        temperature=first.sampling.temperature,
        max_turns=first.outcomes[0].max_turns,
        seed=first.seed,
        overrides={"agent": first.settings["agent"], "rollout": first.settings["rollout"]},
    )
    plan = plan_evaluation(again, policy, out=tmp_path / "b")

    def interrupt(done: int, total: int) -> None:
        if done == 3:
            raise RuntimeError("interrupted")

    with pytest.raises(RuntimeError, match="interrupted"):
        evaluate_policy(plan, policy, out=tmp_path / "b", progress=Progress(on_episodes=interrupt))
    (partial,) = (tmp_path / "b").glob("*.partial")
    episodes = partial.read_text().splitlines()[:3]
    partial.write_text("\n".join(episodes) + '\n{"item": {"item')  # as a kill leaves it
    second = evaluate_policy(plan, policy, out=tmp_path / "b")
    assert (tmp_path / "b" / "trajectories.jsonl").read_text().splitlines()[:3] == episodes
    assert not partial.exists()
    assert second.model_copy(update={"seconds": first.seconds}) == first

    def tokens(folder: str) -> list[Any]:
        episodes = read_trajectories(tmp_path / folder / "trajectories.jsonl")
        return sorted(
            (t.item.item_id, t.sample_index, *(tuple(x.completion.token_ids) for x in t.turns))
            for t in episodes
        )

    assert tokens("a") == tokens("b")


def test_a_tiny_model_is_evaluated_with_the_defaults(tmp_path: Path) -> None:
    model = save_tiny_model(tmp_path / "tiny")
    done = wingspan(
        "evaluate",
        model,
        SAY,
        "--max-turns",
        1,
        "--set",
        "rollout.max_tokens_per_turn=8",
        "--out",
        tmp_path / "out",
    )
    assert done.exit_code == 0, done.output
    record = read_record(tmp_path / "out")
    assert record.pipeline is None
    assert record.sampling.context_length == 512  # the model's, which is below the default
    assert record.overall.episodes == 2


def test_a_policy_of_a_run_is_evaluated_with_the_settings_of_the_run(tmp_path: Path) -> None:
    workspace = tmp_path / "run"
    shutil.copytree(MODEL, workspace / "policy")
    write_changes(workspace, name="textcraft-cpu", changes={"rollout.top_k": (0, 5), "train.lr": (3e-4, 1.0)})
    plan = make_evaluation(
        EvaluationRequest(envs=("textcraft",)), find_policy(NamedPolicy(policy=str(workspace)))
    )
    assert plan.source == "textcraft-cpu"
    assert (plan.pipeline.rollout.top_k, plan.pipeline.agent.instructions) == (5, False)
    assert set(plan.spec.max_turns) == {"one-step", "two-step", "deeper"}
    assert set(plan.spec.max_turns.values()) == {26}
    other_format = make_evaluation(
        EvaluationRequest(envs=("babyai",), format="react"), find_policy(NamedPolicy(policy=str(workspace)))
    )
    assert {item.env for item in other_format.items} == {"babyai"}
    assert other_format.pipeline.agent.format == "react"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rollout.curriculum", None),
        ("agent.reward", {"environment": 1.0}),
        ("agent.reward", {"environment": 0.5, "think_format": 0.1}),
        ("agent.reward", None),
        ("agent.reward", "success"),
        ("rollout.final_temperature", None),
    ],
)
def test_a_run_that_took_something_out_of_its_pipeline_is_evaluated_with_its_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, value: object
) -> None:
    """As its flow records the changes, and its report all parameters."""
    document = yaml.safe_load(Path("pipelines.yaml").read_text())
    values = document["pipelines"]["textcraft-cpu"]
    values["rollout"] |= {"curriculum": {"hard": 0.5}, "final_temperature": 0.5}
    values["agent"]["reward"] = {"environment": 1.0, "length": 0.1}
    monkeypatch.chdir(tmp_path)
    Path("pipelines.yaml").write_text(yaml.safe_dump(document))
    pipeline = load_pipeline("textcraft-cpu", overrides={key: value})
    workspace = Path("run")
    changes = changed_parameters(pipeline, default=load_pipeline("textcraft-cpu"))
    write_changes(workspace, name="textcraft-cpu", changes=changes)
    write_json(workspace / "report" / "parameters.json", pipeline.model_dump(mode="json"))
    source, evaluated = make_pipeline(
        EvaluationRequest(envs=("textcraft",)),
        SavedPolicy(name="run", folder=workspace / "policy", workspace=workspace),
    )
    assert source == "textcraft-cpu"
    assert (evaluated.rollout, evaluated.agent) == (pipeline.rollout, pipeline.agent)


def test_a_policy_of_a_run_is_evaluated_on_the_data_of_the_run(tmp_path: Path) -> None:
    name, workspace = "textcraft-cpu", tmp_path / "run"
    shutil.copytree(MODEL, workspace / "policy")
    parts = {"easy": {"env": "textcraft", "where": {"depth": [1]}, "max_turns": 7}}
    overrides = {"data.parts": parts, "data.split_seed": 3}
    trained = load_pipeline(name, overrides=overrides)
    write_changes(workspace, name=name, changes=changed_parameters(trained, default=load_pipeline(name)))
    write_json(
        workspace / "train" / "inputs.json", {"params": {"data": trained.model_dump(mode="json")["data"]}}
    )

    def plan(**options: Any) -> EvaluationPlan:
        request = EvaluationRequest(envs=("textcraft",), **options)
        return make_evaluation(request, find_policy(NamedPolicy(policy=str(workspace))))

    items = split(trained.data).test
    assert {item.metadata["depth"] for item in items} == {1}
    assert plan().items == items
    assert plan().spec.max_turns == {"easy": 7}
    two_depths = plan(overrides={"data.parts.easy.where": {"depth": [1, 2]}})
    assert {item.metadata["depth"] for item in two_depths.items} == {1, 2}
    assert {item.metadata["depth"] for item in plan(pipeline=name).items} == {1, 2, 3, 4}


def test_a_policy_that_does_not_fit_the_memory_is_refused_before_anything_starts(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "policy")
    policy = find_policy(NamedPolicy(policy=str(folder)))
    request = EvaluationRequest(envs=("textcraft",), overrides={"rollout.max_tokens_per_turn": 8})
    plan_evaluation(request, policy, out=tmp_path / "out")
    claim_parameters(folder, 10**12)
    with pytest.raises(
        ConfigError, match=r"policy needs about 4000\.\d GB to sample, and this machine has .*"
    ):
        plan_evaluation(request, policy, out=tmp_path / "out")


def test_checkpoints_are_found_by_run_step_and_folder(tmp_path: Path) -> None:
    workspace = tmp_path / "run"
    for step in (2, 4):
        folder = checkpoints.policy_folder(workspace / "train" / "checkpoints", step=step)
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
        checkpoints.mark_complete(workspace / "train" / "checkpoints", step=step)
    checkpoint_folder = workspace / "train" / "checkpoints"
    last = checkpoints.policy_folder(checkpoint_folder, step=4)
    policy_of_step = SavedPolicy(name="", folder=last, workspace=workspace, step=4)

    def find(name: Path, step: int | None = None) -> SavedPolicy:
        policy = find_policy(NamedPolicy(policy=str(name), step=step))
        assert isinstance(policy, SavedPolicy)
        return policy

    for policy in (
        find(workspace),
        find(workspace, 4),
        find(checkpoint_folder / "global_step_4"),
        find(last),
    ):
        assert (policy.folder, policy.workspace, policy.step) == (last, workspace, policy_of_step.step)
    with pytest.raises(ConfigError, match="complete checkpoints of the steps 2, 4"):
        find(workspace, 3)
    (workspace / "policy").mkdir()
    (workspace / "policy" / "config.json").write_text("{}")
    assert (find(workspace).folder, find(workspace).step) == (workspace / "policy", None)
    shutil.copytree(workspace / "policy", workspace / "train" / "best")
    assert {find(workspace / name).workspace for name in ("policy", "train/best")} == {workspace}
    assert find(workspace / "train" / "best").step is None


@pytest.mark.parametrize("folder", ["global_step_120_hf/model", "checkpoints/project/global_step_120/actor"])
def test_a_policy_of_another_trainer_is_no_checkpoint_of_a_run(tmp_path: Path, folder: str) -> None:
    (tmp_path / folder).mkdir(parents=True)
    (tmp_path / folder / "config.json").write_text("{}")
    policy = find_policy(NamedPolicy(policy=str(tmp_path / folder)))
    assert isinstance(policy, SavedPolicy)
    assert (policy.folder, policy.workspace, policy.step) == (tmp_path / folder, None, None)
    with pytest.raises(ConfigError, match=r"no policy in .*: it has no config\.json, and is no folder"):
        find_policy(NamedPolicy(policy=str((tmp_path / folder).parent)))


def test_a_model_of_a_hub_is_taken_from_its_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants as hub

    monkeypatch.setattr(hub, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(hub, "HF_HUB_OFFLINE", True)
    cache = tmp_path / "models--someone--tiny"
    (cache / "refs").mkdir(parents=True)
    (cache / "refs" / "main").write_text("0" * 40)
    save_tiny_model(cache / "snapshots" / ("0" * 40))
    policy = find_policy(NamedPolicy(policy="someone/tiny"))
    assert isinstance(policy, SavedPolicy)
    assert (policy.folder / "config.json").exists()
    with pytest.raises(ConfigError, match="'someone/other' is not a folder, and asking the hub"):
        find_policy(NamedPolicy(policy="someone/other"))


def test_only_an_agent_that_writes_its_own_prompts_has_no_instructions_by_default() -> None:
    policy = Endpoint("http://127.0.0.1:9/v1", "one")
    for format, has_instructions in ((None, True), ("react", True), ("my_agents:Silent", False)):
        plan = make_evaluation(EvaluationRequest(envs=(SAY,), format=format), policy)
        assert plan.pipeline.agent.instructions is has_instructions


def test_other_policies_and_requests_have_other_folders() -> None:
    policies: list[SavedPolicy | Endpoint] = [
        SavedPolicy(name="runs/a", folder=MODEL),
        SavedPolicy(name="runs/a", folder=MODEL, step=3),
        SavedPolicy(name="runs/b", folder=MODEL),
        Endpoint("http://127.0.0.1:9/v1", "one"),
        Endpoint("http://127.0.0.1:9/v1", "two"),
    ]
    requests = [
        EvaluationRequest(envs=(SAY,)),
        EvaluationRequest(envs=(SAY,), samples=2),
        EvaluationRequest(envs=(SAY,), where={"depth": [1]}),
    ]
    folders = [default_folder(policy, request) for policy in policies for request in requests]
    assert len(set(folders)) == len(folders)
    assert folders[0] == default_folder(policies[0], EvaluationRequest(envs=(SAY,)))
    assert re.fullmatch(r"runs/evaluations/runs-a-tests-support-own-env-SPEC-\w{8}", str(folders[0]))


# --- mistakes


@pytest.mark.parametrize(
    ("arguments", "phrase"),
    [
        (["models/none", "textcraft"], "no policy 'models/none': there is no such folder"),
        (["docs", "textcraft"], "no policy in 'docs': it has no config.json"),
        ([MODEL, "textcarft"], "did you mean 'textcraft'"),
        ([MODEL, "textcraft", "textcraft"], "textcraft is given twice"),
        ([MODEL, "textcraft", "--samples", 2, "--k", 4], "--k 4: pass@k needs k samples of each item"),
        ([MODEL, "textcraft", "--samples", 2, "--temperature", 0], "at temperature 0 they are all alike"),
        ([MODEL, "textcraft", "--where", "depth=9"], "leaves none of the 100 test items"),
        ([MODEL, "textcraft", "--where", "depth"], "--where 'depth' is not KEY=VALUES"),
        ([MODEL, "textcraft", "--split", "tset"], "did you mean 'test'"),
        ([MODEL, "textcraft", "--format", "raect"], "unknown format 'raect'; did you mean 'react'"),
        ([MODEL, "textcraft", "--format", "react"], "there are none; name them in agent.tools"),
        ([MODEL, "textcraft", "--step", 3], f"--step 3: '{MODEL}' is not the folder of a run; give one"),
        (["models/none", "textcraft", "--step", 3], "--step 3: 'models/none' is not the folder of a run"),
        ([MODEL, "textcraft", "--model", "toy"], "--model toy is for endpoints"),
        ([MODEL, "textcraft", "--pipeline", "textcraft-cpy"], "did you mean 'textcraft-cpu'"),
        ([MODEL, "textcraft", "--set", "rollout.top_q=1"], "evaluation.rollout.top_q: unknown key"),
        ([MODEL, "question"], "environment 'question' has no items of its own"),
        ([*NOBODY, "textcraft", "--seed", 1], "--seed 1: an endpoint samples with seeds of its own"),
        ([*NOBODY, "textcraft", "--step", 1], "an endpoint (http://127.0.0.1:9/v1) has no checkpoints"),
        ([NOBODY[0], "textcraft"], "Give --model NAME"),
        ([*NOBODY, "textcraft"], "no endpoint: http://127.0.0.1:9/v1/models"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(arguments: list[object], phrase: str, tmp_path: Path) -> None:
    done = wingspan("evaluate", *arguments, "--out", tmp_path / "out")
    assert isinstance(done.exception, ConfigError), done.output
    assert phrase in str(done.exception)
    assert "\n" not in str(done.exception)
    assert not done.output  # nothing has begun
    assert not (tmp_path / "out" / "record.json").exists()


# --- two evaluations


def test_two_evaluations_are_tested_item_by_item(tmp_path: Path) -> None:
    second = [[1, 1], [1, 1], [1, 1], [1, 0], [1, 1], []]
    record_of(FIRST).write(tmp_path / "a")
    record_of(second, name="other").write(tmp_path / "b")
    write_trajectories(
        tmp_path / "b" / "trajectories.jsonl",
        [make_trajectory(Item(item_id=f"toy_{n}", env="toy"), success=True) for n in (0, 1, 2, 3, 3)],
    )
    comparison, page = compare([tmp_path / "a", tmp_path / "b"], tmp_path / "out")
    tables = {table.title: [[str(cell) for cell in row] for row in table.rows] for table in comparison.tables}
    success = tables["Against a"][0]
    # Differences 1, .5, 0, .5, .5: of the 16 signs of the four, only all + and all - are as far from 0.
    assert success[:6] == ["b", "success", "5", "40.0%", "90.0%", "+50.0"]
    assert success[7] == "0.1250"
    assert [row[1] for row in tables["Against a"]] == ["success", "reward", "turns"]
    only = tables["Solved by b, not by a"]
    assert [(row[0], row[2], row[3]) for row in only] == [
        ("toy_0", "2 of 2", "0 of 2"),
        ("toy_3", "1 of 2", "0 of 2"),
    ]
    assert "http://127.0.0.1:8003/#/run/b/at/evaluation:4" in page.read_text()  # the first of toy_3
    assert comparison.notes == [
        "b has no outcome for 1 of 6 items: every episode of them failed. They are in no test."
    ]
    assert ["policy.name", "policy", "other"] in tables["What differs"]
    assert ["settings.agent.format", "policy", "other"] in tables["What differs"]
    done = wingspan("compare", tmp_path / "a", tmp_path / "b", "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    (row,) = [line.split() for line in done.output.splitlines() if line.startswith("b  success")]
    assert row[:6] == ["b", "success", "5", "40.0%", "90.0%", "+50.0"]
    assert "| b | success | 5 | 40.0% |" in (page.parent / "compare.md").read_text()


@pytest.mark.parametrize(
    ("md5", "differing"),
    [("1" * 32, []), ("2" * 32, [["policy.name", "runs/a", "runs/b"], ["policy.md5", "1" * 32, "2" * 32]])],
)
def test_a_policy_in_another_folder_differs_by_its_content_alone(
    tmp_path: Path, md5: str, differing: list[list[str]]
) -> None:
    for name, content in {"a": "1" * 32, "b": md5}.items():
        policy = {"name": f"runs/{name}", "folder": f"runs/{name}/policy", "md5": content}
        record_of(FIRST).model_copy(update={"policy": policy}).write(tmp_path / name)
    comparison, _ = compare([tmp_path / "a", tmp_path / "b"], tmp_path / "out")
    (differences,) = [table for table in comparison.tables if table.title == "What differs"]
    assert differences.rows == differing


def test_more_evaluations_are_tested_against_the_first(tmp_path: Path) -> None:
    for name, table in {"a": FIRST, "b": [[1, 1]] * 6, "c": [[0, 0]] * 6}.items():
        record_of(table, name=name).write(tmp_path / name)
    comparison, _ = compare([tmp_path / name for name in "abc"], tmp_path / "out")
    (tests,) = [table for table in comparison.tables if table.title == "Against a"]
    rows = {(row[0], row[1]): [str(cell) for cell in row] for row in tests.rows}
    p_values = [float(rows[side, "success"][7]) for side in "bc"]
    # Holm: the smaller of two p-values counts twice, the larger at least as much.
    assert float(rows["bc"[p_values.index(min(p_values))], "success"][8]) == pytest.approx(2 * min(p_values))


@pytest.mark.parametrize(
    ("changes", "phrase"),
    [
        ({"md5": "others"}, "items of one name have other contents"),
        ({"table": FIRST[:5], "md5": "others"}, "(6 and 5; toy_5 is only in the first)"),
        ({"samples": 4}, "samples is 2 and 4"),
        ({"max_turns": 6}, "toy_0 had 5 and 6 turns"),
        ({"table": [[]] * 6}, "no item with outcomes in both"),
    ],
)
def test_evaluations_that_do_not_belong_together_are_refused(
    changes: dict[str, Any], phrase: str, tmp_path: Path
) -> None:
    record_of(FIRST).write(tmp_path / "a")
    record_of(**({"table": FIRST} | changes)).write(tmp_path / "b")
    with pytest.raises(ConfigError) as refusal:
        compare([tmp_path / "a", tmp_path / "b"], tmp_path / "out")
    assert phrase in str(refusal.value)
    assert not (tmp_path / "out").exists()


def test_a_run_is_not_compared_with_an_evaluation(tmp_path: Path) -> None:
    record_of(FIRST).write(tmp_path / "a")
    (tmp_path / "b" / "data").mkdir(parents=True)
    (tmp_path / "b" / "data" / "train.jsonl").write_text("")
    done = wingspan("compare", tmp_path / "a", tmp_path / "b")
    assert isinstance(done.exception, ConfigError)
    assert "b is no evaluation, and others are" in str(done.exception)
    (tmp_path / "b" / "record.json").write_text('{"policy": 3}')
    with pytest.raises(ConfigError, match=r"record.json is no record of `wingspan evaluate`: policy"):
        read_record(tmp_path / "b")


# --- the rest


def test_the_stage_has_the_same_rates() -> None:
    items = [Item(item_id=f"toy_{index}", env="toy") for index in range(2)]
    groups: list[list[Trajectory]] = [
        [make_trajectory(items[0], success=bool(ok)) for ok in (1, 0, 0, 1)],
        [
            *(make_trajectory(items[1], success=True) for _ in range(3)),
            make_failure(items[1], error="EnvCrashed: x"),
        ],
    ]
    results = results_of([outcome_of(g, max_turns=3) for g in groups], samples=4, ks=[2, 4])
    rates = {name: rate.mean for name, rate in results["all"]["all"].rates.items() if name.startswith("pass")}
    assert pass_rates(groups) == rates
    assert rates["pass_at_2"] == pytest.approx((5 / 6 + 1) / 2)
    assert rates["pass_hat_4"] == 0.0  # of the first item alone


def test_groups_are_in_the_order_of_their_values() -> None:
    kinds: list[object] = [10, "b", 9, "a", None, 10.0, [1], "10"]  # 10.0 is 10
    groups = [
        [make_trajectory(Item(f"toy_{index}", env="toy", metadata={"kind": kind}), success=False)]
        for index, kind in enumerate(kinds)
    ]
    results = results_of([outcome_of(group, max_turns=3) for group in groups], samples=1, ks=[])
    counts = [(kind, result.items) for kind, result in results["kind"].items()]
    assert counts == [("9", 1), ("10", 3), ("a", 1), ("b", 1)]


def test_the_flows_parameters_are_the_commands_options() -> None:
    names = {"env": "envs", "k": "ks", "settings": "overrides"}
    options = {names.get(name, name) for name in inspect.signature(evaluate_command).parameters}
    assert evaluation_flow.parameters.properties.keys() == options
    assert evaluation_flow.parameters.required == ["policy", "envs"]
    values = {"policy": "runs/a", "envs": [SAY]}
    assert evaluation_flow.validate_parameters(values)["envs"] == (SAY,)
    with pytest.raises(ParameterTypeError, match="samples: Input should be a valid integer"):
        evaluation_flow.validate_parameters({**values, "samples": "many"})
