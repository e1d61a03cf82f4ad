"""The limits of cgroups, read from files as the kernel writes them."""

import os
from pathlib import Path

import pytest

from envs.cgroups import find_cpu_quota, find_memory_limit
from envs.cores import count_cores

NO_LIMIT = "9223372036854771712\n"
"""`memory.limit_in_bytes` without a limit: the largest multiple of a page."""


def machine(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_no_cgroups_are_no_limits(tmp_path: Path) -> None:
    assert find_cpu_quota(tmp_path) is None
    assert find_memory_limit(tmp_path) is None
    assert count_cores(tmp_path) == len(os.sched_getaffinity(0))


def test_a_container_of_version_2_sees_its_own_cgroup_as_the_root(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        {
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/cpu.max": "200000 100000\n",
            "sys/fs/cgroup/memory.max": "4294967296\n",
        },
    )
    assert find_cpu_quota(root) == 2
    assert find_memory_limit(root) == 4 * 2**30


def test_every_level_of_version_2_limits(tmp_path: Path) -> None:
    pod = "sys/fs/cgroup/kubepods.slice/pod.slice"
    root = machine(
        tmp_path,
        {
            "proc/self/cgroup": "0::/kubepods.slice/pod.slice/main.scope\n",
            f"{pod}/main.scope/cpu.max": "max 100000\n",
            f"{pod}/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/kubepods.slice/cpu.max": "800000 100000\n",
            f"{pod}/main.scope/memory.max": "2000000000\n",
            f"{pod}/memory.max": "max\n",
        },
    )
    assert find_cpu_quota(root) == 1.5
    assert find_memory_limit(root) == 2_000_000_000


@pytest.mark.parametrize("path", ["/", "/docker/0123abcd", "/../other"])
def test_version_1_has_a_tree_for_each_controller(tmp_path: Path, path: str) -> None:
    """A container of Docker sees its host's path, which is not in its mount."""
    root = machine(
        tmp_path,
        {
            "proc/self/cgroup": f"5:cpu,cpuacct:{path}\n4:memory:{path}\n1:name=systemd:/\n0::/\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "1000000000\n",
        },
    )
    assert find_cpu_quota(root) == 0.5
    assert find_memory_limit(root) == 1_000_000_000


def test_version_1_without_limits(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        {
            "proc/self/cgroup": "5:cpu:/\n4:memory:/\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": NO_LIMIT,
        },
    )
    assert find_cpu_quota(root) is None
    assert find_memory_limit(root) == int(NO_LIMIT)  # more than any machine has
    assert count_cores(root) == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(("quota", "cores"), [("1000", 1), ("100000", 1), ("100001", 2), ("6400000", None)])
def test_the_quota_is_rounded_up_to_whole_cores(tmp_path: Path, quota: str, cores: int | None) -> None:
    """None: as many as without a quota."""
    affinity = len(os.sched_getaffinity(0))
    files = {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": f"{quota} 100000\n"}
    assert count_cores(machine(tmp_path, files)) == min(affinity, cores or affinity)
