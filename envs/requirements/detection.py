"""Programs and packages that environments need: how to detect them, and the commands that install them.

Environments name their requirements in their `EnvSpec`. Detection is not cached, so newly installed
requirements are found.
"""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from envs.errors import MissingDependency, describe, to_line

if TYPE_CHECKING:
    from packaging.requirements import Requirement as Declaration

APPLICATION = "wingspan"
"""The distribution whose declared dependencies determine the required versions."""
PROBE_TIMEOUT_S = 30.0


class Requirement(Hashable, Protocol):
    """Something that must be installed on this machine. Hashable, because the `EnvSpec` that names it is."""

    @property
    def name(self) -> str:
        """The name that messages use."""

    def find_remedy(self) -> str | None:
        """Return None if it is installed and works, else the command that installs it."""


@dataclass(frozen=True, slots=True)
class Package:
    """A Python distribution, in a version that `pyproject.toml` allows."""

    name: str

    def find_remedy(self) -> str | None:
        conflict = self.describe_conflict()
        return None if conflict is None else f"{pip_install(self.name)} {conflict}".rstrip()

    def describe_conflict(self) -> str | None:
        """Return None if the installed version fits, "" if there is none, else
        `(x 1.0 is installed, ==2.0 is required)`."""
        from packaging.requirements import Requirement as Declaration

        try:
            installed_version = version(self.name)
        except PackageNotFoundError:
            return ""
        declarations = (line for line in declared_packages() if line.name == self.name)
        specifier = next(declarations, Declaration(self.name)).specifier
        if specifier.contains(installed_version, prereleases=True):
            return None
        return f"({self.name} {installed_version} is installed, {specifier} is required)"


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A program on the PATH."""

    name: str
    command: Sequence[str]
    """Prints the version; succeeds if the program works."""
    packages: Mapping[str, str]
    """Package manager → its name for the program."""

    def find_remedy(self) -> str | None:
        path = shutil.which(self.command[0])
        if path is None:
            return install_command(self.packages)
        # It may be a stub that only names a download page (macOS: java).
        reason = describe_failure([path, *self.command[1:]])
        return None if reason is None else f"{install_command(self.packages)} ({path} does not run: {reason})"

    def version(self) -> str:
        """Return the first line that `command` prints; empty if the program is not installed."""
        if shutil.which(self.command[0]) is None:
            return ""
        done = subprocess.run(self.command, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S)
        return (done.stdout or done.stderr).partition("\n")[0].strip()


@dataclass(frozen=True, slots=True, eq=False)
class CheckedRequirement:
    """A requirement with its own check, such as a server that must answer."""

    name: str
    find_remedy: Callable[[], str | None]


_INSTALL = {
    "conda": "conda install -c conda-forge",
    "apt-get": "apt-get install",
    "dnf": "dnf install",
    "brew": "brew install",
}
"""In order of preference; conda's only inside one of its environments."""

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
BUBBLEWRAP = Program("bubblewrap", ("bwrap", "--version"), dict.fromkeys(_INSTALL, "bubblewrap"))
UTIL_LINUX = Program("util-linux", ("prlimit", "--version"), dict.fromkeys(_INSTALL, "util-linux"))
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


def _find_namespaces_remedy() -> str | None:
    reason = describe_failure(["unshare", "--user", "true"])
    if reason is None:
        return None
    remedies = [remedy for file, value, remedy in _NAMESPACE_SETTINGS if _has_text(file, value)]
    return " and ".join(remedies) or f"have the machine allow user namespaces ({reason})"


USER_NAMESPACES = CheckedRequirement("user namespaces", _find_namespaces_remedy)
"""What sandboxes consist of unless Wingspan runs as root; the system may forbid them."""

_EXTRA = re.compile(r"extra == [\"']([\w.-]+)[\"']")


def first_remedy(*needs: Requirement) -> str | None:
    """Return the remedy for the first of `needs` that is missing."""
    return next(filter(None, (need.find_remedy() for need in needs)), None)


def require(subject: str, needs: Iterable[Requirement]) -> None:
    """Raise `MissingDependency` if `subject` lacks any of `needs`; it names them and the commands to run."""
    missing = [(need, remedy) for need in needs if (remedy := need.find_remedy()) is not None]
    if not missing:
        return
    packages = [need for need, _ in missing if isinstance(need, Package)]
    conflicts = filter(None, (package.describe_conflict() for package in packages))
    install = " ".join([pip_install(*(package.name for package in packages)), *conflicts])
    # A package and a data set may share a name, and one command installs all packages.
    names = dict.fromkeys(need.name for need, _ in missing)
    commands = dict.fromkeys(install if isinstance(need, Package) else remedy for need, remedy in missing)
    raise MissingDependency(f"{subject} needs {', '.join(names)}; {'; '.join(commands)}")


@cache
def declared_packages() -> "tuple[Declaration, ...]":
    """Return the dependencies that this application declares, extras included; none if it is not installed.

    They are read once: each of a hundred packages is looked up in them, and reading takes 5 ms.
    """
    from packaging.requirements import Requirement as Declaration

    try:
        return tuple(map(Declaration, requires(APPLICATION) or []))
    except PackageNotFoundError:
        return ()


def constraints_file(*, has_vllm: bool = False) -> str:
    """Return the file of versions that were tested together; an environment with vLLM has another one."""
    with suppress(PackageNotFoundError):
        has_vllm = bool(version("vllm"))
    return "constraints-gpu.txt" if has_vllm else "constraints.txt"


def pip_install(*packages: str) -> str:
    """Return the command that installs `packages` in the versions of `constraints_file`.

    It installs a declared dependency through the application or its extra, any other package by name.
    """
    from packaging.requirements import Requirement as Declaration

    core: set[str] = set()
    extras: dict[str, set[str]] = {}
    for line in declared_packages():
        extra = _EXTRA.search(str(line.marker or ""))
        if extra is None:
            core.add(line.name)
        elif extra[1] != "dev":
            extras.setdefault(extra[1], set()).add(line.name)
    targets = []
    remaining = {Declaration(package).name: package for package in packages}
    while remaining:
        # The extra that has most of the remaining packages, and the fewest others.
        best = max(
            extras, key=lambda extra: (len(extras[extra] & remaining.keys()), -len(extras[extra])), default=""
        )
        matches = extras.get(best, set()) & remaining.keys()
        if matches:
            targets.append(f"-e '.[{best}]'")
        else:
            name, package = next(iter(remaining.items()))
            targets.append("-e ." if name in core else shlex.quote(package))
            matches = {name}
        remaining = {name: package for name, package in remaining.items() if name not in matches}
    constraints = constraints_file(has_vllm="-e '.[gpu]'" in targets)
    return f"uv pip install {' '.join(dict.fromkeys(targets))} -c {constraints} --overrides overrides.txt"


def install_command(packages: Mapping[str, str]) -> str:
    """Return the command for this machine's package manager, or those for all if it has no known one."""
    for manager, install in _INSTALL.items():
        is_active = manager != "conda" or "CONDA_PREFIX" in os.environ
        if is_active and manager in packages and shutil.which(manager) is not None:
            sudo = "sudo " if manager in ("apt-get", "dnf") and os.geteuid() != 0 else ""
            return f"{sudo}{install} {packages[manager]}"
    return " or ".join(
        f"{install} {packages[name]}" for name, install in _INSTALL.items() if name in packages
    )


def describe_failure(command: Sequence[str]) -> str | None:
    """Run `command`; return None if it succeeds, else the cause in a few words."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return describe(error)
    if done.returncode == 0:
        return None
    return to_line(done.stderr or done.stdout, limit=160) or f"exit status {done.returncode}"


def _has_text(file: str, text: str) -> bool:
    try:
        return Path(file).read_text().strip() == text
    except OSError:
        return False
