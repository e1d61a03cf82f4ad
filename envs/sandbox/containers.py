"""Sandboxes by docker or podman: a container of an image that has Python, without network or privileges.

The image is never fetched by itself. A container outlives the killing of its command, so it is ended by
name; where nobody is left to do that, it ends when its standard input does, and after `LIFE_S` at the latest.
"""

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from envs.requirements.detection import PROBE_TIMEOUT_S, Program, failure
from envs.sandbox.backend import ENVIRONMENT, NOBODY, SandboxLimits, apply_limits, find_failure
from envs.sandbox.seccomp import profile_file, unknown_machine

IMAGE = "python:3.11-slim"
"""Debian with Python; another one, with `env`, `timeout` and `prlimit`, may be named in `IMAGE_VARIABLE`."""
IMAGE_VARIABLE = "WINGSPAN_SANDBOX_IMAGE"
LIFE_S = 3600
PROCESSES = 4096
_CLIENT = ("PATH", "HOME", "XDG_RUNTIME_DIR", "DOCKER_HOST", "DOCKER_CONTEXT", "CONTAINER_HOST")
"""What the client needs to find its daemon or its storage."""


@dataclass(frozen=True, slots=True)
class Containers:
    """`docker run` or `podman run`."""

    program: Program
    python: str = "python3"

    @property
    def name(self) -> str:
        return self.program.name

    @property
    def environment(self) -> Mapping[str, str]:
        return {name: os.environ[name] for name in _CLIENT if name in os.environ}

    def find_remedy(self) -> str | None:
        if (remedy := self.program.find_remedy()) is not None:
            return remedy
        if (reason := failure([self.name, "info"])) is not None:
            return f"make `{self.name} info` work ({reason})"
        if failure([self.name, "image", "inspect", _image()]) is not None:
            return f"{self.name} pull {_image()}"
        return unknown_machine() or find_failure(self)

    def command(self, program: Sequence[str], limits: SandboxLimits, *, label: str) -> list[str]:
        # Files in memory count as the container's memory, unlike the processes' limit.
        memory_mb = limits.memory_mb + 2 * limits.disk_mb + limits.shm_mb
        folder = f"rw,exec,nosuid,nodev,mode=1777,size={limits.disk_mb}m"
        return [
            self.name,
            "run",
            "--rm",
            "--interactive",
            "--pull=never",
            f"--name={label}",
            "--log-driver=none",
            "--network=none",
            "--ipc=private",
            "--hostname=sandbox",
            f"--user={NOBODY}:{NOBODY}",
            "--cap-drop=ALL",
            "--security-opt=no-new-privileges",
            f"--security-opt=seccomp={profile_file()}",
            f"--pids-limit={limits.processes}",
            # Of all containers together. Podman's own choice is higher, which even root may not allow.
            f"--ulimit=nproc={PROCESSES}:{PROCESSES}",
            f"--ulimit=nofile={limits.open_files}:{limits.open_files}",
            f"--memory={memory_mb}m",
            f"--memory-swap={memory_mb}m",
            f"--shm-size={limits.shm_mb}m",
            "--read-only",
            *("--tmpfs", f"/work:{folder}"),
            *("--tmpfs", f"/tmp:{folder}"),
            *("--tmpfs", "/sys:ro,size=4k"),
            *("--tmpfs", "/sys/fs/cgroup:ro,size=4k"),
            "--workdir=/work",
            *(_podman_options() if self.name == "podman" else []),
            # The first process sees nothing of what the image or the client's settings put there.
            "--entrypoint=/usr/bin/env",
            _image(),
            "-i",
            *(f"{name}={value}" for name, value in ENVIRONMENT.items()),
            *("timeout", "--signal=KILL", str(LIFE_S)),
            *apply_limits(program, limits),
        ]

    def first_process(self, pid: int, *, label: str) -> int | None:
        """See `Backend`: the container's own first process, unless it runs on another machine."""
        command = [self.name, "inspect", "--format={{.State.Pid}}", label]
        try:
            done = subprocess.run(
                command, env=dict(self.environment), capture_output=True, text=True, timeout=PROBE_TIMEOUT_S
            )
            first = int(done.stdout)
            mine = Path(f"/proc/{first}/cmdline").read_bytes().startswith(b"timeout\0")
        except (OSError, ValueError, subprocess.TimeoutExpired):
            return None
        return first if mine else None

    def end(self, label: str) -> list[str]:
        return [self.name, "kill", label]


def _podman_options() -> list[str]:
    """Else it passes the machine's proxies on, writes /etc/hosts, and adds writable folders of no size."""
    return ["--http-proxy=false", "--no-hosts", "--read-only-tmpfs=false"]


def _image() -> str:
    return os.environ.get(IMAGE_VARIABLE) or IMAGE
