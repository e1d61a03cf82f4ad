"""Plays the expert's solutions of an environment through the pool, and counts those that earn full marks.

    python -m bench.experts sciworld --items 100
    python -m bench.experts alfworld-mini --test

Plays all items of the training split or, with `--test`, of the test split; with `--items`, so many of them,
evenly over their order. Each solution is played on a leased instance. Prints one JSON object:

- `items`: solutions played
- `unknown`: items without a solution
- `solved`: episodes that ended in success
- `full_marks`: those of them whose rewards add up to at least `--marks`
- `failed`: item ids of the others
- `turns`, `seconds`
"""

import argparse
import asyncio
import json
import math
import time
from collections.abc import Sequence
from dataclasses import replace

from agents.agent import FormatAgent
from agents.rollout.episode import EpisodeConfig
from agents.rollout.scripted import expert_script, run_script
from agents.types import EpisodeLimits, Trajectory
from envs.registry import MAX_EXPERT_TURNS, ExpertStep, get_env
from envs.runtime.manager import EnvManager
from envs.types import Item
from tasks.data.items import spread

ROUNDING = 1e-6
LIMITS = EpisodeLimits(
    max_turns=MAX_EXPERT_TURNS,
    max_tokens_per_turn=0,
    context_length=0,
    episode_timeout_s=math.inf,
    step_timeout_s=math.inf,
)
CONFIG = EpisodeConfig(agent=FormatAgent("raw"), limits=LIMITS)


async def play(envs: EnvManager, item: Item, solution: Sequence[ExpertStep]) -> Trajectory:
    """Play `solution`; an episode that its last step does not end is cut there."""
    config = replace(CONFIG, limits=replace(LIMITS, max_turns=len(solution)))
    async with envs.lease(item.env) as env:
        return await run_script(env, item, expert_script(solution, config=config), config=config)


async def measure(name: str, *, items: int | None, marks: float, live: int, test: bool) -> dict[str, object]:
    """The JSON object that the docstring of this file describes. `items`: None plays all."""
    spec = get_env(name)
    split = spec.split(0)
    candidates = split.test if test else split.train
    envs = EnvManager([spec], capacity=live)
    start = time.perf_counter()
    solutions: list[tuple[Item, Sequence[ExpertStep]]] = []
    unknown = 0
    for item in spread(candidates, len(candidates) if items is None else items):
        solution = spec.solve(item)
        unknown += not solution
        if solution:
            solutions.append((item, solution))
    try:
        episodes = await asyncio.gather(*(play(envs, item, solution) for item, solution in solutions))
    finally:
        await envs.close()
    full_marks = {
        episode.item.item_id for episode in episodes if episode.success and episode.reward >= marks - ROUNDING
    }
    return {
        "env": name,
        "items": len(episodes),
        "unknown": unknown,
        "solved": sum(episode.success for episode in episodes),
        "full_marks": len(full_marks),
        "failed": [item.item_id for item, _ in solutions if item.item_id not in full_marks],
        "turns": sum(len(episode.turns) for episode in episodes),
        "seconds": round(time.perf_counter() - start, 1),
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Play the expert's solutions through the pool")
    parser.add_argument("env", help="name in envs/registry.py")
    parser.add_argument("--items", type=int, help="default: all of the split")
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
