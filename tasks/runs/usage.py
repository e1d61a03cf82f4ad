"""What the processes of a run use: CPU time and memory, by stage; `usage.json` in the run's folder.

The processes are a command and its descendants on this machine. The CPU time of one that ends between two
looks is counted up to the last look before its end.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Lock

import psutil

from envs.files import read_as, write_json
from tasks.runs.progress import call_every

USAGE = "usage.json"
EVERY_S = 2.0
"""The time between two measurements, each of which takes some milliseconds."""
_GROWTH = 1.02
"""Memory is read exactly, which takes a tenth of a second of CPU, when the sum of the resident sets has grown
by this factor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a stage has used."""

    cpu_s: float
    """The CPU time of all its processes and all its attempts."""
    peak_memory_bytes: int
    """The most that its processes had at once, shared pages counted once (PSS)."""


class ProcessUsage:
    """CPU time and memory of a process and its descendants; used by several threads."""

    def __init__(self, process: psutil.Process) -> None:
        self._process = process
        self._lock = Lock()
        self._cpu_s: dict[tuple[int, float], float] = {}
        self._most_resident = 0.0
        self.peak_memory = 0
        """Bytes; of `begin` and later."""

    @property
    def cpu_s(self) -> float:
        """Up to the last look."""
        with self._lock:
            return sum(self._cpu_s.values())

    def begin(self) -> float:
        """Forget the peak of memory; returns the CPU time until now."""
        with self._lock:
            self._most_resident, self.peak_memory = 0.0, 0
        self.look()
        return self.cpu_s

    def look(self) -> None:
        """Read what has been used until now."""
        with self._lock:
            processes: list[psutil.Process] = []
            with suppress(psutil.NoSuchProcess):
                processes = [self._process, *self._process.children(recursive=True)]
            resident = 0
            for process in processes:
                with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                    times = process.cpu_times()
                    self._cpu_s[process.pid, process.create_time()] = times.user + times.system
                    resident += process.memory_info().rss
            if resident > _GROWTH * self._most_resident:
                self._most_resident = resident
                self.peak_memory = max(self.peak_memory, sum(map(_proportional_bytes, processes)))


@contextmanager
def watch_usage() -> Iterator[ProcessUsage]:
    """The usage of this process and its descendants, looked at every `EVERY_S` while the block runs."""
    usage = ProcessUsage(psutil.Process())
    with call_every(usage.look, interval_s=EVERY_S, name="usage"):
        yield usage


def read_usage(workspace: Path) -> dict[str, Usage]:
    """The usage by stage; empty where it was not recorded. Raises `DamagedFile`."""
    return read_as(dict[str, Usage], workspace / USAGE) or {}


def write_usage(workspace: Path, stage: str, usage: Usage, *, is_resumed: bool) -> None:
    """Record it; `is_resumed`: beside that of the stage's earlier attempts."""
    stages = read_usage(workspace)
    if is_resumed and (before := stages.get(stage)):
        usage = Usage(
            cpu_s=before.cpu_s + usage.cpu_s,
            peak_memory_bytes=max(before.peak_memory_bytes, usage.peak_memory_bytes),
        )
    stages[stage] = usage
    write_json(workspace / USAGE, {name: asdict(value) for name, value in stages.items()})


def _proportional_bytes(process: psutil.Process) -> int:
    with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        return int(process.memory_full_info().pss)
    return 0
