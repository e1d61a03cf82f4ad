"""A sweep: its runs and their names, what is refused, what runs side by side, and which policy is promoted.

Runs are scripts here; what a real one does, `tests/flows/test_flow.py` shows.
"""

import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from envs.errors import ConfigError, WingspanError
from envs.files import write_atomically
from flows.cli.command_line import app
from flows.cli.options import parse_axes, parse_seeds
from flows.commands.sweep_costs import list_sweep_costs, total_seconds
from flows.lineage.stages import claim_checkpoints, declared_stages
from flows.lock import lock
from flows.plan import check_workers, find_disk_need
from flows.sweep.flow import LOG, RunState, conclude, describe, run_all, sweep
from flows.sweep.plan import SweepPlan, SweepRun, plan_sweep
from tasks.config.parameters import write_changes
from tasks.config.pipelines import load_pipeline
from tasks.evaluation.outcomes import OUTCOMES
from tasks.stages.prepare import prepare
from tasks.tracking.connection import connect
from tasks.tracking.tracker import Tracker
from tasks.verl.checkpoints import checkpoint_folder, mark_complete
from tests.support.project import enter_linked_project
from tests.support.report_toy import SAMPLE_SUCCESSES, write_workspace
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
NAME = "textcraft-cpu"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    enter_linked_project(tmp_path, monkeypatch)
    (tmp_path / "models").symlink_to(ROOT / "models")
    # MLflow keeps the connection of a relative address, whose file another test may have left elsewhere.
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    return tmp_path


def plan(*axes: str, seeds: Sequence[int] | None = None, **options: Any) -> SweepPlan:
    """Of the command line's `--vary`."""
    return plan_sweep(NAME, seeds=seeds, axes=parse_axes(list(axes)), **{"settings": {}, **options})


# --- the plan


def test_every_seed_has_every_combination_in_a_workspace_of_its_own(project: Path) -> None:
    sweep_plan = plan(
        "train.lr=1e-3,1e-4", "horizon.max_turns=[4,5],[6]", seeds=[3, 4], settings={"train.steps": 6}
    )
    assert len(sweep_plan.runs) == 8 == len({run.workspace for run in sweep_plan.runs})
    assert [run.overrides["seed"] for run in sweep_plan.runs] == [3] * 4 + [4] * 4
    names = [run.name for run in sweep_plan.runs]
    assert names[0].startswith("lr=0.001,max_turns=")
    assert names[0].endswith("-seed3")
    assert sweep_plan.runs[0].workspace == Path("runs/sweeps", NAME, names[0])
    values = {
        (
            run.pipeline.train.lr,
            tuple(run.pipeline.horizon.max_turns),
            run.pipeline.seed,
            run.pipeline.train.steps,
        )
        for run in sweep_plan.runs
    }
    assert values == {
        (lr, turns, seed, 6) for lr in (1e-3, 1e-4) for turns in ((4, 5), (6,)) for seed in (3, 4)
    }
    assert not (project / "runs").exists()


def test_the_command_of_a_run_gives_it_the_same_parameters(project: Path) -> None:
    """As the command line reads it."""
    from flows.cli.options import parse_settings

    run = plan("horizon.max_turns=[4,5],[6]", "train.algorithm=grpo,dapo").runs[1]
    arguments = run.arguments(NAME)
    settings = [arguments[i + 1] for i, part in enumerate(arguments) if part == "--set"]
    assert parse_settings(settings) == run.overrides
    assert arguments[-3:] == ["--workspace", str(run.workspace), "--no-promote"]


def test_an_interrupted_run_with_other_parameters_is_refused_or_handled_as_the_option_says(
    project: Path,
) -> None:
    """The option reaches each run as `wingspan run` reads it."""
    run = plan(seeds=[0, 1]).runs[0]
    prepare(run.pipeline, run.workspace)
    write_atomically(run.workspace / "warmup" / "weights", "0")
    stages = declared_stages(NAME, pipeline=run.pipeline, workspace=run.workspace)
    claim_checkpoints(stages["train"], if_changed="refuse")
    checkpoints = run.workspace / "train" / "checkpoints"
    write_atomically(checkpoint_folder(checkpoints, step=4) / "weights", "1")
    mark_complete(checkpoints, step=4)

    arguments = ["sweep", NAME, "--seeds", "0,1", "--set", "train.lr=0.5", "--plan"]
    refusal = CliRunner().invoke(app, arguments).exception
    assert isinstance(refusal, ConfigError)
    options = set(
        re.findall(r"--[a-z-]+", str(refusal).replace("--workspace (a sweep: --folder)", "--folder"))
    )
    assert options == {"--folder", "--if-changed"}
    help_text = CliRunner().invoke(app, ["sweep", "--help"], env={"COLUMNS": "200", "TERM": "dumb"}).output
    assert all(option in help_text for option in options)
    for if_changed in ("restart", "resume"):
        assert CliRunner().invoke(app, [*arguments, "--if-changed", if_changed]).exit_code == 0
        planned_run = plan(seeds=[0, 1], settings={"train.lr": 0.5}, if_changed=if_changed).runs[0]
        parsed = get_command(app).commands["run"].make_context("run", planned_run.arguments(NAME)[1:])  # type: ignore[attr-defined]
        assert parsed.params["if_changed"] == if_changed


def test_seeds_alone_are_runs_of_the_pipeline(project: Path) -> None:
    assert [run.name for run in plan(seeds=[0, 1]).runs] == [f"{NAME}-seed0", f"{NAME}-seed1"]


@pytest.mark.parametrize(
    ("axes", "options", "message"),
    [
        (["train.lrr=1,2"], {}, r"train\.lrr.*did you mean 'lr'"),
        (["train.lr=fast,slow"], {}, r"train\.lr"),
        (["train.lr=1e-3,0.001"], {}, "lr=0.001 twice"),
        (["train.lr=1,1.0"], {}, "same parameters twice: lr=1-seed0 and lr=1.0-seed0"),
        ([], {"seeds": [1, 1]}, f"same parameters twice: {NAME}-seed1"),
        ([], {}, "nothing varies"),
        ([], {"seeds": []}, "--seeds is empty"),
        ([], {"seeds": [1]}, "a sweep of one run"),
        (["seed=1,2"], {}, "--seeds, not by --vary seed"),
        (["train.lr=0.1,0.2"], {"settings": {"train.lr": 3}}, "--set train.lr: the sweep varies it"),
        (
            ["horizon={type: fixed, max_turns: [5]},{type: fixed, max_turns: [6]}"],
            {"settings": {"horizon.max_turns": [7]}},
            r"^horizon\.max_turns: the sweep then sets the whole block horizon, which replaces it; give it",
        ),
        (
            ["horizon.max_turns=[7]", "horizon={type: fixed, max_turns: [5]},{type: fixed, max_turns: [6]}"],
            {},
            r"^horizon\.max_turns: .*, or --vary horizon\.max_turns after --vary horizon$",
        ),
        (["evaluate.max_turns=30,31"], {}, r"evaluate\.max_turns is 30 and 31; set it for all"),
        (["data.split_seed=1,2"], {}, "are of other items .*; run both with the same data.split_seed"),
        (["model=models/none,models/textcraft-base"], {}, "'models/none'.*no such folder"),
        (["train.lr=0.1,0.2"], {"at_once": 2, "settings": {"backend.workers": 64}}, "at most 1"),
        (
            ["train.lr=0.1,0.2"],
            {"at_once": 2, "settings": {"backend.device": "cuda"}},
            "--at-once 2: runs on GPUs",
        ),
    ],
)
def test_what_cannot_be_swept_is_refused_before_anything_starts(
    project: Path, axes: list[str], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        plan(*axes, **options)
    assert not (project / "runs").exists()


def test_parameters_within_a_varied_block_are_those_of_their_run(project: Path) -> None:
    block = {"type": "fixed", "max_turns": [5]}
    axes: dict[str, list[object]] = {"horizon": [block], "horizon.max_turns": [[6], [7]]}
    runs = plan_sweep(NAME, seeds=None, axes=axes, settings={}).runs
    assert [run.pipeline.horizon.max_turns for run in runs] == [[6], [7]]
    assert [run.overrides["horizon"] for run in runs] == [{"type": "fixed", "max_turns": [5]}] * 2


def test_a_folder_that_cannot_be_written_to_is_refused_by_its_option(project: Path) -> None:
    (project / "notes.md").write_text("")
    with pytest.raises(ConfigError, match=r"^notes\.md cannot be written to .*; give .* another --folder"):
        plan(seeds=[0, 1], folder=Path("notes.md"))
    assert not (project / "runs").exists()


def test_more_runs_than_fit_in_memory_are_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: set(range(64)))
    with pytest.raises(ConfigError, match=r"--at-once 60: 60 runs need .* GB, .*; at most \d+$"):
        plan("train.lr=0.1,0.2", seeds=range(30), at_once=60)


def test_more_runs_than_this_process_may_use_cores_are_refused(project: Path) -> None:
    """As under `taskset -c 0`."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        with pytest.raises(ConfigError, match=r"--at-once 2: .* may use 1 core; at most 1$"):
            plan(seeds=[0, 1], at_once=2)
        with pytest.raises(ConfigError, match=r"backend\.workers 2: this process may use 1 core, and"):
            check_workers(load_pipeline(NAME, overrides={"backend.workers": 2}))
    finally:
        os.sched_setaffinity(0, cores)


@pytest.mark.heavy
def test_the_cost_of_a_sweep_is_that_of_its_runs_at_once(project: Path) -> None:
    settings = {"train.steps": 4}
    alone = plan(seeds=[0, 1, 2], settings=settings)
    assert list_sweep_costs(alone)[0] == ("time", "unknown", f"no finished run of {NAME} in runs")
    earlier_run = Path("runs/a")
    write_workspace(earlier_run)  # four steps of training
    (earlier_run / "report").mkdir()
    parameters = load_pipeline(NAME, overrides=settings).model_dump(mode="json")
    (earlier_run / "report" / "parameters.json").write_text(json.dumps(parameters))
    seconds = {"warmup": 20.0, "train": 26.0, "evaluate": 5.0}
    (earlier_run / "timing.json").write_text(json.dumps({"stages": seconds}))
    write_changes(earlier_run, name=NAME, changes={})
    time, disk, memory = list_sweep_costs(alone)
    assert time == ("time", "2 min 33 s", "3 runs of 51.0 s; as in runs/a")
    needed = sum(find_disk_need(run.workspace, run.pipeline).needed_bytes for run in alone.runs)
    assert disk[1].startswith(f"{needed / 1e9:.1f} GB of ")
    side_by_side = plan(seeds=[0, 1, 2], settings=settings, at_once=2)
    time, _, twice = list_sweep_costs(side_by_side)
    assert time == ("time", "1 min 42 s", "3 runs of 51.0 s, 2 at a time; as in runs/a")
    one_gb, two_gb = (float(row[1].split()[0]) for row in (memory, twice))
    assert two_gb == pytest.approx(2 * one_gb, abs=0.1)


def test_runs_of_unequal_length_fill_the_places_in_their_order() -> None:
    # 5 and 1 start; at 1 the 2 follows, at 3 the 4, which ends at 7.
    assert total_seconds([5, 1, 2, 4], at_once=2) == 7
    assert total_seconds([5, 1, 2, 4], at_once=1) == 12
    assert total_seconds([5], at_once=3) == 5


@pytest.mark.heavy
def test_a_sweep_at_work_is_not_started_again(project: Path) -> None:
    folder = plan(seeds=[0, 1]).folder
    arguments = ["sweep", NAME, "--seeds", "0,1"]
    in_use = f"{folder} is in use by process {os.getpid()}; wait for it, stop it, or give another "
    with lock(folder):
        assert str(CliRunner().invoke(app, arguments).exception) == f"{in_use}--folder"
        with pytest.raises(ConfigError, match=f"^{in_use}folder$"):
            sweep.fn(NAME, seeds=[0, 1])
        assert CliRunner().invoke(app, [*arguments, "--plan"]).exit_code == 0


@pytest.mark.parametrize("text", ["train.lr", "train.lr=", "=1,2"])
def test_values_without_a_key_or_a_key_without_values_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"is not KEY=A,B"):
        parse_axes([text])


def test_the_values_of_a_parameter_are_yaml() -> None:
    text = 'a.b=1e-3, grpo,[1, 2],{c: "x,y"},null,"p,q"'
    assert parse_axes([text]) == {"a.b": [0.001, "grpo", [1, 2], {"c": "x,y"}, None, "p,q"]}
    with pytest.raises(ConfigError, match="given twice"):
        parse_axes(["a=1", "a=2"])
    assert parse_seeds("0,1, 2") == [0, 1, 2]
    with pytest.raises(ConfigError, match="whole numbers"):
        parse_seeds("0-2")


# --- the runs

SCRIPT = """
import signal, sys, time
from pathlib import Path
workspace = Path(sys.argv[sys.argv.index("--workspace") + 1])
(workspace / "began").touch()
if "{hangs}" in workspace.name:
    def stop(*_):
        (workspace / "stopped").touch()
        sys.exit(143)
    signal.signal(signal.SIGTERM, stop)
    (workspace / "waits").touch()
    time.sleep(60)
while "{together}" and not all((workspace.parent / name / "began").exists() for name in "{together}".split()):
    time.sleep(0.01)
print("trained", workspace.name)
sys.exit("{fails}" in workspace.name)
"""
"""Acts as `wingspan run`; with `together`, it ends when those runs have begun."""


def make_script(*, hangs: str = "none", fails: str = "none", together: str = "") -> list[str]:
    return [sys.executable, "-S", "-c", SCRIPT.format(hangs=hangs, fails=fails, together=together)]


def run_scripts(sweep_plan: SweepPlan, command: Sequence[str]) -> list[tuple[str, RunState]]:
    """The changes, in order."""
    changes: list[tuple[str, RunState]] = []
    run_all(
        sweep_plan,
        temporary="/tmp",
        on_change=lambda run, state: changes.append((run.name, state)),
        command=command,
    )
    return changes


def test_runs_are_one_after_another_unless_more_are_allowed(project: Path) -> None:
    found = plan("train.lr=1e-3,1e-4", seeds=[0, 1])
    names = [run.name for run in found.runs]
    changes = run_scripts(found, make_script())
    assert changes == [(name, state) for name in names for state in (RunState.RUNNING, RunState.FINISHED)]
    assert (found.runs[2].workspace / LOG).read_text() == f"trained {names[2]}\n"


def test_runs_side_by_side_are_as_many_as_allowed(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: {0, 1})
    found = plan("train.lr=1e-3,1e-4", seeds=[0, 1], at_once=2)
    # The first two end only if both have begun.
    changes = run_scripts(found, make_script(together=" ".join(run.name for run in found.runs[:2])))
    at_work = [
        sum(1 if s is RunState.RUNNING else -1 for _, s in changes[: i + 1]) for i in range(len(changes))
    ]
    assert max(at_work) == 2
    assert at_work[-1] == 0


def test_a_run_that_fails_is_named_when_the_others_have_ended(project: Path) -> None:
    found = plan("train.lr=1e-3,1e-4", seeds=[0, 1])
    log = found.runs[1].workspace / LOG
    with pytest.raises(WingspanError, match=rf"1 of 4 runs failed; {log} says why"):
        run_scripts(found, make_script(fails="lr=0.0001-seed0"))
    assert (found.runs[3].workspace / LOG).exists()


def test_a_run_that_cannot_be_started_says_why(project: Path) -> None:
    found = plan("train.lr=1e-3,1e-4", seeds=[0, 1])
    blocked, failed = found.runs[1], found.runs[2]
    blocked.workspace.parent.mkdir(parents=True)
    blocked.workspace.write_text("a file, where its folder should be")
    cause = rf"{blocked.name} could not be started \(\[Errno 17\] File exists: '{blocked.workspace}'\)"
    with pytest.raises(
        WingspanError, match=f"2 of 4 runs failed; {failed.workspace / LOG} says why; {cause}"
    ):
        run_scripts(found, make_script(fails=failed.name))
    assert describe(blocked, RunState.FAILED) == ""
    assert describe(failed, RunState.FAILED) == f", output in {failed.workspace / LOG}"
    with pytest.raises(
        WingspanError, match=r"runs failed; .* \(\[Errno 2\] No such file.*: '/nowhere/wingspan'\)"
    ):
        run_scripts(found, ["/nowhere/wingspan"])


def test_a_finished_run_that_cannot_be_compared_says_why(project: Path) -> None:
    """As where every greedy episode of its evaluation failed."""
    run = plan(seeds=[0, 1]).runs[0]
    write_workspace(run.workspace)
    assert describe(run, RunState.FINISHED) == ": success 0.250 before training, 0.500 after"
    file = run.workspace / OUTCOMES
    outcomes = json.loads(file.read_text())
    outcomes["after"]["greedy"] = {item: [] for item in outcomes["after"]["greedy"]}
    file.write_text(json.dumps(outcomes))
    assert "has no greedy episode of the policy after training that counts" in describe(
        run, RunState.FINISHED
    )


def test_a_sweep_that_is_stopped_ends_its_runs_and_starts_no_other(project: Path) -> None:
    found = plan("train.lr=1e-3,1e-4", seeds=[0, 1])

    def stop(run: SweepRun, state: RunState) -> None:
        wait_until((run.workspace / "waits").exists)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_all(found, temporary="/tmp", on_change=stop, command=make_script(hangs="seed0"))
    assert (found.runs[0].workspace / "stopped").exists()
    assert not found.runs[1].workspace.exists()


# --- the end


def finish(run: SweepRun, successes: Sequence[tuple[int, int]]) -> None:
    """What a run leaves, recorded as `wingspan run --no-promote` records it."""
    write_workspace(run.workspace, successes={**SAMPLE_SUCCESSES, "after": successes})
    (run.workspace / "report").mkdir()
    (run.workspace / "report" / "index.html").write_text("<p>a report</p>")
    (run.workspace / "report" / "parameters.json").write_text(run.pipeline.model_dump_json())
    (run.workspace / "policy").mkdir()
    (run.workspace / "policy" / "config.json").write_text('{"model_type": "llama"}')
    with Tracker(NAME, pipeline=run.pipeline, workspace=run.workspace, is_candidate=False) as tracker:
        assert tracker.finish() is None


@pytest.mark.heavy
def test_finished_runs_are_skipped_compared_and_the_best_is_tested_for_all(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    axes = "train.lr=1e-3,1e-4"
    first, second = plan(axes).runs
    finish(first, [(1, 1), (0, 1), (1, 0), (0, 0)])
    assert [run.name for run in plan(axes).unfinished] == [second.name]
    finish(second, [(1, 1), (1, 1), (1, 0), (1, 1)])
    found = plan(axes)
    assert not found.unfinished
    assert run_scripts(found, make_script(fails="seed")) == []

    client = connect()
    assert client.get_registered_model(NAME).aliases == {}  # the runs have not decided it
    result = conclude(found)
    assert (result.best.name, result.success) == (second.name, 7 / 8)
    assert list(result.comparison.names) == [first.name, second.name]
    assert result.page.is_relative_to(found.folder / "comparison")
    assert result.promotion is None  # four items show nothing beyond chance
    (version,) = [v for v in client.search_model_versions(f"name = '{NAME}'") if "test.against" in v.tags]
    assert version.run_id == json.loads((second.workspace / "mlflow.json").read_text())["run_id"]
    assert version.tags["test.candidates"] == "2"
    assert client.get_registered_model(NAME).aliases == {"challenger": version.version}

    with pytest.raises(
        ConfigError, match=rf"{first.workspace} holds a finished run with another train\.steps"
    ):
        plan(axes, settings={"train.steps": 3})
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{project}/other.db")  # which has none of them
    assert [run.name for run in plan(axes).unfinished] == [first.name, second.name]
