"""CPU time and memory of a process with all that it has started, and load for a machine."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil


def cpu_s_by_process(process: psutil.Process | None = None) -> dict[str, float]:
    """CPU seconds so far of `process`, by default this one, and of its live descendants, by name and pid."""
    seconds = {}
    for member in _tree(process):
        with suppress(psutil.NoSuchProcess, psutil.ZombieProcess), member.oneshot():
            times = member.cpu_times()
            seconds[f"{member.name()} {member.pid}"] = times.user + times.system
    return seconds


def cpu_s(process: psutil.Process | None = None) -> float:
    """The sum of `cpu_s_by_process`."""
    return sum(cpu_s_by_process(process).values())


def memory_bytes(process: psutil.Process | None = None) -> int:
    """Of `process` and its live descendants; memory that they share counts once (PSS)."""
    total = 0
    for member in _tree(process):
        with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            total += member.memory_full_info().pss
    return total


@contextmanager
def busy_processes(count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """`count` processes that compute until the end of the block."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _tree(process: psutil.Process | None) -> list[psutil.Process]:
    root = process or psutil.Process()
    return [root, *root.children(recursive=True)]
