"""Measures the cost of the browser that web tasks share, and its recovery from crashes.

    python -m bench.browser --contexts 10 --episodes 200 --kills 20

Runs scripted MiniWoB++ tasks. Prints one JSON object:

- `start_s`: time to start Chromium
- `base_mb`, `driver_mb`, `mb_per_context`: memory of Chromium without a context, of Playwright's driver, and
  of each of `contexts` contexts after its first page; shared memory is counted once (PSS)
- `reset_ms`, `step_ms`, `step_ms_p95`: wall-clock medians and 95th percentile with one live instance;
  `step_cpu_ms`: CPU time of a step over all processes
- `steps_per_s`: with all contexts at once; `step_ms_together`: the median step of one of them meanwhile
- `zombies`, `processes`: left after `episodes` episodes on a pool that was then closed (`while_open`: zombies
  that Chromium had not collected before that); `faults`: episodes that did not end
- `killed`: what `bench.kill` says where the browser is killed `kills` times under load
"""

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict

import psutil

from bench.processes import cpu_s as tree_cpu_s
from envs.builtin.browser.leases import BrowserLease
from envs.builtin.miniwob.env import MiniWobEnv, find_task
from envs.builtin.miniwob.expert import EXPERTS
from envs.builtin.miniwob.spec import SPEC, make_item
from envs.errors import EpisodeFault
from envs.runtime.manager import EnvManager
from envs.types import Environment, Item, Observation
from tests.support.kills import kill_browser, list_descendants, measure

SETTLE_S = 3.0
"""Time for a browser to collect its child processes and free memory."""


def items(count: int) -> list[Item]:
    """The first `count` items that have a script."""
    solvable = (make_item(n) for n in range(100_000) if find_task(n)[0] in EXPERTS)
    return [next(solvable) for _ in range(count)]


async def play(env: Environment, item: Item, steps: list[float], *, observation: str = "") -> None:
    """Run one episode by its script and append the seconds of each step."""
    observation = observation or Observation.wrap(await env.reset(item)).text
    for step in SPEC.expert(item):
        action = step.resolve(observation)
        start = time.perf_counter()
        result = await env.step(action)
        steps.append(time.perf_counter() - start)
        observation = result.observation
        if result.terminated:
            break


def count_zombies() -> int:
    """The number of ended processes that are not collected."""
    return sum(process.status() == psutil.STATUS_ZOMBIE for process in list_descendants())


def measure_memory_mb() -> tuple[float, float]:
    """(Chromium with its sandbox, Playwright's driver)"""
    chromium = driver = 0
    for process in list_descendants():
        with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            if process.name().startswith("node"):
                driver += process.memory_full_info().pss
            else:
                chromium += process.memory_full_info().pss
    return chromium / 2**20, driver / 2**20


async def measure_cost(contexts: int) -> dict[str, float]:
    """Times and memory, as the module's docstring lists them."""
    start = time.perf_counter()
    lease = await BrowserLease.acquire()
    start_s = time.perf_counter() - start
    await asyncio.sleep(SETTLE_S)
    base, _ = measure_memory_mb()
    envs = [MiniWobEnv() for _ in range(contexts)]
    resets: list[float] = []
    alone: list[float] = []
    cpu_s = 0.0
    for item in items(12):
        start = time.perf_counter()
        observation = await envs[0].reset(item)
        resets.append(time.perf_counter() - start)
        before = tree_cpu_s()
        await play(envs[0], item, alone, observation=observation)
        cpu_s += tree_cpu_s() - before
    together: list[float] = []
    todo = items(3 * contexts)
    start = time.perf_counter()
    await asyncio.gather(*(_several(env, todo[n::contexts], together) for n, env in enumerate(envs)))
    seconds = time.perf_counter() - start
    await asyncio.gather(*(env.reset(item) for env, item in zip(envs, todo, strict=False)))
    await asyncio.sleep(SETTLE_S)
    full, driver = measure_memory_mb()
    for env in envs:
        await env.close()
    await lease.release()
    return {
        "contexts": contexts,
        "start_s": round(start_s, 2),
        "base_mb": round(base),
        "driver_mb": round(driver),
        "mb_per_context": round((full - base) / contexts, 1),
        "reset_ms": round(1000 * statistics.median(resets)),
        "step_ms": round(1000 * statistics.median(alone)),
        "step_cpu_ms": round(1000 * cpu_s / len(alone)),
        "step_ms_p95": round(1000 * statistics.quantiles(alone, n=20)[-1]),
        "step_ms_together": round(1000 * statistics.median(together)),
        "steps_per_s": round(len(together) / seconds, 1),
    }


async def _several(env: MiniWobEnv, todo: Sequence[Item], steps: list[float]) -> None:
    for item in todo:
        await play(env, item, steps)


async def measure_leaks(episodes: int, *, live: int = 8) -> dict[str, int]:
    """Processes that remain after `episodes` episodes on a pool of `live` instances."""
    before = len(list_descendants())
    envs = EnvManager([SPEC], capacity=live)

    async def episode(item: Item) -> None:
        async with envs.lease(SPEC.name) as env:
            await play(env, item, [])

    report = await asyncio.gather(*map(episode, items(episodes)), return_exceptions=True)
    faults = [error for error in report if isinstance(error, EpisodeFault)]
    for error in report:
        if error is not None and error not in faults:
            raise error
    await asyncio.sleep(SETTLE_S)
    open_ = count_zombies()
    await envs.close()
    return {
        "episodes": episodes,
        "faults": len(faults),
        "while_open": open_,
        "zombies": count_zombies(),
        "processes": len(list_descendants()) - before,
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Costs of the browser that web tasks share")
    parser.add_argument("--contexts", type=int, default=10)
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--kills", type=int, default=20)
    arguments = parser.parse_args()
    report: dict[str, object] = dict(asyncio.run(measure_cost(arguments.contexts)))
    report |= asyncio.run(measure_leaks(arguments.episodes))
    if arguments.kills:
        outcome = measure(SPEC.name, items(16), kills=arguments.kills, kill=kill_browser)
        report["killed"] = asdict(outcome)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
