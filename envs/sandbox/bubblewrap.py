"""Sandboxes built by bubblewrap.

They have their own namespaces for users, processes, network, IPC and host name; an unprivileged user even if
Wingspan runs as root (root in a user namespace could write to `/proc/sys/kernel/core_pattern`); an empty
environment, of bubblewrap too, which a program could read in `/proc/1/environ`; a read-only `/usr` and none
of the machine's other files; limited sizes of `/tmp`, `/work` and `/dev/shm`; and the system call filter.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from envs.requirements.detection import BUBBLEWRAP, USER_NAMESPACES, UTIL_LINUX, first_remedy
from envs.sandbox.backend import (
    AS_NOBODY,
    ENVIRONMENT,
    NOBODY,
    Backend,
    SandboxLimits,
    apply_limits,
    find_failure,
)
from envs.sandbox.seccomp import filter_file


@dataclass(frozen=True, slots=True)
class Bubblewrap(Backend):
    """`bwrap` makes namespaces, `setpriv` drops privileges, `prlimit` sets limits."""

    name: str = "bubblewrap"
    python: str = "/usr/bin/python3"

    def find_remedy(self) -> str | None:
        return first_remedy(BUBBLEWRAP, UTIL_LINUX, USER_NAMESPACES) or find_failure(self)

    def command(self, program: Sequence[str], limits: SandboxLimits, *, label: str) -> list[str]:
        size = str(limits.disk_mb << 20)
        links = [p for p in ("lib", "lib64", "bin", "sbin") if Path("/", p).is_symlink()]
        bind_mounts = [p for p in ("lib", "lib64", "bin") if Path("/", p).is_dir() and p not in links]
        return [
            # opened before the privileges to open this process's files are dropped
            *("sh", "-c", 'exec "$@" 3<"$0"', str(filter_file())),
            *(AS_NOBODY if os.geteuid() == 0 else ()),
            *("bwrap", "--seccomp", "3", "--unshare-all", "--unshare-user", "--disable-userns"),
            *("--die-with-parent", "--new-session", "--clearenv"),
            *(word for name, value in ENVIRONMENT.items() for word in ("--setenv", name, value)),
            *("--ro-bind", "/usr", "/usr"),
            *(word for p in links for word in ("--symlink", f"usr/{p}", f"/{p}")),
            *(word for p in bind_mounts for word in ("--ro-bind", f"/{p}", f"/{p}")),
            *("--proc", "/proc", "--dev", "/dev"),
            *("--size", str(limits.shm_mb << 20), "--tmpfs", "/dev/shm"),
            *("--size", size, "--tmpfs", "/tmp"),
            *("--size", size, "--tmpfs", "/work"),
            *("--chdir", "/work", "--hostname", "sandbox"),
            *("--uid", str(NOBODY), "--gid", str(NOBODY), "--cap-drop", "ALL"),
            *("--remount-ro", "/dev", "--remount-ro", "/"),
            # inside, where this user's only processes are the sandbox's
            *("prlimit", f"--nproc={limits.processes}"),
            *apply_limits(program, limits),
        ]
