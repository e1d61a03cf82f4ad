"""What an environment needs beside this code: how each thing is detected, and the command that brings it.

The one place of these facts: environments name their requirements in their `EnvSpec`, and whoever needs
one asks here. Nothing is remembered between two questions: what was installed meanwhile is found.
"""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Protocol

from envs.errors import MissingDependency

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
        """See `Requirement`."""
        from packaging.requirements import Requirement as Declared

        declared = [Declared(line) for line in _declared()]
        wanted = next((line for line in declared if line.name == self.name), Declared(self.name))
        try:
            found = version(self.name)
        except PackageNotFoundError:
            return pip_install(self.name)
        if wanted.specifier.contains(found, prereleases=True):
            return None
        return f"{pip_install(self.name)} ({self.name} {found} is installed, {wanted.specifier} is wanted)"


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A program that is run by name."""

    name: str
    command: Sequence[str]
    """Succeeds where the program works; its first word is the program."""
    packages: Mapping[str, str]
    """Package manager → what it calls the program."""

    def find_remedy(self) -> str | None:
        """See `Requirement`."""
        path = shutil.which(self.command[0])
        if path is None:
            return install_command(self.packages)
        # A name on the PATH may be a stub that only tells where to get the program (macOS: java).
        said = failure([path, *self.command[1:]])
        return None if said is None else f"{install_command(self.packages)} ({path} does not run: {said})"

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


@dataclass(frozen=True, slots=True)
class UserNamespaces:
    """What sandboxes are made of where we are not root; the system may forbid them."""

    name: str = "user namespaces"

    def find_remedy(self) -> str | None:
        """See `Requirement`."""
        said = failure(["unshare", "--user", "true"])
        if said is None:
            return None
        remedies = [remedy for file, closed, remedy in _NAMESPACE_SETTINGS if _reads(file, closed)]
        return " and ".join(remedies) or f"have the machine allow user namespaces ({said})"


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

_EXTRA = re.compile(r"extra == [\"'](\w+)[\"']")

_INSTALL = {
    "conda": "conda install -c conda-forge",
    "apt-get": "apt-get install",
    "dnf": "dnf install",
    "brew": "brew install",
}
"""In the order of preference; conda's only within one of its environments."""


def require(who: str, needs: Iterable[Requirement]) -> None:
    """Raise `MissingDependency`, with all that is missing of what `who` needs, unless all is here."""
    lacks = [(need.name, remedy) for need in needs if (remedy := need.find_remedy()) is not None]
    if lacks:  # a package and a data set may have one name, and several packages one command
        names, remedies = (dict.fromkeys(column) for column in zip(*lacks, strict=True))
        raise MissingDependency(f"{who} needs {', '.join(names)}; {'; '.join(remedies)}")


def pip_install(*packages: str) -> str:
    """The command that installs `packages` in versions that fit all others: those of `constraints.txt`.

    What this application declares comes with its extra, whichever has it, all else by name.
    """
    from packaging.requirements import Requirement as Declared

    extras: dict[str, str | None] = {}
    for line in map(Declared, _declared()):
        marker = _EXTRA.search(str(line.marker or ""))
        if marker is None or marker[1] != "dev":  # whose packages other extras have, too
            extras.setdefault(line.name, marker and marker[1])
    targets = []
    for package in packages:
        name = Declared(package).name
        extra = extras.get(name)
        if name not in extras:
            targets.append(shlex.quote(package))
        else:
            targets.append("-e ." if extra is None else f"-e '.[{extra}]'")
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
        return f"{type(error).__name__}: {error}"
    if done.returncode == 0:
        return None
    return " ".join((done.stderr or done.stdout).split())[:160] or f"exit status {done.returncode}"


def _declared() -> list[str]:
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
