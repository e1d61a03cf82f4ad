"""The limits of this process's cgroups, by which containers and Kubernetes limit processor time and memory.

Both versions of cgroups are read, and every level above the process's own cgroup, since each limits it.
Without cgroups there are no limits.
"""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath


def find_cpu_quota(root: Path = Path("/")) -> float | None:
    """The processor time that this process may use, in cores (0.5: half of one); None without a quota.

    `root`: the folder of `proc` and `sys`.
    """
    quotas = []
    for folder in _folders("cpu", root=root):
        quota, _, period = _read(folder / "cpu.max").partition(" ")  # version 2: "50000 100000", "max 100000"
        quota = quota or _read(folder / "cpu.cfs_quota_us")  # version 1: -1 is no quota
        period = period or _read(folder / "cpu.cfs_period_us")
        if quota.isdecimal() and period.isdecimal():
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def find_memory_limit(root: Path = Path("/")) -> int | None:
    """The bytes of memory that this process may use; None without a limit, for which version 1 has a number
    beyond any machine's memory.

    `root`: the folder of `proc` and `sys`.
    """
    texts = [
        _read(folder / name)
        for folder in _folders("memory", root=root)
        for name in ("memory.max", "memory.limit_in_bytes")  # versions 2 and 1
    ]
    return min((int(text) for text in texts if text.isdecimal()), default=None)


def _folders(controller: str, *, root: Path) -> Iterator[Path]:
    """The folders of this process's cgroup and of those above it. In a container that sees its host's path,
    only the last exists: the mount, which is the container's own cgroup."""
    mount = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, name = line.split(":", maxsplit=2)
        if controllers and controller not in controllers.split(","):
            continue
        base = mount / controller if controllers else mount  # version 2 has one tree for all controllers
        path = PurePosixPath(name)
        for cgroup in (path, *path.parents):
            yield base / cgroup.relative_to("/")


def _read(path: Path) -> str:
    """The text of `path`; empty without such a file."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
