"""Many live environments in one pool: what they use, and what the pool itself adds to a step.

    python -m bench.pool textcraft --live 1000
    python -m bench.pool sciworld --live 40 --turns 20

Prints one JSON object:

- `live`: instances lent at the same time, each in the middle of an episode
- `mb_per_instance`: memory of this process and its descendants, per instance
- `cpu_ms_per_step`, `cpu_ms_per_reset`: CPU time of the same processes
- `bare_cpu_ms_per_step`: CPU time of this process for an episode of `--turns` steps without the pool, per
  step: that of the environment, or, if an instance runs in its own process, of speaking to it
- `pool_cpu_ms_per_step`: what the same episode on a lent instance takes more; both are medians of many pairs,
  run alternately on two instances of the same kind
- `longest_step_s`, `mean_step_s`: the pool's own metrics
- `seconds`: from the first lease to the last instance closed
"""

import argparse
import asyncio
import json
import statistics
import time
from dataclasses import replace

from bench.processes import cpu_s, memory_bytes
from envs.registry import EnvSpec, get_env
from envs.runtime.hosted import HostedEnv
from envs.runtime.manager import EnvManager, make_host
from envs.types import Environment, Item
from tests.support.leaks import TURNS


async def measure(spec: EnvSpec, *, live: int, turns: int, pairs: int) -> dict[str, str | float]:
    """Hold `live` instances at once; then compare episodes, `pairs` times."""
    items = spec.split(0).train
    warm = spec.make()
    await warm.reset(items[0])  # so that what is loaded once does not count
    await warm.close()
    envs = EnvManager([spec], capacity=live)
    ready, done = asyncio.Barrier(live + 1), asyncio.Barrier(live + 1)
    go = asyncio.Event()
    memory = await asyncio.to_thread(memory_bytes)

    async def user(item: Item) -> None:
        async with envs.lease(spec.name) as env:
            await env.reset(item)
            await ready.wait()
            await go.wait()
            await _steps(env, turns=turns)
            await done.wait()

    start, cpu = time.perf_counter(), cpu_s()
    async with asyncio.TaskGroup() as users:
        for i in range(live):
            users.create_task(user(items[i % len(items)]))
        await ready.wait()
        reset_cpu = cpu_s() - cpu
        num_live = envs.metrics[spec.name].live
        memory = await asyncio.to_thread(memory_bytes) - memory
        cpu = cpu_s()
        go.set()
        await done.wait()
        step_cpu = cpu_s() - cpu
    metrics = envs.metrics[spec.name]
    await envs.close()
    seconds = time.perf_counter() - start
    bare_s, pool_s = await _compare_episodes(spec, items[0], turns=turns, pairs=pairs)
    return {
        "env": spec.name,
        "live": num_live,
        "turns": turns,
        "mb_per_instance": round(memory / live / 2**20, 3),
        "cpu_ms_per_step": round(1e3 * step_cpu / metrics.step.count, 4),
        "cpu_ms_per_reset": round(1e3 * reset_cpu / live, 3),
        "bare_cpu_ms_per_step": round(1e3 * bare_s, 5),
        "pool_cpu_ms_per_step": round(1e3 * pool_s, 5),
        "mean_step_s": round(metrics.step.mean, 6),
        "longest_step_s": round(metrics.step.longest, 4),
        "seconds": round(seconds, 2),
    }


async def _compare_episodes(spec: EnvSpec, item: Item, *, turns: int, pairs: int) -> tuple[float, float]:
    """CPU seconds of this process per step without the pool, and those that the pool adds."""
    host = make_host(spec)
    bare = spec.make() if host is None else HostedEnv(host)
    envs = EnvManager([spec], capacity=1)
    bare_s, differences = [], []
    for pair in range(pairs + 1):
        start = time.process_time()
        await bare.reset(item)
        await _steps(bare, turns=turns)
        halfway = time.process_time()
        async with envs.lease(spec.name) as env:
            await env.reset(item)
            await _steps(env, turns=turns)
        end = time.process_time()
        if pair > 0:  # the first pair makes the instances
            bare_s.append((halfway - start) / turns)
            differences.append(((end - halfway) - (halfway - start)) / turns)
    await bare.close()
    if host is not None:
        await host.close()
    await envs.close()
    return statistics.median(bare_s), statistics.median(differences)


async def _steps(env: Environment, *, turns: int) -> None:
    for turn in range(turns):
        if (await env.step(TURNS[turn % len(TURNS)])).terminated:
            break
        await asyncio.sleep(0)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Many live environments in one pool")
    parser.add_argument("env", help="name in envs/registry.py")
    parser.add_argument("--live", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--pairs", type=int, default=100, help="episodes on a bare and a lent instance")
    parser.add_argument("--hosted", action="store_true", help="run each instance in its own process")
    arguments = parser.parse_args()
    spec = get_env(arguments.env)
    if arguments.hosted:
        spec = replace(spec, isolation="process")
    measurement = measure(spec, live=arguments.live, turns=arguments.turns, pairs=arguments.pairs)
    print(json.dumps(asyncio.run(measurement)))


if __name__ == "__main__":
    main()
