"""Whether the known solutions of an environment's items are worth full marks through the pool.

    python -m bench.experts sciworld --items 100
    python -m bench.experts alfworld-mini --items 60 --test

Items are taken from all over the training split, or the test split (`--test`); those without a known solution
are `unknown`. Each other solution is played action by action on a leased instance. Prints one JSON object:

- `items`: solutions played
- `solved`: episodes that ended in success
- `full_marks`: those of them whose rewards add up to at least `--marks`
- `failed`: item ids of the others
- `turns`, `seconds`
"""

import argparse
import asyncio
import json
import time
from collections.abc import Sequence

from envs.registry import ExpertStep, get_env
from envs.runtime.manager import EnvManager
from envs.types import Item, Observation

ROUNDING = 1e-6


async def play(envs: EnvManager, item: Item, solution: Sequence[ExpertStep]) -> tuple[bool, float, int]:
    """Success, the sum of rewards and the number of turns."""
    async with envs.lease(item.env) as env:
        seen = Observation.wrap(await env.reset(item)).text
        total, turns, success = 0.0, 0, False
        for step in solution:
            result = await env.step(step.resolve(seen))
            seen = result.observation
            total, turns, success = total + result.reward, turns + 1, success or result.success
            if result.terminated or result.truncated:
                break
        return success, total, turns


async def measure(name: str, *, items: int, marks: float, live: int, test: bool) -> dict[str, object]:
    """See the docstring of this file."""
    spec = get_env(name)
    split = spec.split(0)
    there = split.test if test else split.train
    envs = EnvManager([spec], capacity=live)
    started = time.perf_counter()
    solutions: list[tuple[Item, Sequence[ExpertStep]]] = []
    unknown = 0
    for item in there[:: max(1, len(there) // items)][:items]:
        solution = spec.solve(item)
        unknown += not solution
        if solution:
            solutions.append((item, solution))
    try:
        played = await asyncio.gather(*(play(envs, item, how) for item, how in solutions))
    finally:
        await envs.close()
    ended = {item.item_id: result for (item, _), result in zip(solutions, played, strict=True)}
    full = {item_id for item_id, (solved, total, _) in ended.items() if solved and total >= marks - ROUNDING}
    return {
        "env": name,
        "items": len(ended),
        "unknown": unknown,
        "solved": sum(solved for solved, _, _ in ended.values()),
        "full_marks": len(full),
        "failed": [item_id for item_id in ended if item_id not in full],
        "turns": sum(turns for _, _, turns in ended.values()),
        "seconds": round(time.perf_counter() - started, 1),
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Known solutions, played through the pool")
    parser.add_argument("env", help="name in envs/registry.py")
    parser.add_argument("--items", type=int, default=100)
    parser.add_argument("--marks", type=float, default=1.0, help="sum of rewards that is full marks")
    parser.add_argument("--live", type=int, default=4, help="instances at once")
    parser.add_argument("--test", action="store_true", help="items of the test split")
    arguments = parser.parse_args()
    result = asyncio.run(
        measure(
            arguments.env,
            items=arguments.items,
            marks=arguments.marks,
            live=arguments.live,
            test=arguments.test,
        )
    )
    print(json.dumps(result))


if __name__ == "__main__":
    main()
