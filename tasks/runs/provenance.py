"""The sources of a run's results besides its parameters: code, package versions and the machine."""

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory

from envs.registry import get_env

WRITTEN_BY_RUNS = "dvc.lock"
"""Every run writes this file, so a change to it alone does not make the code dirty."""
PACKAGES = ("torch", "verl", "ray", "transformers", "prefect", "mlflow", "dvc")
MAX_PATCH_BYTES = 10_000_000
"""Bytes of all files that differ from the commit; no patch is made of more."""
GIT_S = 30
"""The time for each call of Git."""

_REMOTE = re.compile(
    r"(?:https://(?:[^@/]*@)?|ssh://(?:[^@/]*@)?|[^@/:]+@)"
    r"(?P<host>[\w.-]+)(?:/|:(?!\d+/))(?P<path>.+?)(?:\.git)?/?"
)


def provenance(*, envs: Sequence[str], uncommitted: Sequence[str] | None) -> dict[str, str]:
    """Git commit, whether files differ from it, and versions, also of `envs`' packages.

    `uncommitted`: the files that differ, as `uncommitted_files` lists them.
    """
    facts = {"python": platform.python_version()}
    packages = dict.fromkeys(package for env in envs for package in get_env(env).packages)
    for package in (*PACKAGES, *packages):
        try:
            facts[f"version.{package}"] = version(package)
        except PackageNotFoundError:
            continue  # e.g. no verl on a machine that only evaluates
    commit = head_commit()
    if commit is not None:
        facts["git.commit"] = commit
        facts["git.dirty"] = dirty_tag(uncommitted)
        page = repository_page(_git("remote", "get-url", "origin") or "")
        if page is not None:
            facts["git.url"] = f"{page}/tree/{commit}"
    return facts


def repository_page(remote: str) -> str | None:
    """The web page of a Git remote by HTTPS or SSH, without user and password; None for another remote."""
    match = _REMOTE.fullmatch(remote)
    return f"https://{match['host']}/{match['path']}" if match else None


def dirty_tag(uncommitted: Sequence[str] | None) -> str:
    """Whether there are files that differ from the commit: true, false, or unknown."""
    return "unknown" if uncommitted is None else str(bool(uncommitted)).lower()


def head_commit() -> str | None:
    """The commit that is checked out; None outside of a Git repository, and before its first commit."""
    return _git("rev-parse", "--verify", "--quiet", "HEAD")


def is_in_repository() -> bool:
    """Whether Git says that the working directory is in a repository."""
    return _git("rev-parse", "--show-prefix") is not None


def uncommitted_files(*, leave_out: Sequence[Path] = ()) -> list[str] | None:
    """Files that differ from the commit, relative to the working directory, without those that Git ignores,
    `dvc.lock`, and the files and folders of `leave_out`; a repository within this one is one of them, with a
    slash at its end. None outside of a repository, and if Git is missing, refuses or fails, or takes longer
    than `GIT_S`."""
    prefix = _git("rev-parse", "--show-prefix")
    if prefix is None:
        return None
    lines = _git("status", "--porcelain", "--no-renames", "-uall", "-z", "--", *_pathspecs(leave_out))
    if lines is None:
        return None
    # Status names paths relative to the repository's root, whatever the working directory is.
    return [os.path.relpath(line[3:], prefix or ".") for line in lines.split("\0") if line]


def make_patch(files: Sequence[str]) -> bytes | None:
    """A patch for `git apply` that turns the commit's version of `files` into that of the working directory;
    None if they are too large or too many, if Git fails, and for a repository within this one, whose files no
    patch can hold. The index is not touched."""
    if any(os.path.isdir(file) and not os.path.islink(file) for file in files):
        return None
    if sum(size for file in files if (size := _size(file))) > MAX_PATCH_BYTES:
        return None
    index = _git("rev-parse", "--git-path", "index")
    if index is None:
        return None
    with TemporaryDirectory() as folder:
        own_index = Path(folder, "index")
        if Path(index).exists():
            shutil.copy(index, own_index)
        variables = {"GIT_INDEX_FILE": str(own_index), "GIT_LITERAL_PATHSPECS": "1"}
        existing_files = [file for file in files if os.path.lexists(file)]
        # As if they were about to be added, so that new files have a difference.
        intent = ("add", "--intent-to-add", "--", *existing_files)
        if existing_files and _git(*intent, variables=variables) is None:
            return None
        form = ("--no-color", "--no-relative", "--src-prefix=a/", "--dst-prefix=b/")  # whatever the user's is
        difference = ("diff", "--binary", "--no-ext-diff", "--no-textconv", *form, "HEAD", "--", *files)
        return _git_bytes(*difference, variables=variables)


def installed_packages() -> dict[str, str]:
    """The version of every installed distribution, by its normalized name."""
    versions: dict[str, str] = {}
    for folder in map(Path, reversed(sys.path)):  # the first on the path is the one that is imported
        for file in folder.glob("*.dist-info") if folder.is_dir() else ():
            name, _, number = file.stem.rpartition("-")
            versions[re.sub(r"[-_.]+", "-", name).lower()] = number
    return dict(sorted(versions.items()))


def describe_machine() -> str:
    """The processor, on which the last bits of results depend: kernels are chosen by it."""
    model = platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else model


def _pathspecs(leave_out: Sequence[Path]) -> list[str]:
    folder = Path.cwd()
    paths = [os.path.relpath(path) for path in leave_out if (folder / path).is_relative_to(folder)]
    return [":/", f":(exclude){WRITTEN_BY_RUNS}", *(f":(exclude){path}" for path in paths)]


def _size(file: str) -> int:
    try:
        return os.lstat(file).st_size
    except OSError:  # it was deleted
        return 0


def _git(*arguments: str, variables: Mapping[str, str] | None = None) -> str | None:
    output = _git_bytes(*arguments, variables=variables)
    return None if output is None else output.decode(errors="surrogateescape").strip("\n")


def _git_bytes(*arguments: str, variables: Mapping[str, str] | None = None) -> bytes | None:
    try:
        answer = subprocess.run(
            ["git", *arguments],
            env={**os.environ, **(variables or {})},
            capture_output=True,
            check=True,
            timeout=GIT_S,
        )
    except (OSError, subprocess.CalledProcessError, subprocess.TimeoutExpired):
        return None  # an OSError: there is no Git, or the arguments are too long for the system
    return answer.stdout
