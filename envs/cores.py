"""How many processor cores this process may use."""

import math
import os
from pathlib import Path

from envs.cgroups import find_cpu_quota


def count_cores(root: Path = Path("/")) -> int:
    """The cores in the affinity of this thread, as `taskset` and schedulers of clusters set it (all of the
    machine's on a system without affinities), or its cgroup's quota, rounded up, if that is less.

    `root`: the folder of `proc` and `sys`.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = find_cpu_quota(root)
    return cores if quota is None else min(cores, max(1, math.ceil(quota)))
