"""A Git worktree that holds what an earlier run was made from: its commit, its patch and its data.

It is made completely or not at all: it gets its name last. The index, the branches and the files of
this checkout are not touched.
"""

import os
import shutil
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from envs.errors import ConfigError, WingspanError, to_line
from envs.files import check_writable, copy_over, lock_file
from flows.lineage.versioning import restore_from_dvc
from tasks.config.data import FOLDER as DATA
from tasks.data.hashes import has_md5, path_md5, text_md5
from tasks.tracking.lineage_record import OF_HUB, LineageRecord
from tasks.tracking.references import FoundRun

NAME = "wingspan-reproduction"
"""The name of a temporary worktree."""
REMOVAL_S = 8.0
"""How long removal is retried, because processes that are ending still write files."""
_MAKING = ".wingspan-making"
"""Suffix of the name of an incomplete worktree."""
_IDENTITY = "wingspan-reproduction"
"""File in Git's folder of the worktree: of which run it is a reproduction."""
_HOST = "wingspan-host"
"""The same: on which machine the folder is, since a clone can be on a file system that several share."""
_LOCK = "wingspan-reproduction.lock"
"""File in Git's folder: held while a worktree is made."""


def check_commit(run: FoundRun) -> str:
    """The commit of `run`. Raises `ConfigError` if it has none, or if this clone does not have it."""
    commit = run.lineage.code.commit
    if commit is None:
        raise ConfigError(
            f"{run.reference} was made outside of a Git repository, or before its first commit, so that its "
            "code is unknown; commit the code and run it again"
        )
    if _try_git("rev-parse", "--git-dir") is None:
        raise ConfigError(
            f"{Path.cwd()} is no Git repository; run this in the clone that has commit {commit}"
        )
    if _try_git("cat-file", "-e", f"{commit}^{{commit}}") is None:
        raise ConfigError(
            f"commit {commit} of {run.reference} is not in this clone, {Path.cwd()}; fetch it (git fetch "
            "--all), or run this in the clone where the run was made"
        )
    return commit


def check_data(lineage: LineageRecord, *, commit: str) -> None:
    """Raise `ConfigError` for data of the run that neither Git nor DVC has at `commit`, and that is not here
    with the content that the run read; and for relative paths that lead out of the project."""
    for path, md5 in {**lineage.data, **lineage.prompts}.items():
        if ".." in Path(os.path.normpath(path)).parts:
            raise ConfigError(
                f"{path} is outside of the project, and would be another file in a worktree; name it by its "
                "absolute path, and run it again"
            )
        if (
            md5.startswith(OF_HUB)
            or _is_in_git(path, commit=commit)
            or _pointer(path, commit=commit) is not None
        ):
            continue  # `make_worktree` looks at the content
        if not Path(path).exists():
            raise ConfigError(
                f"{path} (MD5 {md5}) is not here, and commit {commit[:10]} has it neither in Git nor in DVC; "
                "bring it back"
            )
        if (here := path_md5(Path(path))) != md5:
            raise ConfigError(
                f"{path} has other content (MD5 {here}) than the run read (MD5 {md5}), and commit "
                f"{commit[:10]} has it neither in Git nor in DVC; bring that content back"
            )


def make_worktree(run: FoundRun, *, commit: str, folder: Path, patch: Path | None) -> Path:
    """Make the worktree `folder` for a reproduction of `run`, unless it is there from an earlier attempt.

    Returns this project's folder in it. Raises `ConfigError` if `folder` is something else, if the data that
    the run read is gone or if Git's folder is read-only, `WingspanError` if Git or DVC fails.
    """
    folder = folder.resolve()  # as Git names it
    prefix = _git("rev-parse", "--show-prefix")
    identity = _identity(run, patch=patch)
    git_folder = Path(_git("rev-parse", "--git-common-dir"))
    check_writable(git_folder, remedy="Git notes its worktrees there; run this in a clone that is writable")
    with lock_file(git_folder / _LOCK):
        _forget_stale(folder)
        if folder.exists() and any(folder.iterdir() if folder.is_dir() else [folder]):
            if _read_identity(folder) != identity:
                raise ConfigError(
                    f"{folder} is there, and is no reproduction of {run.reference}; give a new --folder"
                )
            return folder / prefix
        unfinished_folder = folder.with_name(folder.name + _MAKING)
        remove_worktree(unfinished_folder)  # of an attempt that was killed
        if folder.exists():
            folder.rmdir()
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            # Without the user's hooks: that of `dvc install` would check out everything that DVC has.
            without_hooks = ("-c", f"core.hooksPath={os.devnull}")
            _git(*without_hooks, "worktree", "add", "--quiet", "--detach", str(unfinished_folder), commit)
            record = Path(_git("rev-parse", "--absolute-git-dir", cwd=unfinished_folder))
            (record / _HOST).write_text(socket.gethostname())
            if patch is not None:
                _git("apply", "--whitespace=nowarn", str(patch.absolute()), cwd=unfinished_folder)
            _restore_data(run.lineage, commit=commit, project=unfinished_folder / prefix)
            (record / _IDENTITY).write_text(identity)
            _git("worktree", "move", str(unfinished_folder), str(folder))
        except BaseException:
            remove_worktree(unfinished_folder)
            raise
    return folder / prefix


def remove_worktree(folder: Path) -> None:
    """Remove the worktree `folder`, complete or not; do nothing if it does not exist."""
    folder = folder.resolve()
    if not folder.exists() and str(folder) not in _worktrees():
        return
    end = time.monotonic() + REMOVAL_S
    _try_git("worktree", "remove", "--force", "--force", str(folder))
    while folder.exists() and time.monotonic() < end:
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.1)
    # Now that the folder is gone, what Git still knows of it.
    _try_git("worktree", "remove", "--force", "--force", str(folder))


def _forget_stale(folder: Path) -> None:
    """Make Git forget our worktrees whose folders are gone, as after `kill -9`.

    Raises `ConfigError` if `folder` is one on another machine.
    """
    hostname = socket.gethostname()
    for record in list(Path(_git("rev-parse", "--git-common-dir"), "worktrees").glob("*")):
        link = record / "gitdir"
        if not link.exists():
            continue
        path = Path(os.path.normpath(record.absolute() / link.read_text().strip())).parent
        file = record / _HOST
        # One without a host was killed when it had just begun: nobody makes one while we hold the lock.
        host = file.read_text() if file.exists() else hostname
        is_temporary = path.name == NAME or path.name.endswith(_MAKING)
        if path.exists() or not (is_temporary or (path == folder and file.exists())):
            continue
        if host == hostname:
            _try_git("worktree", "remove", "--force", "--force", str(path))
        elif path == folder:
            raise ConfigError(
                f"{folder} is a reproduction on another machine, {host}; give a new --folder, or if it is "
                f"gone there: git worktree remove --force {folder}"
            )


def _worktrees() -> list[str]:
    lines = _git("worktree", "list", "--porcelain").splitlines()
    return [line.removeprefix("worktree ") for line in lines if line.startswith("worktree ")]


def _identity(run: FoundRun, *, patch: Path | None) -> str:
    """Reproductions with the same identity can share a worktree."""
    text = f"{run.lineage.model_dump_json()} {patch is not None}"
    return text_md5(text)


def _read_identity(folder: Path) -> str | None:
    """None for a folder that is no reproduction; Git would find the repository around it."""
    if not (folder / ".git").is_file():
        return None
    git_folder = _try_git("rev-parse", "--absolute-git-dir", cwd=folder)
    file = Path(git_folder or folder, _IDENTITY)
    return file.read_text() if file.exists() else None


def _restore_data(lineage: LineageRecord, *, commit: str, project: Path) -> None:
    """Bring the data of `lineage` into `project`: by DVC where it has it, else from this checkout."""
    paths = {
        path: md5
        for path, md5 in {**lineage.data, **lineage.prompts}.items()
        if not md5.startswith(OF_HUB) and not Path(path).is_absolute()
    }
    pointers = dict.fromkeys(
        pointer for path in paths if (pointer := _pointer(path, commit=commit)) is not None
    )
    if any(Path(path).parts[0] == DATA for path in paths):  # rows may name other files there, such as images
        pointers |= dict.fromkeys(_pointers(folder=DATA, commit=commit))
    if pointers:
        restore_from_dvc(list(pointers), target=project)
    for path, md5 in paths.items():
        if not has_md5(project / path, md5) and has_md5(Path(path), md5):
            _copy(Path(path), project / path, project=project)
    read_data = lineage.stages["prepare"].reads.get(DATA) if "prepare" in lineage.stages else None
    if read_data is not None and has_md5(Path(DATA), read_data):
        _copy_missing(Path(DATA), project / DATA, project=project)
    for path, md5 in paths.items():
        if not has_md5(project / path, md5):
            raise ConfigError(
                f"{path} with the content that the run read (MD5 {md5}) is neither in commit {commit[:10]}, "
                "nor in DVC, nor here; bring that content back"
            )


def _is_in_git(path: str, *, commit: str) -> bool:
    prefix = _git("rev-parse", "--show-prefix")
    return not Path(path).is_absolute() and _try_git("cat-file", "-e", f"{commit}:{prefix}{path}") is not None


def _pointer(path: str, *, commit: str) -> str | None:
    """The `.dvc` file at `commit` that names `path`, or a folder that it is in."""
    if Path(path).is_absolute():
        return None
    candidates = [f"{parent}.dvc" for parent in (Path(path), *Path(path).parents) if parent.name]
    return next((file for file in candidates if _is_in_git(file, commit=commit)), None)


def _pointers(*, folder: str, commit: str) -> list[str]:
    files = _git("ls-tree", "-r", "--name-only", commit, "--", folder).splitlines()
    return [file for file in files if file.endswith(".dvc")]


def _copy(source: Path, target: Path, *, project: Path) -> None:
    """Replaces what is at `target`. Raises `ConfigError` if a link leads it out of `project`."""
    if not target.resolve().is_relative_to(project.resolve()):
        raise ConfigError(
            f"{source} is outside of the project in a worktree: the commit has a link to {target.resolve()}, "
            "which is not touched; name the data by its absolute path, and run it again"
        )
    copy_over(source, target)


def _copy_missing(source: Path, target: Path, *, project: Path) -> None:
    for root, _, names in os.walk(source):
        for file in (Path(root, name) for name in names):
            if not (target / file.relative_to(source)).exists():
                _copy(file, target / file.relative_to(source), project=project)


def _try_git(*arguments: str, cwd: Path | None = None) -> str | None:
    with suppress(WingspanError):
        return _git(*arguments, cwd=cwd)
    return None


def _git(*arguments: str, cwd: Path | None = None) -> str:
    """Returns what Git prints. Raises `WingspanError` with what it says if it fails."""
    try:
        answer = subprocess.run(["git", *arguments], cwd=cwd, capture_output=True, text=True, check=True)
    except FileNotFoundError:
        raise ConfigError("git is not installed; install it") from None
    except subprocess.CalledProcessError as error:
        reason = to_line(WingspanError(error.stderr.strip()), limit=300)
        raise WingspanError(f"`git {' '.join(arguments[:5])}` failed: {reason}") from None
    return answer.stdout.strip()
