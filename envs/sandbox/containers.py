"""Sandboxes built by docker or podman: a container of an image with Python, without network or privileges.

The image is never pulled automatically. Killing the command does not kill its container, which is therefore
ended by name. If Wingspan dies first, the container ends with its standard input, or after `LIFE_S` seconds.
"""

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from envs.requirements.detection import DOCKER, PODMAN, PROBE_TIMEOUT_S, describe_failure
from envs.sandbox.backend import ENVIRONMENT, NOBODY, Backend, SandboxLimits, apply_limits, find_failure
from envs.sandbox.seccomp import profile_file

IMAGE = "python:3.11-slim"
"""Debian with Python; `IMAGE_VARIABLE` may name another image with `env`, `timeout` and `prlimit`."""
IMAGE_VARIABLE = "WINGSPAN_SANDBOX_IMAGE"
LIFE_S = 3600
ALL_PROCESSES = 4096
"""The most processes of all containers together; podman's higher default may be forbidden even to root."""
_CLIENT = ("PATH", "HOME", "XDG_RUNTIME_DIR", "DOCKER_HOST", "DOCKER_CONTEXT", "CONTAINER_HOST")
"""Environment variables by which the client finds its daemon or its storage."""
_PODMAN_OPTIONS = ("--http-proxy=false", "--no-hosts", "--read-only-tmpfs=false")
"""Without these podman passes proxies on, writes /etc/hosts, and adds writable folders without a limit."""


@dataclass(frozen=True, slots=True)
class Containers(Backend):
    """`docker run` or `podman run`, by the name of the program."""

    @property
    def environment(self) -> Mapping[str, str]:
        return {name: os.environ[name] for name in _CLIENT if name in os.environ}

    def find_remedy(self) -> str | None:
        if (remedy := (PODMAN if self.name == "podman" else DOCKER).find_remedy()) is not None:
            return remedy
        if (reason := describe_failure([self.name, "info"])) is not None:
            return f"make `{self.name} info` work ({reason})"
        if describe_failure([self.name, "image", "inspect", _image()]) is not None:
            return f"{self.name} pull {_image()}"
        return find_failure(self)

    def command(self, program: Sequence[str], limits: SandboxLimits, *, label: str) -> list[str]:
        # The container's memory includes files in memory; the limit of a process does not.
        memory_mb = limits.memory_mb + 2 * limits.disk_mb + limits.shm_mb
        folder = f"rw,exec,nosuid,nodev,mode=1777,size={limits.disk_mb}m"
        return [
            *(self.name, "run", "--rm", "--interactive", "--pull=never", f"--name={label}"),
            *("--log-driver=none", "--network=none", "--ipc=private", "--hostname=sandbox"),
            *(f"--user={NOBODY}:{NOBODY}", "--cap-drop=ALL", "--security-opt=no-new-privileges"),
            f"--security-opt=seccomp={profile_file()}",
            *(f"--pids-limit={limits.processes}", f"--ulimit=nproc={ALL_PROCESSES}:{ALL_PROCESSES}"),
            f"--ulimit=nofile={limits.open_files}:{limits.open_files}",
            *(f"--memory={memory_mb}m", f"--memory-swap={memory_mb}m", f"--shm-size={limits.shm_mb}m"),
            "--read-only",
            *("--tmpfs", f"/work:{folder}", "--tmpfs", f"/tmp:{folder}"),
            *("--tmpfs", "/sys:ro,size=4k", "--tmpfs", "/sys/fs/cgroup:ro,size=4k"),
            "--workdir=/work",
            *(_PODMAN_OPTIONS if self.name == "podman" else ()),
            # `env -i` clears variables that the image or the client's configuration set.
            *("--entrypoint=/usr/bin/env", _image(), "-i"),
            *(f"{name}={value}" for name, value in ENVIRONMENT.items()),
            *("timeout", "--signal=KILL", str(LIFE_S)),
            *apply_limits(program, limits),
        ]

    def first_process(self, pid: int, *, label: str) -> int | None:
        command = [self.name, "inspect", "--format={{.State.Pid}}", label]
        try:
            done = subprocess.run(
                command, env=dict(self.environment), capture_output=True, text=True, timeout=PROBE_TIMEOUT_S
            )
            first = int(done.stdout)
            # The container may run on another machine, where the number means another process.
            is_here = Path(f"/proc/{first}/cmdline").read_bytes().startswith(b"timeout\0")
        except (OSError, ValueError, subprocess.TimeoutExpired):
            return None
        return first if is_here else None

    def end(self, label: str) -> list[str]:
        return [self.name, "kill", label]


def _image() -> str:
    return os.environ.get(IMAGE_VARIABLE) or IMAGE
