"""The sources of a run's results besides its parameters: the commit of the code and package versions."""

import platform
import re
import subprocess
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from envs.registry import get_env

WRITTEN_BY_RUNS = "dvc.lock"
"""Every run writes this file, so a change to it alone does not make the code dirty."""
PACKAGES = ("torch", "verl", "ray", "transformers", "prefect", "mlflow", "dvc")

_REMOTE = re.compile(
    r"(?:https://(?:[^@/]*@)?|ssh://(?:[^@/]*@)?|[^@/:]+@)"
    r"(?P<host>[\w.-]+)(?:/|:(?!\d+/))(?P<path>.+?)(?:\.git)?/?"
)


def provenance(*, envs: Sequence[str]) -> dict[str, str]:
    """Git commit, whether files but `dvc.lock` differ from it, and versions, also of `envs`' packages."""
    facts = {"python": platform.python_version()}
    packages = dict.fromkeys(package for env in envs for package in get_env(env).packages)
    for package in (*PACKAGES, *packages):
        try:
            facts[f"version.{package}"] = version(package)
        except PackageNotFoundError:
            continue  # e.g. no verl on a machine that only evaluates
    commit = _git("rev-parse", "HEAD")
    if commit is not None:
        facts["git.commit"] = commit
        changes = _git("status", "--porcelain", "--", ":/", f":(top,exclude){WRITTEN_BY_RUNS}")
        facts["git.dirty"] = str(bool(changes)).lower()
        page = repository_page(_git("remote", "get-url", "origin") or "")
        if page is not None:
            facts["git.url"] = f"{page}/tree/{commit}"
    return facts


def repository_page(remote: str) -> str | None:
    """The web page of a Git remote by HTTPS or SSH, without user and password; None for another remote."""
    match = _REMOTE.fullmatch(remote)
    return f"https://{match['host']}/{match['path']}" if match else None


def _git(*arguments: str) -> str | None:
    try:
        answer = subprocess.run(["git", *arguments], capture_output=True, text=True, check=True, timeout=30)
    except (FileNotFoundError, subprocess.CalledProcessError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip()
