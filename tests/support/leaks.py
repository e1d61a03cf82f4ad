"""Leaks of environments: an instance is made, used for some turns and closed, over and over.

The first cycles, which fill the caches of items and modules, count as "before".
"""

import asyncio
import gc
import time
from collections.abc import Callable, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from envs.registry import EnvSpec, get_env
from envs.runtime.hosted import HostedEnv
from envs.runtime.processes import ProcessHost
from envs.types import Environment, Item

ITEMS, WARM_UP = 8, 10
TURNS = ("look around", "inventory", "turn left")


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """The growth of resources over some cycles."""

    env: str
    is_hosted: bool
    """Each instance in its own process."""
    cycles: int
    seconds_per_cycle: float
    processes: int
    """Children of this process."""
    handles: int
    """Open files of this process and its children, without those that it had before."""
    memory_growth: float
    """Relative growth of this process and these children. Shared memory counts once; pages of files do not
    count, because their share depends on which other processes have them open."""


def some_items(spec: EnvSpec) -> Sequence[Item]:
    """Return the first items of `spec`, or made-up ones if its items are a user's data."""
    if spec.has_items:
        return spec.split(0).train[:ITEMS]
    return [
        Item(item_id=f"made_{n}", env=spec.name, part="made", fields={"question": f"What is {n} + {n}?"})
        for n in range(ITEMS)
    ]


async def measure(env: str, *, cycles: int, is_hosted: bool, warm_up: int = WARM_UP) -> Growth:
    """Run the cycles on an environment of the registry."""
    spec = get_env(env)
    items = some_items(spec)
    earlier = set(psutil.Process().children(recursive=True))  # what they do is not the environment's doing
    gc.freeze()  # nor is what this process has: to look through it would take seconds
    host = ProcessHost(spec.make, preload=spec.preload) if is_hosted else None
    make = spec.make if host is None else partial(HostedEnv, host)
    await _cycle(make, items, times=warm_up)
    processes, handles, memory = await asyncio.to_thread(_measure_resources, earlier)
    start = time.perf_counter()
    await _cycle(make, items, times=cycles)
    seconds = time.perf_counter() - start
    processes_after, handles_after, memory_after = await asyncio.to_thread(_measure_resources, earlier)
    if host is not None:
        await host.close()
    return Growth(
        env=env,
        is_hosted=is_hosted,
        cycles=cycles,
        seconds_per_cycle=round(seconds / cycles, 5),
        processes=processes_after - processes,
        handles=handles_after - handles,
        memory_growth=round(memory_after / memory - 1, 4),
    )


async def _cycle(make: Callable[[], Environment], items: Sequence[Item], *, times: int) -> None:
    for turn in range(times):
        env = make()
        await env.reset(items[turn % len(items)])
        for action in TURNS:
            if (await env.step(action)).terminated:
                break
        await env.close()


def _measure_resources(earlier: Set[psutil.Process]) -> tuple[int, int, int]:
    """(processes, open files, bytes) of this process and its descendants but the `earlier` ones."""
    gc.collect()  # garbage is no leak
    this = psutil.Process()
    family = [this, *(child for child in this.children(recursive=True) if child not in earlier)]
    handles = memory = 0
    for process in family:
        with suppress(psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):  # it has just ended
            handles += process.num_fds()
            memory += _own_memory(process.pid)
    return len(family), handles, memory


def _own_memory(pid: int) -> int:
    """Return the bytes that belong to no file, each divided by the number of processes that share it."""
    rows = (row.split() for row in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    return sum(int(kib) * 1024 for name, kib, _ in rows if name in {"Pss_Anon:", "Pss_Shmem:", "SwapPss:"})
