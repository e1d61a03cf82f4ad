"""What the browser of web tasks costs, and what it survives.

    python -m bench.browser --contexts 10 --episodes 200 --kills 20

Plays scripted MiniWoB++ tasks. Prints one JSON object:

- `start_s`: from nothing to a running Chromium
- `base_mb`, `driver_mb`, `mb_per_context`: of Chromium without a context, of Playwright's driver, and what
  each of `contexts` adds, shared memory counted once (PSS), each after its first page
- `reset_ms`, `step_ms`, `step_ms_p95`: wall clock with one live instance, medians and the 95th percentile;
  `step_cpu_ms`: CPU time of a step, of all processes together
- `steps_per_s`: with all contexts at once, and `step_ms_together` the median of what one of them waits
- `zombies`, `processes`: left after `episodes` episodes on a pool, once that is closed (`while_open`: zombies
  that Chromium itself had not yet collected, before that); `faults`: episodes that had no end
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

from envs.browser.leases import BrowserLease
from envs.builtin.miniwob.env import MiniWobEnv, place_of
from envs.builtin.miniwob.expert import EXPERTS
from envs.builtin.miniwob.spec import SPEC, make_item
from envs.errors import EpisodeFault
from envs.runtime.manager import EnvManager
from envs.types import Item, Observation
from tests.support.kills import kill_browser, list_descendants, measure

SETTLED_S = 3.0
"""After which a browser has collected its dead and freed what it can."""


def items(count: int) -> list[Item]:
    """Of tasks that have a script, the first `count`."""
    scripted = (make_item(n) for n in range(100_000) if place_of(n)[0] in EXPERTS)
    return [next(scripted) for _ in range(count)]


async def play(env: MiniWobEnv, item: Item, steps: list[float], *, seen: str = "") -> None:
    """One episode by its script, which may have begun; adds the seconds of each step."""
    seen = seen or await env.reset(item)
    for step in SPEC.expert(item):
        action = step.resolve(seen)
        started = time.perf_counter()
        result = await env.step(action)
        steps.append(time.perf_counter() - started)
        seen = result.observation
        if result.terminated:
            break


def zombies() -> int:
    """How many of them have ended and are not collected."""
    return sum(one.status() == psutil.STATUS_ZOMBIE for one in list_descendants())


def pss_mb() -> tuple[float, float]:
    """(Chromium with what walls it in, Playwright's driver)"""
    chromium = driver = 0
    for one in list_descendants():
        with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            if one.name().startswith("node"):
                driver += one.memory_full_info().pss
            else:
                chromium += one.memory_full_info().pss
    return chromium / 2**20, driver / 2**20


async def cost(contexts: int) -> dict[str, float]:
    """Seconds and megabytes; see the docstring of this file."""
    started = time.perf_counter()
    lease = await BrowserLease.acquire()
    start_s = time.perf_counter() - started
    await asyncio.sleep(SETTLED_S)
    base, _ = pss_mb()
    envs = [MiniWobEnv() for _ in range(contexts)]
    resets: list[float] = []
    alone: list[float] = []
    cpu_s = 0.0
    for item in items(12):
        started = time.perf_counter()
        seen = await envs[0].reset(item)
        resets.append(time.perf_counter() - started)
        before = _cpu_s()
        await play(envs[0], item, alone, seen=seen)
        cpu_s += _cpu_s() - before
    together: list[float] = []
    todo = items(3 * contexts)
    started = time.perf_counter()
    await asyncio.gather(*(_several(env, todo[n::contexts], together) for n, env in enumerate(envs)))
    seconds = time.perf_counter() - started
    await asyncio.gather(*(env.reset(item) for env, item in zip(envs, todo, strict=False)))
    await asyncio.sleep(SETTLED_S)
    full, driver = pss_mb()
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


def _cpu_s() -> float:
    """CPU seconds of this process and of those that live beneath it."""
    total = 0.0
    for one in (psutil.Process(), *list_descendants()):
        with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            total += sum(one.cpu_times()[:2])
    return total


async def _several(env: MiniWobEnv, todo: Sequence[Item], steps: list[float]) -> None:
    for item in todo:
        await play(env, item, steps)


async def left(episodes: int, *, live: int = 8) -> dict[str, int]:
    """What there is more of after `episodes` on a pool of `live`."""
    before = len(list_descendants())
    envs = EnvManager([SPEC], capacity=live)

    async def episode(item: Item) -> None:
        async with envs.lease(SPEC.name) as env:
            seen = Observation.wrap(await env.reset(item)).text
            for step in SPEC.expert(item):
                result = await env.step(step.resolve(seen))
                seen = result.observation
                if result.terminated:
                    break

    told = await asyncio.gather(*map(episode, items(episodes)), return_exceptions=True)
    faults = [error for error in told if isinstance(error, EpisodeFault)]
    for error in told:
        if error is not None and error not in faults:
            raise error
    await asyncio.sleep(SETTLED_S)
    open_ = zombies()
    await envs.close()
    return {
        "episodes": episodes,
        "faults": len(faults),
        "while_open": open_,
        "zombies": zombies(),
        "processes": len(list_descendants()) - before,
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Costs of the browser that web tasks share")
    parser.add_argument("--contexts", type=int, default=10)
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--kills", type=int, default=20)
    arguments = parser.parse_args()
    told: dict[str, object] = dict(asyncio.run(cost(arguments.contexts)))
    told |= asyncio.run(left(arguments.episodes))
    if arguments.kills:
        outcome = measure(SPEC.name, items(16), kills=arguments.kills, kill=kill_browser)
        told["killed"] = asdict(outcome)
    print(json.dumps(told))


if __name__ == "__main__":
    main()
