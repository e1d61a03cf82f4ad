"""Sandboxes by bubblewrap.

Its walls: namespaces of its own for users, processes, network, IPC and host name; an unprivileged user even
where we are root (as root in a user namespace `/proc/sys/kernel/core_pattern` could be opened for writing);
an empty environment for bubblewrap itself, too (what it was started with can be read in `/proc/1/environ`
inside); `/usr` read-only, nothing else of the machine's files; sizes for `/tmp`, `/work` and `/dev/shm`; the
filter of system calls.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from envs.requirements.detection import BUBBLEWRAP, UTIL_LINUX, UserNamespaces
from envs.sandbox.backend import ENVIRONMENT, NOBODY, SandboxLimits, apply_limits, find_failure
from envs.sandbox.seccomp import bpf_file, unknown_machine


@dataclass(frozen=True, slots=True)
class Bubblewrap:
    """Namespaces by `bwrap`, an unprivileged user by `setpriv`, limits by `prlimit`."""

    name: str = "bubblewrap"
    python: str = "/usr/bin/python3"

    @property
    def environment(self) -> Mapping[str, str]:
        return {}

    def find_remedy(self) -> str | None:
        for need in (BUBBLEWRAP, UTIL_LINUX, UserNamespaces()):
            if (remedy := need.find_remedy()) is not None:
                return remedy
        return unknown_machine() or find_failure(self)

    def command(self, program: Sequence[str], limits: SandboxLimits, *, label: str) -> list[str]:
        drop = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--no-new-privs"]
        size = str(limits.disk_mb << 20)
        links = [p for p in ("lib", "lib64", "bin", "sbin") if Path("/", p).is_symlink()]
        bind_mounts = [p for p in ("lib", "lib64", "bin") if Path("/", p).is_dir() and p not in links]
        # inside, where the only processes of this user are the sandbox's own
        processes = ["prlimit", f"--nproc={limits.processes}"]
        return [
            # opened before the user is dropped, who may not read the folder that it is in
            *("sh", "-c", 'exec "$@" 3<"$0"', str(bpf_file())),
            *(drop if os.geteuid() == 0 else []),
            *("bwrap", "--seccomp", "3"),
            "--unshare-all",
            "--unshare-user",
            "--disable-userns",
            "--die-with-parent",
            "--new-session",
            "--clearenv",
            *(word for name, value in ENVIRONMENT.items() for word in ("--setenv", name, value)),
            *("--ro-bind", "/usr", "/usr"),
            *(word for p in links for word in ("--symlink", f"usr/{p}", f"/{p}")),
            *(word for p in bind_mounts for word in ("--ro-bind", f"/{p}", f"/{p}")),
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
            *processes,
            *apply_limits(program, limits),
        ]

    def first_process(self, pid: int, *, label: str) -> int | None:
        return pid

    def end(self, label: str) -> list[str]:
        """See `Backend`: it dies with its parent."""
        return []
