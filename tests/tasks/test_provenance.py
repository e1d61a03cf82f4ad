"""What is said of the code that a run came from, asked of a real Git repository."""

import subprocess
from pathlib import Path

import pytest

from tasks.runs.provenance import provenance, repository_page, uncommitted_files


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "code.py").write_text("a = 1\n")
    for project in (tmp_path, tmp_path / "project"):
        project.mkdir(exist_ok=True)
        (project / "dvc.lock").write_text("schema: '2.0'\n")
    author = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    for arguments in (["init", "--quiet"], ["add", "."], [*author, "commit", "--quiet", "-m", "first"]):
        subprocess.run(["git", *arguments], cwd=tmp_path, check=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("project", [".", "project"])
def test_the_lock_that_a_run_writes_is_no_change_of_the_code(
    repository: Path, monkeypatch: pytest.MonkeyPatch, project: str
) -> None:
    monkeypatch.chdir(repository / project)
    assert provenance(envs=[], uncommitted=uncommitted_files())["git.dirty"] == "false"
    Path("dvc.lock").write_text("schema: '2.0'\nstages: {}\n")
    assert provenance(envs=[], uncommitted=uncommitted_files())["git.dirty"] == "false"


@pytest.mark.parametrize("name", ["code.py", "new.py"])
def test_any_other_change_is_one(repository: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (repository / name).write_text("a = 2\n")
    assert provenance(envs=[], uncommitted=uncommitted_files())["git.dirty"] == "true"
    below = repository / "folder"
    below.mkdir()
    monkeypatch.chdir(below)
    assert provenance(envs=[], uncommitted=uncommitted_files())["git.dirty"] == "true"


def test_what_git_refuses_to_say_is_unknown_and_not_nothing(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = repository / "folder"
    below.mkdir()
    monkeypatch.chdir(below)
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")  # "dubious ownership"
    assert uncommitted_files() is None
    monkeypatch.setenv("PATH", str(below))  # there is no Git
    assert uncommitted_files() is None


def test_outside_of_a_repository_changes_are_unknown(repository: Path) -> None:
    (repository / ".git").rename(repository / "no-git")
    assert uncommitted_files() is None
    assert "git.dirty" not in provenance(envs=[], uncommitted=uncommitted_files())  # there is no commit


@pytest.mark.parametrize(
    ("remote", "page"),
    [
        ("https://github.com/me/wingspan.git", "https://github.com/me/wingspan"),
        (
            "https://me:secret@git.example.org/group/sub/wingspan",
            "https://git.example.org/group/sub/wingspan",
        ),
        ("git@github.com:me/wingspan.git", "https://github.com/me/wingspan"),
        ("ssh://git@github.com/me/wingspan", "https://github.com/me/wingspan"),
        ("ssh://git@example.org:2222/me/wingspan", None),  # the port is not that of its pages
        ("/srv/git/wingspan", None),
        ("../wingspan", None),
        ("", None),
    ],
)
def test_a_remote_has_a_page_if_its_address_says_so(remote: str, page: str | None) -> None:
    assert repository_page(remote) == page


def test_the_commit_has_a_page(repository: Path) -> None:
    assert "git.url" not in provenance(envs=[], uncommitted=uncommitted_files())
    remote = "git@github.com:me/wingspan.git"
    subprocess.run(["git", "remote", "add", "origin", remote], check=True)
    facts = provenance(envs=[], uncommitted=uncommitted_files())
    assert facts["git.url"] == f"https://github.com/me/wingspan/tree/{facts['git.commit']}"
