"""The limits of a sandbox, the interface of the backends that build one, and the probe that tests them.

A *backend* turns limits into the command line that runs a program in a sandbox. Its isolation is never
assumed: a probe (`envs/sandbox/probe.py`) runs inside and tries to escape, and a backend that it can
escape from is refused like one that is not installed.
"""

import json
import os
import platform
import subprocess
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

from envs.errors import MissingDependency, describe
from envs.sandbox.seccomp import CLONE, forbidden_numbers

NOBODY = 65534
PROBE_TIMEOUT_S = 60.0
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/work", "LANG": "C.UTF-8"}
"""All that a program in a sandbox sees of one."""
_PROBE = (Path(__file__).parent / "probe.py").read_text()
_NAMESPACES = ("pid", "net", "ipc", "mnt", "uts")


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLimits:
    """What a sandbox may use."""

    cpu_s: float = 30.0
    """CPU seconds of all processes together in one run, by the watch of `envs/sandbox/interpreter.py`."""
    memory_mb: int = 512
    """Of each process by the kernel, and of all together by the watch."""
    processes: int = 32
    disk_mb: int = 64
    """Of `/work` and `/tmp` each; files are kept in memory."""
    shm_mb: int = 16
    open_files: int = 128


class Backend(Hashable, Protocol):
    """One way to run a program in a sandbox. A label names a sandbox among all on this machine."""

    @property
    def name(self) -> str:
        """As users call it."""
        ...

    @property
    def python(self) -> str:
        """The interpreter inside."""
        ...

    @property
    def environment(self) -> Mapping[str, str]:
        """What `command` itself is to be started with; nothing of it is seen inside."""
        ...

    def find_remedy(self) -> str | None:
        """None if it works here; else what to do, in a few words."""
        ...

    def command(self, program: Sequence[str], limits: SandboxLimits, *, label: str) -> list[str]:
        """The command line that runs `program` in a sandbox; its standard streams are the program's."""
        ...

    def first_process(self, pid: int, *, label: str) -> int | None:
        """The process whose descendants are all of the sandbox's; None where this machine sees none.

        `pid`: of the started command.
        """
        ...

    def end(self, label: str) -> list[str]:
        """The command that ends a sandbox which outlives the killing of its command; empty if none does."""
        ...


def apply_limits(program: Sequence[str], limits: SandboxLimits) -> list[str]:
    """`program`, to be run inside, with the limits that the kernel keeps for each process."""
    return [
        "prlimit",
        f"--as={limits.memory_mb << 20}",
        f"--nofile={limits.open_files}",
        f"--fsize={limits.disk_mb << 20}",
        "--core=0",
        *program,
    ]


@cache
def check(backend: Backend) -> None:
    """Raise `MissingDependency` if `backend` does not work here; that it does is found out once."""
    remedy = backend.find_remedy()
    if remedy is not None:
        raise MissingDependency(
            f"no sandbox for code, and it never runs without one: {backend.name} does not work here; {remedy}"
        )


def find_failure(backend: Backend) -> str | None:
    """What `Backend.find_remedy` says of one that is installed: None if the probe finds no escape."""
    reason = find_escapes(backend)
    return None if reason is None else f"its isolation fails here ({reason})"


@cache
def find_escapes(backend: Backend) -> str | None:
    """Run the probe in the backend's sandbox; None if it finds no escape, else the escapes in a few words."""
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
        return f"it does not answer within {PROBE_TIMEOUT_S:g} s"
    except OSError as error:
        return describe(error)
    except ValueError:
        return " ".join(done.stderr.split())[:200] or f"it ended with status {done.returncode}"
    return ", ".join(escapes) or None
