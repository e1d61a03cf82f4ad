"""What an environment needs beside this code: how each thing is detected, and the command that brings it.

The one place of these facts: environments name their requirements in their `EnvSpec`, and whoever needs
one asks here. Nothing is remembered between two questions: what was installed meanwhile is found.
"""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Protocol

from envs.errors import MissingDependency, describe

APPLICATION = "wingspan"
"""The distribution whose declared dependencies say which versions are wanted."""
PROBE_TIMEOUT_S = 30.0


class Requirement(Protocol):
    """Something that must be on this machine."""

    @property
    def name(self) -> str:
        """As users call it."""
        ...

    def find_remedy(self) -> str | None:
        """None if it is here and works; else the command that mends that."""
        ...


@dataclass(frozen=True, slots=True)
class Package:
    """A Python distribution, in a version that `pyproject.toml` allows."""

    name: str

    def find_remedy(self) -> str | None:
        """The command that installs it, and why the installed version does not do."""
        try:
            version(self.name)
        except PackageNotFoundError:
            return pip_install(self.name)
        conflict = self.describe_conflict()
        return f"{pip_install(self.name)} {conflict}" if conflict else None

    def describe_conflict(self) -> str:
        """`(x 1.0 is installed, ==2.0 is required)`; empty if it is absent or fits."""
        from packaging.requirements import Requirement as Declaration

        try:
            installed = version(self.name)
        except PackageNotFoundError:
            return ""
        declarations = (line for line in map(Declaration, _declarations()) if line.name == self.name)
        declaration = next(declarations, Declaration(self.name))
        if declaration.specifier.contains(installed, prereleases=True):
            return ""
        return f"({self.name} {installed} is installed, {declaration.specifier} is required)"


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A program that is run by name."""

    name: str
    command: Sequence[str]
    """Succeeds where the program works; its first word is the program."""
    packages: Mapping[str, str]
    """Package manager → what it calls the program."""

    def find_remedy(self) -> str | None:
        path = shutil.which(self.command[0])
        if path is None:
            return install_command(self.packages)
        # A name on the PATH may be a stub that only tells where to get the program (macOS: java).
        reason = failure([path, *self.command[1:]])
        return None if reason is None else f"{install_command(self.packages)} ({path} does not run: {reason})"

    def version(self) -> str:
        """The first line of what it says of itself; empty where it is not here."""
        path = shutil.which(self.command[0])
        if path is None:
            return ""
        done = subprocess.run(
            [path, *self.command[1:]], capture_output=True, text=True, timeout=PROBE_TIMEOUT_S
        )
        lines = (done.stdout or done.stderr).splitlines()
        return lines[0].strip() if lines else ""


@dataclass(frozen=True, slots=True, eq=False)
class CheckedRequirement:
    """A requirement with a check of its own, such as a server that must answer."""

    name: str
    find_remedy: Callable[[], str | None]


@dataclass(frozen=True, slots=True)
class UserNamespaces:
    """What sandboxes are made of where we are not root; the system may forbid them."""

    name: str = "user namespaces"

    def find_remedy(self) -> str | None:
        reason = failure(["unshare", "--user", "true"])
        if reason is None:
            return None
        remedies = [
            remedy for file, forbidding_value, remedy in _NAMESPACE_SETTINGS if _reads(file, forbidding_value)
        ]
        return " and ".join(remedies) or f"have the machine allow user namespaces ({reason})"


JAVA = Program(
    "Java",
    ("java", "-version"),
    {
        "conda": "openjdk",
        "apt-get": "default-jre-headless",
        "dnf": "java-latest-openjdk-headless",
        "brew": "--cask temurin",
    },
)
BUBBLEWRAP = Program(
    "bubblewrap",
    ("bwrap", "--version"),
    {"conda": "bubblewrap", "apt-get": "bubblewrap", "dnf": "bubblewrap", "brew": "bubblewrap"},
)
UTIL_LINUX = Program(
    "util-linux",
    ("prlimit", "--version"),
    {"conda": "util-linux", "apt-get": "util-linux", "dnf": "util-linux", "brew": "util-linux"},
)
PODMAN = Program("podman", ("podman", "--version"), {"apt-get": "podman", "dnf": "podman", "brew": "podman"})
DOCKER = Program(
    "docker", ("docker", "--version"), {"apt-get": "docker.io", "dnf": "moby-engine", "brew": "--cask docker"}
)

_NAMESPACE_SETTINGS = (
    ("/proc/sys/user/max_user_namespaces", "0", "sysctl -w user.max_user_namespaces=15000"),
    ("/proc/sys/kernel/unprivileged_userns_clone", "0", "sysctl -w kernel.unprivileged_userns_clone=1"),
    (
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
    ),
)
"""File, the text in it that forbids user namespaces, the command that allows them."""

_EXTRA = re.compile(r"extra == [\"']([\w.-]+)[\"']")

_INSTALL = {
    "conda": "conda install -c conda-forge",
    "apt-get": "apt-get install",
    "dnf": "dnf install",
    "brew": "brew install",
}
"""In the order of preference; conda's only within one of its environments."""


def require(subject: str, needs: Iterable[Requirement]) -> None:
    """Raise `MissingDependency`, which names all that `subject` lacks and the commands that install it."""
    missing = [(need, remedy) for need in needs if (remedy := need.find_remedy()) is not None]
    if not missing:
        return
    packages = [need for need, _ in missing if isinstance(need, Package)]
    conflicts = filter(None, (package.describe_conflict() for package in packages))
    install = " ".join([pip_install(*(package.name for package in packages)), *conflicts])
    # A package and a data set may have one name, and all packages have one command.
    names = dict.fromkeys(need.name for need, _ in missing)
    commands = dict.fromkeys(install if isinstance(need, Package) else remedy for need, remedy in missing)
    raise MissingDependency(f"{subject} needs {', '.join(names)}; {'; '.join(commands)}")


def pip_install(*packages: str) -> str:
    """The command that installs `packages` in versions that fit all others: those of `constraints.txt`.

    A package that this application declares comes with the application or the extra that has it, any other
    package by its name.
    """
    from packaging.requirements import Requirement as Declaration

    core: set[str] = set()
    extras: dict[str, set[str]] = {}
    for line in map(Declaration, _declarations()):
        extra = _EXTRA.search(str(line.marker or ""))
        if extra is None:
            core.add(line.name)
        elif extra[1] != "dev":  # what tests need in addition
            extras.setdefault(extra[1], set()).add(line.name)
    targets = []
    remaining = {Declaration(package).name: package for package in packages}
    while remaining:
        # The extra that brings most of what remains, and the least besides.
        best = max(
            extras, key=lambda extra: (len(extras[extra] & remaining.keys()), -len(extras[extra])), default=""
        )
        brought = extras.get(best, set()) & remaining.keys()
        if brought:
            targets.append(f"-e '.[{best}]'")
        else:
            name, package = next(iter(remaining.items()))
            targets.append("-e ." if name in core else shlex.quote(package))
            brought = {name}
        remaining = {name: package for name, package in remaining.items() if name not in brought}
    return f"uv pip install {' '.join(dict.fromkeys(targets))} -c constraints.txt --overrides overrides.txt"


def install_command(packages: Mapping[str, str]) -> str:
    """The command for this machine's package manager; all of them where it has none that we know."""
    for manager, install in _INSTALL.items():
        active = manager != "conda" or "CONDA_PREFIX" in os.environ
        if active and manager in packages and shutil.which(manager) is not None:
            sudo = "sudo " if manager in ("apt-get", "dnf") and os.geteuid() != 0 else ""
            return f"{sudo}{install} {packages[manager]}"
    return " or ".join(
        f"{install} {packages[name]}" for name, install in _INSTALL.items() if name in packages
    )


def failure(command: Sequence[str]) -> str | None:
    """Run `command`; None if it succeeds, else in a few words what went wrong."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return describe(error)
    if done.returncode == 0:
        return None
    return " ".join((done.stderr or done.stdout).split())[:160] or f"exit status {done.returncode}"


def _declarations() -> list[str]:
    """This application's dependencies with those of its extras; none where it is not installed."""
    try:
        return requires(APPLICATION) or []
    except PackageNotFoundError:
        return []


def _reads(file: str, text: str) -> bool:
    try:
        return Path(file).read_text().strip() == text
    except OSError:
        return False
