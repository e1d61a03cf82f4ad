"""Sandboxes built by enroot (4.1 or newer, which has `--net` and the like), for users other than root.

Enroot gives a container namespaces and a file system. It neither limits sizes nor forbids more user
namespaces, and it mounts what its system-wide configuration names. It is therefore started with Wingspan's
configuration (`envs/sandbox/enroot_config`), in a user namespace that allows exactly one more.
"""

import base64
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from envs.requirements.detection import USER_NAMESPACES, UTIL_LINUX, describe_failure, first_remedy
from envs.sandbox.backend import ENVIRONMENT, Backend, SandboxLimits, apply_limits, find_failure
from envs.sandbox.containers import IMAGE, LIFE_S
from envs.sandbox.seccomp import LOADER, bpf

CONTAINER = "wingspan-python"
INSTALL = "see github.com/NVIDIA/enroot/blob/master/doc/installation.md"
MAKE = f"enroot import -o python.sqsh docker://{IMAGE} && enroot create -n {CONTAINER} python.sqsh"
_CONFIGURATION = Path(__file__).parent / "enroot_config"
_CLIENT = ("PATH", "HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR", "ENROOT_DATA_PATH", "ENROOT_RUNTIME_PATH")
_ONE_NAMESPACE = 'echo 1 > /proc/sys/user/max_user_namespaces && exec "$@"'


@dataclass(frozen=True, slots=True)
class Enroot(Backend):
    """`enroot start`."""

    name: str = "enroot"

    @property
    def environment(self) -> Mapping[str, str]:
        # Neither the system's nor the user's mounts and hooks apply.
        configuration = {f"ENROOT_{kind}_PATH": str(_CONFIGURATION) for kind in ("SYSCONF", "CONFIG")}
        client = {name: os.environ[name] for name in _CLIENT if name in os.environ}
        return {**client, **configuration, "ENROOT_LOGIN_SHELL": "no"}

    def find_remedy(self) -> str | None:
        if (reason := describe_failure(["enroot", "version"])) is not None:
            return f"{INSTALL} ({reason})"
        if (remedy := first_remedy(UTIL_LINUX, USER_NAMESPACES)) is not None:
            return remedy
        if os.geteuid() == 0:
            return "start the run as a user other than root"
        if describe_failure(["sh", "-c", f"enroot list | grep -qx {CONTAINER}"]) is not None:
            return MAKE
        return find_failure(self)

    def command(self, program: Sequence[str], limits: SandboxLimits, *, label: str) -> list[str]:
        return [
            "env",
            f"WINGSPAN_DISK_MB={limits.disk_mb}",
            f"WINGSPAN_SHM_MB={limits.shm_mb}",
            *("unshare", "--user", "--map-current-user", "--keep-caps"),
            *("sh", "-c", _ONE_NAMESPACE, label),
            *("setpriv", "--ambient-caps=-all", "--inh-caps=-all", "--no-new-privs"),
            *("enroot", "start", "--pid", "--net", "--ipc", "--uts"),
            f"--conf={_CONFIGURATION / 'sandbox.sh'}",
            CONTAINER,
            *("/usr/bin/env", "-i", "--chdir=/work"),
            *(f"{name}={value}" for name, value in ENVIRONMENT.items()),
            *("timeout", "--signal=KILL", str(LIFE_S)),
            *("prlimit", f"--nproc={limits.processes}"),
            *(self.python, "-I", "-c", LOADER, base64.b64encode(bpf()).decode()),
            *apply_limits(program, limits),
        ]
