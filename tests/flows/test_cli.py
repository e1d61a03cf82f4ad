"""The command line from outside: what a user types, sees and gets as exit status."""

import errno
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from envs.errors import ConfigError
from flows.cli.command_line import app, one_line
from flows.cli.options import parse_axes, parse_settings
from flows.lock import lock
from flows.plan import check_plan, make_plan
from tasks.config.capacity import read_model_size
from tasks.config.parameters import write_changes
from tasks.config.pipelines import load_pipeline, read_yaml
from tests.support.command_line import Command, copy_declarations, the_error, wingspan
from tests.support.terminal import open_terminal
from tests.support.tiny_model import save_tiny_model

ROOT = Path(__file__).parents[2]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return copy_declarations(tmp_path)


MISTAKES: list[tuple[list[str], list[str]]] = [
    (
        ["run", "webshop-mini-cpu", "--set", "warmup.new_words=0"],
        ["pipelines.webshop-mini-cpu.warmup", "whole_words", "new_words, which is 0"],
    ),
    (
        ["run", "webshop-mini-cpu", "--set", 'warmup.whole_words=["(B"]'],
        ["pipelines.webshop-mini-cpu.warmup.whole_words", "'(B'", "unmatched parenthesis"],
    ),
    (
        ["run", "webshop-mini-cpu", "--set", 'warmup.whole_words=["(?x)B # all"]'],
        ["pipelines.webshop-mini-cpu.warmup.whole_words", "'(?x)B # all'", "unmatched parenthesis"],
    ),
    (
        ["run", "webshop-mini-cpu", "--set", "warmup.whole_words=B"],
        ["pipelines.webshop-mini-cpu.warmup.whole_words", "valid list, but it is 'B'"],
    ),
    (["run", "textcraft-cpy"], ["'textcraft-cpy'", "did you mean 'textcraft-cpu'", "pipelines.yaml"]),
    (
        ["run", "textcraft-cpu", "--set", "data.parts={textcarft: }"],
        ["'textcarft'", "'textcraft'", "registry"],
    ),
    (
        ["run", "textcraft-cpu", "--set", "data.parts.textcraft.wieght=2"],
        ["data.parts.textcraft.wieght", "did you mean 'weight'"],
    ),
    (["run", "textcraft-cpu", "--set", "train.algorithm=grop"], ["train.algorithm", "'grop'", "grpo"]),
    (
        ["run", "textcraft-cpu", "--set", "train.stpes=3"],
        ["parameters set", "train.stpes", "did you mean 'steps'"],
    ),
    (["run", "textcraft-cpu", "--set", "horizon.max_turns=[8,4]"], ["horizon", "[8, 4]", "must not fall"]),
    (["run", "textcraft-cpu", "--set", "horizon.max_turns=[]"], ["horizon.max_turns", "at least 1"]),
    (["run", "textcraft-cpu", "--set", "train.lr"], ["'train.lr'", "KEY=VALUE"]),
    (["run", "textcraft-cpu", "--set", "seed=[1"], ["'seed=[1'", "YAML"]),
    (["run", "textcraft-cpu", "--set", "seed=1", "--workspace", "runs/textcraft-cpu"], ["seed=1", "--work"]),
    (["stage", "trian", "textcraft-cpu"], ["'trian'", "did you mean 'train'"]),
    (["stage", "evaluate", "textcraft-cpu"], ["runs/textcraft-cpu/data/test.jsonl", "prepare"]),
    (["data", "pull"], ["Missing argument 'NAME'; see wingspan data pull --help"]),
    (["deploy", "textcraft-cpy"], ["did you mean 'textcraft-cpu'"]),
    (["deploy", "textcraft-cpu", "--secret", "JUDGE_API_KEY"], ["--secret", "VARIABLE=BLOCK"]),
    (["run", "textcraft-cpu", "--serve-policy", "http://x/v1"], ["'http://x/v1'", "HOST:PORT"]),
    (["serve-env", "textcraft", "--token", "one", "--token", ""], ["--token is empty", "leave it out"]),
    (["serve-policy", "models/textcraft-base", "--token", ""], ["--token is empty", "open to all"]),
    (["serve-policy", "http://127.0.0.1:9/v1"], ["http://127.0.0.1:9/v1 is an endpoint", "give a folder"]),
    (["serve-policy", "models"], ["no policy in 'models'", "a run"]),
    (["view", "--token", " "], ["--token is empty", "give a token"]),
    *(
        ([*command, "a" * 300], ["aaa…", "give a shorter one"])
        for command in (["compare"], ["view"], ["lineage"], ["reproduce"], ["serve-policy"])
    ),
]
"""Arguments, and what the error says."""
MISTAKES_AFTER_IMPORTS: list[tuple[list[str], list[str]]] = [
    (["run"], ["error: Missing argument 'PIPELINE'; see wingspan run --help"]),
    (["run", "textcraft-cpu", "--set", "model=models/none"], ["'models/none'", "no such folder"]),
    (
        ["run", "textcraft-cpu", "--set", "agent={program: tests.support.program_toy:play}"],
        ["warmup", "tests.support.program_toy:play", "warmup: null"],
    ),
    (["stage", "train", "textcraft-cpu"], ["runs/textcraft-cpu/warmup", "not there"]),
    (["deploy", "textcraft-cpu"], ["no Prefect server is configured", "PREFECT_API_URL"]),
]
"""One for each set of modules that a command imports before its error; an import must print nothing."""


@pytest.mark.parametrize(("arguments", "expected_phrases"), MISTAKES)
def test_a_mistake_is_one_line_that_names_it(
    project: Path, wingspan_here: Command, arguments: list[str], expected_phrases: list[str]
) -> None:
    line = the_error(wingspan_here(*arguments, cwd=project))
    assert all(part in line for part in expected_phrases), line
    assert not (project / "mlflow.db").exists()


@pytest.mark.heavy
@pytest.mark.parametrize(("arguments", "expected_phrases"), MISTAKES_AFTER_IMPORTS)
def test_a_mistake_is_one_line_of_a_new_process(
    project: Path, arguments: list[str], expected_phrases: list[str]
) -> None:
    line = the_error(wingspan(*arguments, cwd=project))
    assert all(part in line for part in expected_phrases), line
    assert not (project / "mlflow.db").exists()


def test_the_traceback_of_an_error_in_a_users_code_is_printed_on_request(
    tmp_path: Path, wingspan_here: Command
) -> None:
    (tmp_path / "unfinished_env.py").write_text("def split():\n    return 1 / 0\n\nSPEC = split()\n")
    line = the_error(wingspan_here("play", "unfinished_env:SPEC", "0", cwd=tmp_path))
    assert line.endswith("cannot be imported: ZeroDivisionError: division by zero (unfinished_env.py:2)")
    done = wingspan_here("--traceback", "play", "unfinished_env:SPEC", "0", cwd=tmp_path)
    *_, last_line = done.stderr.splitlines()
    assert (done.returncode, last_line) == (2, line)
    assert f'File "{tmp_path}/unfinished_env.py", line 2, in split' in done.stderr


def test_a_play_that_is_stopped_before_it_has_begun_ends_with_one_line(tmp_path: Path) -> None:
    (tmp_path / "stopped_env.py").write_text(
        "from dataclasses import replace\nfrom envs.registry import get_env\n"
        "def make():\n    raise KeyboardInterrupt\n\n"
        "SPEC = replace(get_env('textcraft'), name='stopped_env:SPEC', make=make)\n"
    )
    done = wingspan("play", "stopped_env:SPEC", "0", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "stopped\n"


def test_ctrl_c_while_the_commands_are_imported_prints_no_traceback(tmp_path: Path) -> None:
    """A module that every command imports stands for the moment of the signal."""
    (tmp_path / "typer.py").write_text(
        "import os, signal\nprint('imported', flush=True)\nos.kill(os.getpid(), signal.SIGINT)\n"
    )
    done = wingspan("--help", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "imported\n", "")


def test_after_ctrl_c_no_command_waits_for_exit_handlers_of_libraries(tmp_path: Path) -> None:
    """`envs` imports the library, whose exit handler waits for a server that is gone."""
    (tmp_path / "slow_library.py").write_text(
        "import atexit, os, signal, time\n"
        "from dataclasses import replace\nfrom envs.registry import get_env\n"
        "atexit.register(time.sleep, 1000)\nprint('stopped here')\nos.kill(os.getpid(), signal.SIGINT)\n"
        "SPEC = replace(get_env('textcraft'), name='slow_library:SPEC')\n"
    )
    done = wingspan("envs", "slow_library:SPEC", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "stopped here\n", "stopped\n")


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        pytest.param("PREFECT_API_URL", "http://127.0.0.1:9/api", marks=pytest.mark.heavy),
        ("MLFLOW_TRACKING_URI", "http://127.0.0.1:9"),
        ("RAY_ADDRESS", "127.0.0.1:9"),
    ],
)
def test_a_server_that_does_not_answer_is_named_before_anything_starts(
    project: Path, wingspan_here: Command, variable: str, value: str
) -> None:
    # Prefect reads its variable when it is imported.
    command: Command = wingspan if variable == "PREFECT_API_URL" else wingspan_here
    line = the_error(command("run", "textcraft-cpu", cwd=project, **{variable: value}))
    assert f"{variable}={value}" in line
    assert not (project / "runs").exists()


def test_a_port_in_use_is_named_before_anything_starts(project: Path, wingspan_here: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        line = the_error(wingspan_here("run", "textcraft-cpu", "--serve-policy", address, cwd=project))
    assert f"cannot listen on {address}" in line
    assert not (project / "runs").exists()


@pytest.mark.heavy
def test_outside_a_project_the_missing_file_is_named(tmp_path: Path) -> None:
    assert "no pipelines.yaml here" in the_error(wingspan("run", "textcraft-cpu", cwd=tmp_path))


@pytest.mark.heavy
def test_a_stage_runs_from_the_command_line(project: Path, wingspan_here: Command) -> None:
    """In a process of its own, DVC runs it (`test_dvc.py`)."""
    done = wingspan_here("stage", "prepare", "textcraft-cpu", cwd=project)
    assert done.returncode == 0, done.stderr
    data = project / "runs" / "textcraft-cpu" / "data"
    assert len((data / "test.jsonl").read_text().splitlines()) == 100


@pytest.mark.heavy
def test_prefect_reports_nothing_to_its_makers(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless told not to, Prefect's client sends usage data when it is imported in a terminal."""
    from prefect._internal.analytics.ci_detection import CI_ENV_VARS

    for variable in ("DO_NOT_TRACK", *CI_ENV_VARS):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.chdir(project)
    program = ["-c", "from flows.cli.app import main; main()", "stage", "trian", "textcraft-cpu"]
    variables = {"PYTHONPATH": str(ROOT), "PREFECT_HOME": str(tmp_path / "prefect")}
    with open_terminal(program, folder=tmp_path, columns=120, lines=24, variables=variables) as terminal:
        screen = "\n".join(terminal.wait_for("status 2"))
    assert "did you mean 'train'" in screen
    assert "anonymous usage data" not in screen
    assert not (tmp_path / "prefect" / ".sdk_telemetry" / "notice_shown").exists()


@pytest.mark.heavy
def test_without_runs_it_is_said_where_they_would_be(
    project: Path, tmp_path: Path, wingspan_here: Command
) -> None:
    place = f"sqlite:///{tmp_path}/empty.db"
    done = wingspan_here("runs", cwd=project, MLFLOW_TRACKING_URI=place)
    assert (done.returncode, done.stdout) == (0, "")
    assert f"no run is recorded in {place}; `wingspan run NAME` records one" in done.stderr


@pytest.mark.heavy
def test_a_terminal_that_lacks_a_character_ends_no_command(tmp_path: Path) -> None:
    done = wingspan("envs", "babyai", cwd=tmp_path, PYTHONIOENCODING="latin-1")
    assert (done.returncode, done.stderr) == (0, "")
    assert "package minigrid   ? is here\n" in done.stdout


@pytest.mark.heavy
def test_pipelines_are_listed(project: Path) -> None:
    names = read_yaml(ROOT / "pipelines.yaml")["pipelines"]
    counts = {"episodes": 8, "dropped": 0}
    rates = {
        policy: {"sampled": {"success": success, **counts}, "greedy": counts}
        for policy, success in (("before", 0.25), ("after", 0.5))
    }
    # The default workspace, another one, and the latest of three.
    for folder, pipeline, seconds in (
        ("babyai-cpu", None, 0),  # by DVC
        ("textworld-a", "textworld-cpu", 0),
        ("webshop-mini-cpu", "webshop-mini-cpu", 1),
        ("sweeps/s/1", "webshop-mini-cpu", 3),
        ("webshop-b", "webshop-mini-cpu", 2),
        ("searchqa-mini-cpu", "searchqa-mini-cpu", 0),
    ):
        workspace = project / "runs" / folder
        workspace.mkdir(parents=True)
        (workspace / "provision.json").touch()
        if pipeline is not None:
            write_changes(workspace, name=pipeline, changes={})
            (workspace / "lineage.json").touch()
            os.utime(workspace / "lineage.json", (seconds, seconds))
        if not folder.startswith("search"):
            (workspace / "evaluation.json").write_text(json.dumps(rates))
    rows = wingspan("pipelines", cwd=project).stdout.splitlines()
    assert [line.split()[0] for line in rows] == list(names)
    column = len(max(names, key=len)) + 2
    runs = {line[:column].strip(): line[column:].split("  ")[0] for line in rows}
    arrow = "\N{RIGHTWARDS ARROW}"
    assert runs["babyai-cpu"] == f"0.25 {arrow} 0.50"
    assert runs["textworld-cpu"] == f"0.25 {arrow} 0.50 (textworld-a)"
    assert runs["webshop-mini-cpu"] == f"0.25 {arrow} 0.50 (sweeps/s/1)"
    assert (runs["searchqa-mini-cpu"], runs["textcraft-cpu"]) == ("unfinished", "never")


def test_a_broken_pipeline_does_not_hide_the_others(project: Path, wingspan_here: Command) -> None:
    file = project / "pipelines.yaml"
    file.write_text(f"{file.read_text()}\n  broken: {{model: 3}}\n")
    rows = {line.split()[0]: line for line in wingspan_here("pipelines", cwd=project).stdout.splitlines()}
    assert "is refused: pipelines.yaml: pipelines.broken.model" in rows["broken"]
    assert "textcraft-cpu" in rows


def test_the_version_and_a_short_option_for_help(project: Path, wingspan_here: Command) -> None:
    assert wingspan("--version", cwd=project).stdout == f"wingspan {metadata.version('wingspan')}\n"
    for command in ([], ["run"], ["data", "pull"], ["serve-policy"]):
        short, long = (wingspan_here(*command, option, cwd=project).stdout for option in ("-h", "--help"))
        assert short == long
        assert "Usage: wingspan" in long


def test_the_lines_of_a_help_are_filled() -> None:
    text = CliRunner().invoke(app, ["plan", "--help"], env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"}).output
    # In the source, a line ends before the last word.
    assert " Makes every check that wingspan run makes before it starts." in text


def test_the_shell_can_complete_commands(project: Path) -> None:
    completion_environment = {
        "_WINGSPAN_COMPLETE": "complete_bash",
        "COMP_WORDS": "wingspan ro",
        "COMP_CWORD": "1",
    }
    assert wingspan(cwd=project, **completion_environment).stdout.split() == ["rollout"]


def phrases() -> Iterator[tuple[str, str]]:
    """Every command, argument and option with its help."""

    def find_texts(command: Any, name: str) -> Iterator[tuple[str, str]]:
        yield name, command.help or ""
        for parameter in command.params:
            yield f"{name} {parameter.name}", getattr(parameter, "help", None) or ""
        for child, sub in getattr(command, "commands", {}).items():
            yield from find_texts(sub, f"{name} {child}")

    yield from find_texts(typer.main.get_command(app), "wingspan")


@pytest.mark.parametrize(("location", "text"), list(phrases()))
def test_help_is_a_whole_phrase_that_makes_sense_alone(location: str, text: str) -> None:
    """A bare `Of one request.`, `Ask for it.` or `Its number.` only makes sense after something else."""
    if location.endswith((" help", " install_completion", " show_completion")):
        return  # of click and typer
    words = text.split()
    assert len(words) >= 3, location
    assert words[0].lower() not in {"of", "its", "where", "what", "which", "as", "in", "by", "ask", "close"}
    assert "it" not in [word.strip(".,;:").lower() for word in words[:3]]
    assert text.rstrip().endswith(".")


def test_help_imports_nothing_heavy(project: Path) -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from flows.cli.command_line import app\n"
        "assert CliRunner().invoke(app, ['--help']).exit_code == 0\n"
        "heavy = {'torch', 'verl', 'ray', 'mlflow', 'prefect', 'dvc', 'numpy', 'pydantic', 'yaml'}\n"
        "print(sorted((heavy | {'msgspec', 'envs.requirements.data_sets'}) & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.heavy
def test_a_workspace_in_use_is_refused_and_free_again_after_a_kill(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from flows.lock import lock\n"
        "with lock(Path(sys.argv[1])): print('held', flush=True); time.sleep(600)"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(ConfigError, match=f"in use by process {holder.pid}"), lock(tmp_path):
        pass
    holder.kill()
    holder.wait()
    with lock(tmp_path):
        assert (tmp_path / "lock").read_text() == str(os.getpid())


def test_a_nearly_full_disk_is_found_before_the_start(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    tiny = save_tiny_model(project / "tiny")
    model = project / "models" / "textcraft-base"  # the tokenizer stays that of the shipped model
    shutil.copy(tiny / "model.safetensors", model)
    config = json.loads((tiny / "config.json").read_text()) | {"max_position_embeddings": 8192}
    (model / "config.json").write_text(json.dumps(config))
    size = read_model_size(tiny)
    assert size is not None
    # A weight, two moments and a copy in fp32, three times; two policies with their copies, and the best one.
    megabytes = 500 + size.parameters * (3 * 16 + 6 * 4) / 1e6
    usage = shutil.disk_usage(project)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1_000_000))
    with pytest.raises(
        ConfigError, match=rf"1 MB are free at .* may need {megabytes:.0f} MB \(3 checkpoints"
    ):
        check_plan(make_plan("textcraft-cpu", overrides={}, workspace=None))


def test_overrides_have_a_workspace_of_their_own(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    default_plan = make_plan("textcraft-cpu", overrides={}, workspace=None)
    workspaces = [
        make_plan("textcraft-cpu", overrides=overrides, workspace=None).workspace
        for overrides in ({"seed": 1, "train.lr": 0.1}, {"train.lr": 0.1, "seed": 1}, {"seed": 2})
    ]
    assert default_plan.is_tracked
    assert workspaces[0] == workspaces[1]
    assert len({default_plan.workspace, *workspaces}) == 3


def test_a_disk_that_fills_up_is_one_line_wherever_it_is_noticed() -> None:
    direct = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "runs/x/policy")
    assert "runs/x/policy" in (one_line(direct) or "")
    worker_error = ValueError("the worker died")
    worker_error.__cause__ = RuntimeError("PytorchStreamWriter failed: No space left on device")
    assert "disk is full" in (one_line(worker_error) or "")
    assert one_line(ValueError("a bug")) is None


@pytest.mark.parametrize("value", ["2024-01-01", "[a, 2024-01-01]"])
def test_a_date_of_yaml_is_no_value_of_a_parameter(value: str) -> None:
    """Parameters are JSON values: in records, names of workspaces and the arguments of a sweep's runs."""
    with pytest.raises(ConfigError, match=r"--set .* it is a date in YAML; quote it"):
        parse_settings([f"agent.system={value}"])
    with pytest.raises(ConfigError, match=r"--vary .* it is a date in YAML; quote it"):
        parse_axes([f"agent.system=text,{value}"])
    assert parse_settings(['day="2024-01-01"']) == {"day": "2024-01-01"}


@pytest.mark.parametrize("value", ["2026-02-30", "0b_", "9" * 5000])
def test_a_value_that_yaml_takes_for_a_date_or_a_number_that_there_is_not_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match=r"^--set 'description=.*': the value is not YAML; quote it$"):
        parse_settings([f"description={value}"])


def test_settings_apply_in_their_order_and_none_is_lost() -> None:
    block, key = "horizon={type: fixed, max_turns: [9]}", "horizon.max_turns=[7]"
    with pytest.raises(ConfigError, match=r"^--set horizon\.max_turns: --set horizon after it replaces"):
        parse_settings([key, block])
    for settings in ([block, key], [key, block, key]):
        pipeline = load_pipeline("textcraft-cpu", overrides=parse_settings(settings))
        assert (pipeline.horizon.type, pipeline.horizon.max_turns) == ("fixed", [7])
    assert parse_settings(["horizons=1", "horizon=2", "seed=3", "seed=4"])["seed"] == 4


def test_settings_are_yaml_values() -> None:
    parsed_settings = parse_settings(
        ["train.lr=1e-3", "horizon.max_turns=[2, 4]", "warmup=null", "model=a=b"]
    )
    assert parsed_settings == {"train.lr": 0.001, "horizon.max_turns": [2, 4], "warmup": None, "model": "a=b"}
