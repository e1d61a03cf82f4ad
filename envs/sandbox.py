"""Where untrusted code runs: a process that can neither see nor harm the machine, or none at all.

A *backend* turns limits into the command line that puts a program behind walls. Whether it works on this
machine is found out by trying it, never assumed. There is no way to run code outside a sandbox.

The walls of bubblewrap: namespaces of its own for users, processes, network, IPC and host name; an
unprivileged user even where we are root (as root in a user namespace `/proc/sys/kernel/core_pattern` could
be opened for writing); an empty environment for bubblewrap itself, too (what it was started with can be
read in `/proc/1/environ` inside); `/usr` read-only, nothing else of the machine's files; sizes for `/tmp`,
`/work` and `/dev/shm`. Memory is capped per process by the kernel and for the whole sandbox by a watch
(`envs/interpreter.py`).
"""

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

NOBODY = 65534
PROBE_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a sandbox may use."""

    cpu_s: int = 30
    """CPU seconds of each process in its life."""
    memory_mb: int = 512
    """Of each process by the kernel, and of all together by the watch."""
    processes: int = 32
    disk_mb: int = 64
    """Of `/work` and `/tmp` each; files are kept in memory."""
    shm_mb: int = 16
    open_files: int = 128


class Backend(Protocol):
    """One way to put a program behind walls."""

    @property
    def name(self) -> str:
        """As users call it."""
        ...

    def missing(self) -> str | None:
        """None if it works here; else what to do, in a few words."""
        ...

    def command(self, program: Sequence[str], limits: Limits) -> list[str]:
        """The command line that runs `program` behind walls; it is to be started with an empty
        environment, and its standard streams are the program's."""
        ...


class Bubblewrap:
    """Namespaces by `bwrap`, an unprivileged user by `setpriv`, limits by `prlimit`."""

    name = "bubblewrap"

    def missing(self) -> str | None:
        """See `Backend`."""
        for tool, package in (("bwrap", "bubblewrap"), ("setpriv", "util-linux"), ("prlimit", "util-linux")):
            if shutil.which(tool) is None:
                return f"apt-get install {package}"
        said = _probe(self)
        return None if said is None else f"let bubblewrap make user namespaces ({said})"

    def command(self, program: Sequence[str], limits: Limits) -> list[str]:
        """See `Backend`."""
        drop = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--no-new-privs"]
        size = str(limits.disk_mb << 20)
        links = [p for p in ("lib", "lib64", "bin", "sbin") if Path("/", p).is_symlink()]
        bound = [p for p in ("lib", "lib64", "bin") if Path("/", p).is_dir() and p not in links]
        return [
            *(drop if os.geteuid() == 0 else []),
            "bwrap",
            "--unshare-all",
            "--unshare-user",
            "--disable-userns",
            "--die-with-parent",
            "--new-session",
            "--clearenv",
            *("--setenv", "PATH", "/usr/bin:/bin"),
            *("--setenv", "HOME", "/work"),
            *("--setenv", "LANG", "C.UTF-8"),
            *("--ro-bind", "/usr", "/usr"),
            *(word for p in links for word in ("--symlink", f"usr/{p}", f"/{p}")),
            *(word for p in bound for word in ("--ro-bind", f"/{p}", f"/{p}")),
            *("--proc", "/proc"),
            *("--dev", "/dev"),
            *("--size", str(limits.shm_mb << 20), "--tmpfs", "/dev/shm"),
            *("--size", size, "--tmpfs", "/tmp"),
            *("--size", size, "--tmpfs", "/work"),
            *("--chdir", "/work"),
            *("--hostname", "sandbox"),
            *("--uid", str(NOBODY), "--gid", str(NOBODY)),
            *("--cap-drop", "ALL"),
            *("--remount-ro", "/dev"),
            *("--remount-ro", "/"),
            # inside, where the only processes of this user are the sandbox's own
            "prlimit",
            f"--nproc={limits.processes}",
            f"--as={limits.memory_mb << 20}",
            f"--cpu={limits.cpu_s}",
            f"--nofile={limits.open_files}",
            f"--fsize={limits.disk_mb << 20}",
            "--core=0",
            *program,
        ]


@cache
def _probe(backend: Backend) -> str | None:
    """Run `id -u` behind the backend's walls; None if nobody answers, else what went wrong."""
    try:
        done = subprocess.run(
            backend.command(["/usr/bin/id", "-u"], Limits()),
            env={},
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{type(error).__name__}: {error}"
    if done.returncode != 0:
        return " ".join(done.stderr.split())[:160]
    if done.stdout.strip() == "0":
        return "it runs as root inside"
    return None
