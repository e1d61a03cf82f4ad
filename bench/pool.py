"""Many live environments in one pool: what they take, and what the pool itself adds to a step.

    python -m bench.pool textcraft --live 1000
    python -m bench.pool sciworld --live 40 --turns 20

Prints one JSON object:

- `live`: instances lent at the same time, each in the middle of an episode
- `mb_per_instance`: memory that they take together, divided; of this process and all that it started
- `cpu_ms_per_step`, `cpu_ms_per_reset`: CPU time, of the same
- `pool_cpu_ms_per_step`: CPU time of this process for an episode of `--turns` steps that is played on a
  lent instance, less that of the same episode on a bare one, divided by its steps: the median of many
  such pairs, played in turn
- `longest_step_s`, `mean_step_s`: as the pool's own metrics have them
- `seconds`: from the first lease to the last instance closed
"""

import argparse
import asyncio
import json
import statistics
import time
from dataclasses import asdict, dataclass, replace

import psutil

from envs.base import Environment
from envs.registry import EnvSpec, get_env
from envs.runtime.manager import EnvManager
from envs.types import Item
from tests.support.leaks import TURNS


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One measurement; the docstring of this file says what its fields are."""

    env: str
    live: int
    turns: int
    mb_per_instance: float
    cpu_ms_per_step: float
    cpu_ms_per_reset: float
    pool_cpu_ms_per_step: float
    mean_step_s: float
    longest_step_s: float
    seconds: float


async def measure(spec: EnvSpec, *, live: int, turns: int, pairs: int) -> Result:
    """Hold `live` instances at once; then compare episodes, `pairs` times."""
    items = spec.split(0).train
    warm = spec.make()
    await warm.reset(items[0])  # what is loaded once is no instance's
    await warm.close()
    envs = EnvManager([spec], capacity=live)
    ready, done = asyncio.Barrier(live + 1), asyncio.Barrier(live + 1)
    go = asyncio.Event()
    memory = await asyncio.to_thread(_memory)

    async def user(item: Item) -> None:
        async with envs.lease(spec.name) as env:
            await env.reset(item)
            await ready.wait()
            await go.wait()
            await _steps(env, turns=turns)
            await done.wait()

    started, cpu = time.perf_counter(), _cpu_s()
    async with asyncio.TaskGroup() as users:
        for i in range(live):
            users.create_task(user(items[i % len(items)]))
        await ready.wait()
        reset_cpu = _cpu_s()
        held = envs.metrics[spec.name].live
        memory_each = (await asyncio.to_thread(_memory) - memory) / live
        cpu_before = _cpu_s()
        go.set()
        await done.wait()
        step_cpu = _cpu_s() - cpu_before
    metrics = envs.metrics[spec.name]
    await envs.close()
    seconds = time.perf_counter() - started
    return Result(
        env=spec.name,
        live=held,
        turns=turns,
        mb_per_instance=round(memory_each / 2**20, 3),
        cpu_ms_per_step=round(1e3 * step_cpu / metrics.step.count, 4),
        cpu_ms_per_reset=round(1e3 * (reset_cpu - cpu) / live, 3),
        pool_cpu_ms_per_step=round(1e3 * await _added(spec, items[0], turns=turns, pairs=pairs), 5),
        mean_step_s=round(metrics.step.mean, 6),
        longest_step_s=round(metrics.step.longest, 4),
        seconds=round(seconds, 2),
    )


async def _added(spec: EnvSpec, item: Item, *, turns: int, pairs: int) -> float:
    """CPU seconds per step that the pool adds."""
    bare = spec.make()
    envs = EnvManager([spec], capacity=1)
    added = []
    for pair in range(pairs + 1):
        started = time.process_time()
        await bare.reset(item)
        await _steps(bare, turns=turns)
        halfway = time.process_time()
        async with envs.lease(spec.name) as env:
            await env.reset(item)
            await _steps(env, turns=turns)
        ended = time.process_time()
        if pair > 0:  # in the first, both are made
            added.append(((ended - halfway) - (halfway - started)) / turns)
    await bare.close()
    await envs.close()
    return statistics.median(added)


async def _steps(env: Environment, *, turns: int) -> None:
    for turn in range(turns):
        if (await env.step(TURNS[turn % len(TURNS)])).terminated:
            break
        await asyncio.sleep(0)


def _family() -> list[psutil.Process]:
    this = psutil.Process()
    return [this, *this.children(recursive=True)]


def _memory() -> int:
    """Bytes; what processes share counts once."""
    return sum(process.memory_full_info().pss for process in _family())


def _cpu_s() -> float:
    """CPU seconds so far of this process and its living descendants."""
    times = [process.cpu_times() for process in _family()]
    return sum(spent.user + spent.system for spent in times)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Many live environments in one pool")
    parser.add_argument("env", help="name in envs/registry.py")
    parser.add_argument("--live", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument(
        "--pairs", type=int, default=100, help="episodes played on a bare and a lent instance"
    )
    parser.add_argument("--hosted", action="store_true", help="each instance in a process of its own")
    arguments = parser.parse_args()
    spec = get_env(arguments.env)
    if arguments.hosted:
        spec = replace(spec, isolation="process")
    result = asyncio.run(measure(spec, live=arguments.live, turns=arguments.turns, pairs=arguments.pairs))
    print(json.dumps(asdict(result)))


if __name__ == "__main__":
    main()
