"""Stage `provision`: bring the environments up, prove that they work, record what they are.

The scripted expert plays training items on the pool that training will use, all at once. Anything
but a solved item is a fault of the environment, found here and not an hour into training.
"""

import asyncio
import json
import platform
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from envs.errors import EnvCrashed, EpisodeTimeout, WingspanError
from envs.manager import EnvManager
from envs.registry import EnvSpec, get_env
from envs.types import Item
from tasks.files import write_atomically
from tasks.items import read_items
from tasks.settings import Pipeline

EPISODES = 64
"""Expert episodes of the proof; more than any sensible number of live environments on a laptop."""


def provision(pipeline: Pipeline, workspace: Path) -> None:
    """Play expert episodes on a full pool; write `provision.json`.

    Raises `EnvCrashed` or `EpisodeTimeout` if an episode does not end in success.
    """
    spec = get_env(pipeline.data.env)
    items = _spread(read_items(workspace / "data" / "train.jsonl", env=spec.name), EPISODES)
    started = time.perf_counter()
    turns = asyncio.run(_prove(spec, items=items, pipeline=pipeline))
    if not any(turns):
        raise EnvCrashed(f"the expert of {spec.name!r} knows no solution of {len(items)} training items")
    receipt = {
        "env": spec.name,
        "packages": {name: version(name) for name in spec.packages},
        "python": platform.python_version(),
        "capacity": pipeline.rollout.max_live_envs,
        "episodes": sum(count > 0 for count in turns),
        "turns": sum(turns),
        "seconds": round(time.perf_counter() - started, 3),
    }
    write_atomically(workspace / "provision.json", json.dumps(receipt, indent=2) + "\n")


def _spread(items: Sequence[Item], count: int) -> list[Item]:
    """At most `count` of `items`, evenly from first to last."""
    step = max(1, len(items) // count)
    return list(items[::step][:count])


async def _prove(spec: EnvSpec, *, items: Sequence[Item], pipeline: Pipeline) -> list[int]:
    """Play every item at once; returns the turns that each took, 0 where the expert knows no solution."""
    envs = EnvManager([spec], capacity=pipeline.rollout.max_live_envs)
    try:
        return await asyncio.gather(*(_solve(spec, item, envs=envs, pipeline=pipeline) for item in items))
    finally:
        await envs.close()


async def _solve(spec: EnvSpec, item: Item, *, envs: EnvManager, pipeline: Pipeline) -> int:
    solution = spec.expert(item)
    if not solution:
        return 0
    limit_s = pipeline.rollout.episode_timeout_s
    try:
        async with envs.lease(item.env, timeout_s=limit_s) as env, asyncio.timeout(limit_s):
            await env.reset(item)
            results = [await env.step(step.action) for step in solution]
    except TimeoutError:
        raise EpisodeTimeout(
            f"the expert's episode of {item.item_id} took longer than {limit_s:g} s; the environment hangs, "
            "or raise rollout.episode_timeout_s"
        ) from None
    except WingspanError:
        raise
    except Exception as error:  # what a broken environment raises may be anything
        raise EnvCrashed(f"{item.item_id}: the environment raised {type(error).__name__}: {error}") from error
    if not results[-1].success:
        raise EnvCrashed(
            f"the expert's solution of {item.item_id} does not solve it (last observation: "
            f"{results[-1].observation[:80]!r}); is another version of {', '.join(spec.packages)} installed?"
        )
    return len(results)
