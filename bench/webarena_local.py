"""Checks that every task of webarena-local can be solved, and that doing nothing earns no reward.

    python -m bench.webarena_local

Prints one JSON object:

- `tasks`, `solved`, `failed`: the number of tasks; of those whose scripted expert earns 1; the other tasks
- `idle`: tasks with a reward above 0 for a wrong answer and no other action
- `restore_s`: median and maximum time to restore the sites until they answer
- `reset_s`, `step_s`: medians of a whole reset, browser included, and of a step
- `copy_mb`: memory of one copy that has served a page of each site (PSS)
"""

import argparse
import asyncio
import json
import statistics
import time
from dataclasses import dataclass, field

import httpx
import psutil

from envs.builtin.webarena.env import WebEnv
from envs.builtin.webarena_local.env import expert, make, make_item, tasks
from envs.builtin.webarena_local.sites.copies import LiveSites
from envs.registry import ExpertStep
from envs.types import Item

WRONG = "I do not know"
RESTORES = 10


@dataclass(slots=True)
class Times:
    """Seconds."""

    resets: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)


async def play(env: WebEnv, item: Item, steps: list[ExpertStep], times: Times) -> float:
    """The sum of rewards; 0 if the expert does not find an element."""
    start = time.perf_counter()
    observation = await env.reset(item)
    times.resets.append(time.perf_counter() - start)
    total = 0.0
    for step in steps:
        try:
            action = step.resolve(observation)
        except LookupError:
            return 0.0
        start = time.perf_counter()
        result = await env.step(action)
        times.steps.append(time.perf_counter() - start)
        observation, total = result.observation, total + result.reward
        if result.terminated:
            break
    return total


async def restores() -> tuple[list[float], float]:
    """The seconds of each restore, and the megabytes of a copy that has served a page of each site."""
    sites, seconds = LiveSites(), []
    addresses = await sites.restore()
    async with httpx.AsyncClient(timeout=30, trust_env=False, follow_redirects=True) as client:
        for _ in range(RESTORES):
            start = time.perf_counter()
            addresses = await sites.restore()
            (await client.get(addresses["cms"])).raise_for_status()
            seconds.append(time.perf_counter() - start)
        for address in addresses.values():
            (await client.get(address)).raise_for_status()
    assert sites.pid is not None
    memory = psutil.Process(sites.pid).memory_full_info().pss / 1e6
    await sites.close()
    return seconds, memory


async def measure(numbers: list[int]) -> dict[str, object]:
    """The figures that the module's docstring lists."""
    times, env = Times(), make()
    failures, idle = [], []
    for number in numbers:
        item = make_item(number)
        if await play(env, item, list(expert(item)), times) < 1.0:
            failures.append(number)
        if await play(env, item, [ExpertStep("", f"stop [{WRONG}]")], Times()) > 0.0:
            idle.append(number)
    await env.close()
    seconds, memory = await restores()
    return {
        "tasks": len(numbers),
        "solved": len(numbers) - len(failures),
        "failed": failures,
        "idle": idle,
        "restore_s": [round(statistics.median(seconds), 2), round(max(seconds), 2)],
        "reset_s": round(statistics.median(times.resets), 2),
        "step_s": round(statistics.median(times.steps), 2),
        "copy_mb": round(memory),
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Every task of webarena-local, done and not done")
    parser.add_argument("--every", type=int, default=1, help="take one task of so many")
    arguments = parser.parse_args()
    print(json.dumps(asyncio.run(measure(list(tasks())[:: arguments.every]))))


if __name__ == "__main__":
    main()
