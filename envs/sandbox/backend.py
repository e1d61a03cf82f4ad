"""The limits of a sandbox, the base class of the backends that build one, and the probe that tests them.

A *backend* turns limits into the command line that runs a program in a sandbox. Its isolation is never
assumed: a probe (`envs/sandbox/probe.py`) runs inside and tries to escape, and a backend that it can
escape from is refused like one that is not installed.
"""

import json
import os
import platform
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from envs.errors import MissingDependency, describe, to_line
from envs.sandbox.seccomp import CLONE, MACHINES, forbidden_numbers

NOBODY = 65534
AS_NOBODY = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--no-new-privs")
"""Begins a command that root runs as nobody."""
PROBE_TIMEOUT_S = 60.0
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/work", "LANG": "C.UTF-8"}
"""All environment variables in a sandbox."""
_PROBE = (Path(__file__).parent / "probe.py").read_text()
_NAMESPACES = ("pid", "net", "ipc", "mnt", "uts")


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLimits:
    """What a sandbox may use."""

    cpu_s: float = 30.0
    """CPU seconds of all processes in one run, enforced by `envs/sandbox/interpreter.py`."""
    memory_mb: int = 512
    """Enforced by the kernel for each process, and by the interpreter for all together."""
    processes: int = 32
    disk_mb: int = 64
    """Size of `/work` and of `/tmp`, whose files are in memory."""
    shm_mb: int = 16
    open_files: int = 128


@dataclass(frozen=True, slots=True)
class Backend(ABC):
    """One way to run a program in a sandbox. A label identifies a sandbox on this machine."""

    name: str
    python: str = "python3"
    """The interpreter inside."""

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment that `command` itself is started with; invisible inside."""
        return {}

    @abstractmethod
    def find_remedy(self) -> str | None:
        """Return None if the backend works here, else what to do, in a few words."""

    @abstractmethod
    def command(self, program: Sequence[str], limits: SandboxLimits, *, label: str) -> list[str]:
        """Return the command line that runs `program` in a sandbox, with its standard streams."""

    def first_process(self, pid: int, *, label: str) -> int | None:
        """Return the process from which all of the sandbox's descend; None if this machine sees none.

        `pid` is the started command's.
        """
        return pid

    def end(self, label: str) -> list[str]:
        """Return the command that ends the sandbox; empty if killing its process group is enough."""
        return []


def apply_limits(program: Sequence[str], limits: SandboxLimits) -> list[str]:
    """Return the command that runs `program`, inside, under the kernel's limits for each process."""
    memory, files = f"--as={limits.memory_mb << 20}", f"--nofile={limits.open_files}"
    return ["prlimit", memory, files, f"--fsize={limits.disk_mb << 20}", "--core=0", *program]


@cache
def check(backend: Backend) -> None:
    """Raise `MissingDependency` if `backend` does not work here; a success is remembered."""
    remedy = backend.find_remedy()
    if remedy is not None:
        raise MissingDependency(
            f"no sandbox for code, and it never runs without one: {backend.name} does not work here; {remedy}"
        )


def find_failure(backend: Backend) -> str | None:
    """Return what is wrong with an installed backend; None if the probe does not escape from it."""
    machine = platform.machine()
    if machine not in MACHINES:
        return f"use a machine of {' or '.join(MACHINES)}: there is no filter of system calls for {machine}"
    escapes = find_escapes(backend)
    return None if escapes is None else f"its isolation fails here ({escapes})"


@cache
def find_escapes(backend: Backend) -> str | None:
    """Run the probe in a sandbox; return the escapes that it found, in a few words, or None."""
    limits = SandboxLimits()
    request = {
        "limits": asdict(limits),
        "environment": sorted(ENVIRONMENT),
        "namespaces": {name: os.readlink(f"/proc/self/ns/{name}") for name in _NAMESPACES},
        "calls": forbidden_numbers(),
        "clone": CLONE[platform.machine()],
    }
    label = f"wingspan-probe-{os.getpid()}"
    program = [backend.python, "-I", "-c", _PROBE, json.dumps(request)]
    try:
        done = subprocess.run(
            backend.command(program, limits, label=label),
            env=dict(backend.environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT_S,
        )
        escapes = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        if end := backend.end(label):
            subprocess.run(end, env=dict(backend.environment), capture_output=True)
        return f"no answer within {PROBE_TIMEOUT_S:g} s"
    except OSError as error:
        return describe(error)
    except ValueError:
        return to_line(done.stderr, limit=200) or f"exit status {done.returncode}"
    return ", ".join(escapes) or None
