"""How many processor cores this process may use."""

import os


def count_cores() -> int:
    """The cores in the affinity of this thread, as `taskset` and schedulers of clusters set it; all of the
    machine's on a system without affinities. A cgroup's quota, which limits time, does not count."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
