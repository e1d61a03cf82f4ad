"""`wingspan reproduce` in real Git repositories, whose programs compute numbers from code and data."""

import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from envs.errors import ConfigError, WingspanError
from flows.commands.reproduce import prepare_request, temporary_folder
from flows.commands.reproduce import reproduce as reproduce_run
from tasks.data.hashes import path_md5
from tasks.reporting.reproduction import ComparisonLine, Reproduction
from tests.support.dvc_toy import commit, git
from tests.support.lineage_toy import ROOT, ROWS, WORKSPACE, LineageToy
from tests.support.waiting import wait_until


@pytest.fixture(scope="module", autouse=True)
def _without_variables_of_the_program() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for variable in ("MLFLOW_TRACKING_URI", "OFFSET", "WAIT", "WITH_PREFECT"):
            patch.delenv(variable, raising=False)
        yield


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository and its first run, of which each test has a copy."""
    toy = LineageToy.make(tmp_path_factory.mktemp("project"))
    toy.run()
    return toy.folder


@pytest.fixture
def toy(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LineageToy:
    (tmp_path / "tmp").mkdir()
    monkeypatch.chdir(shutil.copytree(project, tmp_path / "project"))
    return LineageToy(tmp_path / "project")


def start(toy: LineageToy, *arguments: str, **variables: str) -> "subprocess.Popen[str]":
    """Start `wingspan reproduce` in a group of its own, as a terminal does."""
    return subprocess.Popen(
        # -P: the program of this checkout, not of the working directory
        [sys.executable, "-P", "-c", "from flows.cli.app import main; main()", "reproduce", *arguments],
        cwd=toy.folder,
        env={**os.environ, "PYTHONPATH": ROOT, "TMPDIR": str(toy.folder.parent / "tmp"), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def call(toy: LineageToy, *arguments: str, status: int, **variables: str) -> tuple[str, str]:
    """What the command prints, and its errors."""
    process = start(toy, *arguments, **variables)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == status, output + errors
    return output, errors


def reproduce(
    toy: LineageToy, *, folder: Path | None = None, with_patch: bool = False
) -> dict[str, ComparisonLine]:
    """The comparison by name, of a reproduction in `folder`, or else in a temporary one."""
    request = prepare_request(str(WORKSPACE), with_patch=with_patch, downloads=Path("runs"))
    place = temporary_folder(toy.folder.parent) if folder is None else nullcontext(folder)
    with place as worktree:
        comparison = reproduce_run(request, folder=worktree, temporary=str(toy.folder.parent / "tmp"))
    return {line.name.strip(): line for line in comparison.lines}


def are_equal(lines: dict[str, ComparisonLine]) -> bool:
    return Reproduction(list(lines.values())).is_equal


def snapshot(folder: Path) -> dict[str, tuple[int, bytes]]:
    files = [file for file in folder.rglob("*") if file.is_file()]
    return {str(file): (file.stat().st_mtime_ns, file.read_bytes()) for file in files}


def temporary_files(toy: LineageToy) -> list[Path]:
    return list((toy.folder.parent / "tmp").iterdir())


def refusal(reference: str = str(WORKSPACE), *, with_patch: bool = False) -> str:
    with pytest.raises(ConfigError) as error:
        prepare_request(reference, with_patch=with_patch, downloads=Path("runs"))
    return str(error.value)


@pytest.mark.heavy
def test_the_same_code_data_and_parameters_give_equal_numbers_and_leave_nothing(toy: LineageToy) -> None:
    toy.run("train.lr=0.5")
    before = snapshot(toy.folder / WORKSPACE), (toy.folder / ".git" / "index").read_bytes()
    (toy.folder / "code.txt").write_text("9")
    commit(toy.folder, "other code")  # not that of the run
    index = (toy.folder / ".git" / "index").read_bytes()
    output, errors = call(toy, str(WORKSPACE), status=0)
    assert errors == ""
    assert "wingspan run toy --set train.lr=0.5 --workspace runs/toy-reproduced" in output
    assert "next:" not in output  # the run's own lines, which name files in the worktree
    lines = [line.split() for line in output.splitlines()]
    # Clocks and live environments are left out.
    assert ["training", "3", "steps", "3", "steps", "1", "metrics", "equal"] in lines
    assert ["after", "sampled", "success", "0.25", "0.25", "equal"] in lines  # 0.5 x 8 x 4 rows / 64
    assert output.splitlines()[-1].startswith("equal: ")
    assert (snapshot(toy.folder / WORKSPACE), index) == (
        before[0],
        (toy.folder / ".git" / "index").read_bytes(),
    )
    assert toy.worktrees == 0
    assert temporary_files(toy) == []


@pytest.mark.heavy
def test_numbers_that_differ_are_shown_with_their_difference(toy: LineageToy) -> None:
    output, _ = call(toy, str(WORKSPACE), status=1, OFFSET="0.125")
    lines = [line.split() for line in output.splitlines()]
    # 8 x 4 rows / 64 = 0.5, and the offset.
    assert ["after", "sampled", "success", "0.5", "0.625", "+0.125"] in lines
    assert ["reward,", "step", "1", "0.5", "0.625", "+0.125"] in lines
    (policy,) = [line for line in lines if line[0] == "policy"]
    assert policy[-2:] == ["other", "content"]
    assert output.splitlines()[-1].startswith("not equal; ")


@pytest.mark.heavy
def test_a_folder_stays_and_is_used_again_for_the_same_run_alone(toy: LineageToy, tmp_path: Path) -> None:
    folder = tmp_path / "again"
    for _ in range(2):
        assert are_equal(reproduce(toy, folder=folder))
        assert (folder / "runs" / "toy-reproduced" / "evaluation.json").exists()
        assert toy.worktrees == 1
    toy.run("train.lr=0.5")
    message = rf"{folder} is there, and is no reproduction of runs/toy; give a new --folder"
    with pytest.raises(ConfigError, match=message):
        reproduce(toy, folder=folder)
    shutil.rmtree(folder)  # by hand: Git still has it in its list
    assert are_equal(reproduce(toy, folder=folder))


@pytest.mark.parametrize("place", ["../mine", "sub"])
def test_a_folder_with_other_files_is_not_touched(toy: LineageToy, place: str) -> None:
    file = Path(place, "a.txt")
    file.parent.mkdir()
    file.write_text("mine")
    with pytest.raises(ConfigError, match="give a new --folder"):
        reproduce(toy, folder=file.parent)
    assert file.read_text() == "mine"


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everywhere")
def test_a_checkout_that_cannot_be_written_to_is_refused(toy: LineageToy, tmp_path: Path) -> None:
    git_folder = toy.folder / ".git"
    git_folder.chmod(0o555)
    try:
        with pytest.raises(ConfigError, match=r"\.git cannot be written to .*; .*clone that is writable$"):
            reproduce(toy, folder=tmp_path / "again")
    finally:
        git_folder.chmod(0o755)


def test_a_half_made_worktree_does_not_block(toy: LineageToy, tmp_path: Path) -> None:
    making = tmp_path / "again.wingspan-making"
    git("worktree", "add", "-q", "--detach", str(making), "HEAD", cwd=toy.folder)
    git("worktree", "lock", str(making), cwd=toy.folder)  # as Git does while it makes one
    assert are_equal(reproduce(toy, folder=tmp_path / "again"))
    assert (toy.worktrees, making.exists()) == (1, False)


def test_what_another_machine_has_made_is_not_forgotten(toy: LineageToy, tmp_path: Path) -> None:
    temporary, folder = tmp_path / "there" / "wingspan-reproduction", tmp_path / "again"
    assert are_equal(reproduce(toy, folder=temporary))
    assert are_equal(reproduce(toy, folder=folder))
    records = list((toy.folder / ".git" / "worktrees").iterdir())
    host = records[0] / "wingspan-host"
    assert [(record / host.name).read_text() for record in records] == [socket.gethostname()] * 2
    for record in records:
        (record / host.name).write_text("elsewhere")
    shutil.rmtree(temporary)  # as this machine sees it
    shutil.rmtree(folder)
    with pytest.raises(ConfigError, match=f"{folder} is a reproduction on another machine, elsewhere; give"):
        reproduce(toy, folder=folder)
    assert toy.worktrees == 2
    git("worktree", "remove", "--force", str(folder), cwd=toy.folder)
    assert are_equal(reproduce(toy, folder=folder))
    assert toy.worktrees == 2


@pytest.fixture
def waiting(toy: LineageToy, tmp_path: Path) -> Iterator[tuple["subprocess.Popen[str]", int]]:
    """A reproduction whose run never ends and writes all the time, and the id of that run's process."""
    pid_file = tmp_path / "pid"
    process = start(toy, str(WORKSPACE), WAIT=str(pid_file))
    wait_until(lambda: process.poll() is not None or (pid_file.exists() and pid_file.read_text() != ""))
    assert process.poll() is None, process.communicate()
    yield process, int(pid_file.read_text())
    if process.poll() is None:
        process.kill()


def has_ended(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


@pytest.mark.heavy
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_neither_files_nor_processes(
    toy: LineageToy, waiting: tuple["subprocess.Popen[str]", int], number: signal.Signals, status: int
) -> None:
    process, pid = waiting
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # as the key does
    else:
        process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == status, errors
    assert errors.splitlines()[-1] == "stopped; nothing is left of the reproduction"
    wait_until(lambda: has_ended(pid) and temporary_files(toy) == [])
    assert are_equal(reproduce(toy))
    assert toy.worktrees == 0


@pytest.mark.heavy
def test_after_kill_9_nothing_is_left_either(
    toy: LineageToy, waiting: tuple["subprocess.Popen[str]", int]
) -> None:
    process, pid = waiting
    process.kill()
    wait_until(lambda: has_ended(pid) and temporary_files(toy) == [])
    assert are_equal(reproduce(toy))
    assert toy.worktrees == 0, "Git has forgotten the one of the killed command"


def test_changes_that_were_not_committed_are_named_and_applied_on_request(toy: LineageToy) -> None:
    (toy.folder / "code.txt").write_text("4")
    (toy.folder / "new.py").touch()
    toy.run()
    git("checkout", "-q", "code.txt", cwd=toy.folder)
    message = refusal()
    assert "changes that were not committed (code.txt, new.py)" in message
    assert "--with-patch applies them from runs/toy/code.patch" in message
    lines = reproduce(toy, with_patch=True)
    assert are_equal(lines)
    assert lines["after sampled success"].second == "0.25"  # 4 x 4 rows / 64
    assert (toy.folder / "code.txt").read_text() == "8"
    Path(WORKSPACE, "code.patch").unlink()
    assert "there is no patch of them; commit them and run it again" in refusal(with_patch=True)


def test_a_patch_that_is_not_that_of_the_run_is_not_applied(toy: LineageToy) -> None:
    (toy.folder / "code.txt").write_text("4")
    toy.run()
    with Path(WORKSPACE, "code.patch").open("a") as file:
        file.write("\n")
    assert "there is no patch of them" in refusal(with_patch=True)


def test_hooks_do_not_run(toy: LineageToy) -> None:
    hook = toy.folder / ".git" / "hooks" / "post-checkout"
    hook.write_text("#!/bin/sh\nexit 1\n")
    hook.chmod(0o755)
    assert are_equal(reproduce(toy))


def test_a_patch_is_not_applied_where_none_is_needed(toy: LineageToy) -> None:
    assert "--with-patch: runs/toy was made from its commit alone" in refusal(with_patch=True)


def test_a_commit_that_is_not_here_is_refused(toy: LineageToy) -> None:
    file = Path(WORKSPACE, "lineage.json")
    lineage = json.loads(file.read_text())
    lineage["code"]["commit"] = "1" * 40
    file.write_text(json.dumps(lineage))
    message = refusal()
    assert f"commit {'1' * 40} of runs/toy is not in this clone, {toy.folder}; fetch it" in message
    lineage["code"]["commit"] = None
    file.write_text(json.dumps(lineage))
    assert "before its first commit" in refusal()


def test_a_run_whose_changes_are_unknown_is_refused(toy: LineageToy) -> None:
    file = Path(WORKSPACE, "lineage.json")
    lineage = json.loads(file.read_text())
    lineage["code"]["uncommitted"] = None
    file.write_text(json.dumps(lineage))
    assert "whether all code was committed when it ran is unknown" in refusal()


def test_code_outside_of_the_project_must_be_that_of_the_run(toy: LineageToy, tmp_path: Path) -> None:
    package = tmp_path / "cows"
    package.mkdir()
    (package / "env.py").write_text("1")
    file = Path(WORKSPACE, "lineage.json")
    lineage = json.loads(file.read_text())
    md5 = path_md5(package)
    lineage["stages"]["prepare"]["reads"][str(package)] = md5
    file.write_text(json.dumps(lineage))
    prepare_request(str(WORKSPACE), with_patch=False, downloads=Path("runs"))
    (package / "env.py").write_text("2")
    message = refusal()
    assert message.startswith(f"{package} has other content (MD5 {path_md5(package)}); stage prepare ")
    assert f"read it with MD5 {md5}" in message
    shutil.rmtree(package)
    assert refusal().startswith(f"{package} is not here; ")


def test_packages_of_another_environment_are_no_code_outside_of_the_project(toy: LineageToy) -> None:
    file = Path(WORKSPACE, "lineage.json")
    lineage = json.loads(file.read_text())
    package = "/elsewhere/.venv/lib/python3.11/site-packages/cows"
    lineage["stages"]["prepare"]["reads"][package] = "0" * 32
    file.write_text(json.dumps(lineage))
    prepare_request(str(WORKSPACE), with_patch=False, downloads=Path("runs"))


def test_a_run_without_an_evaluation_is_refused(toy: LineageToy) -> None:
    Path(WORKSPACE, "evaluation.json").unlink()
    assert "there is no runs/toy/evaluation.json, so the run is not finished" in refusal()


def test_a_secret_parameter_is_refused(toy: LineageToy) -> None:
    toy.run('servers.token="[redacted]"')
    assert "servers.token held " in refusal()
    assert "which is not recorded; run it by hand" in refusal()


def test_other_versions_of_packages_are_named(toy: LineageToy) -> None:
    file = Path(WORKSPACE, "lineage.json")
    lineage = json.loads(file.read_text())
    lineage["packages"] |= {"numpy": "0.1", "gone-away": "2.0"}
    lineage["machine"] = "Abacus"
    lineage["python"] = "2.7.18"
    file.write_text(json.dumps(lineage))
    warnings = prepare_request(str(WORKSPACE), with_patch=False, downloads=Path("runs")).warnings
    python, first, second = warnings
    assert python == f"the run was made with Python 2.7.18, and this is {platform.python_version()}"
    assert "2 packages have other versions than in the run: " in first
    assert "gone-away 2.0 → missing" in first
    assert "numpy 0.1 → " in first
    assert second.startswith("the run was made on Abacus, and this is ")


@pytest.mark.heavy
def test_records_of_this_process_are_not_those_of_the_reproduction(
    toy: LineageToy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WITH_PREFECT", "1")
    monkeypatch.setenv("MLFLOW_REGISTRY_URI", "sqlite:///mine.db")
    monkeypatch.setenv("PREFECT_API_DATABASE_CONNECTION_URL", "sqlite+aiosqlite:///mine.db")
    monkeypatch.setenv("PREFECT_SERVER_DATABASE_CONNECTION_URL", "sqlite+aiosqlite:///mine.db")
    reproduce(toy, folder=tmp_path / "again")
    variables = json.loads((tmp_path / "again" / "runs" / "toy-reproduced" / "variables.json").read_text())
    names = {"MLFLOW_TRACKING_URI": "sqlite:///mlflow.db", "PREFECT_HOME": f"{tmp_path}/again/runs/.prefect"}
    assert variables == names


class TestData:
    """Of a run whose rows Git does not have."""

    @pytest.fixture(scope="class")
    @classmethod
    def project(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        toy = LineageToy.make(tmp_path_factory.mktemp("project"), tracks_rows=False)
        toy.run()
        return toy.folder

    def test_data_that_is_only_here_is_copied(self, toy: LineageToy) -> None:
        assert reproduce(toy)[f"data: {ROWS}"].is_equal

    def test_changed_and_missing_data_is_named(self, toy: LineageToy) -> None:
        ROWS.write_text('{"question": "2"}\n' * 4)
        message = refusal()
        assert message.startswith(f"{ROWS} has other content (MD5 ")
        assert "has it neither in Git nor in DVC" in message
        ROWS.unlink()
        assert f"{ROWS} (MD5 " in refusal()

    def test_a_path_out_of_the_project_is_refused(self, toy: LineageToy) -> None:
        model = toy.folder.parent / "models" / "q"
        model.mkdir(parents=True)
        (model / "weights").write_text("1")
        file = Path(WORKSPACE, "lineage.json")
        lineage = json.loads(file.read_text())
        lineage["data"]["../models/q"] = path_md5(model)
        file.write_text(json.dumps(lineage))
        assert "../models/q is outside of the project, and would be another file in a worktree" in refusal()

    def test_a_link_out_of_the_worktree_is_not_followed(self, toy: LineageToy, tmp_path: Path) -> None:
        ROWS.parent.rename("../rows")
        ROWS.parent.symlink_to("../rows")
        commit(toy.folder, "rows beside the project")
        toy.run()
        mine = tmp_path / "other" / "rows" / ROWS.name
        mine.parent.mkdir(parents=True)
        mine.write_text("mine")
        with pytest.raises(ConfigError, match=f"a link to {mine}, which is not touched"):
            reproduce(toy, folder=tmp_path / "other" / "again")
        assert mine.read_text() == "mine"
        assert toy.worktrees == 0

    @pytest.mark.heavy
    def test_data_of_dvc_is_restored_whatever_is_here_now(self, toy: LineageToy, tmp_path: Path) -> None:
        from dvc.repo import Repo

        (toy.folder / ".gitignore").write_text("/runs/\n__pycache__/\n")
        with Repo.init() as repo:
            repo.add(str(ROWS))
        commit(toy.folder, "rows by DVC")
        toy.run()
        ROWS.unlink()
        ROWS.write_text('{"question": "2"}\n' * 8)
        assert are_equal(reproduce(toy))
        with Repo() as repo, repo.config.edit() as settings:
            settings["remote"]["shared"] = {"url": "../remote"}  # written relative to .dvc
            settings["core"]["remote"] = "shared"
        with Repo() as repo:
            repo.push()
        commit(toy.folder, "a remote")
        ROWS.unlink()
        with Repo() as repo:
            repo.checkout()
        toy.run()
        ROWS.unlink()
        shutil.rmtree(".dvc/cache")
        Path(".dvc/config.local").write_text("['remote \"shared\"']\n    verify = true\n")
        folder = tmp_path / "deeper" / "again"
        assert are_equal(reproduce(toy, folder=folder))
        assert not (folder / ".dvc" / "config.local").exists(), "it may hold passwords"
        shutil.rmtree(".dvc/cache")
        shutil.rmtree("../remote")
        with pytest.raises(WingspanError, match=r"DVC has the data of data/rows\.jsonl\.dvc neither in its"):
            reproduce(toy)
        assert toy.worktrees == 1
