"""The cost of the rollout core alone: a scripted policy acts in TextCraft, in process or on HTTP servers.

    python -m bench.rollout --episodes 512 --turns 10 --latency 0
    python -m bench.rollout --episodes 512 --turns 10 --agent react
    python -m bench.rollout --episodes 10000 --turns 10 --servers 4

With `--agent react` it calls a trivial tool in each turn instead of acting in the environment. Prints one
JSON object, a `Result`.

Recipes and openings are made before the clock starts, as they are once per process, that of each server
included; the longest opening of TextCraft takes 50 ms. Without latency, the rollout is repeated on other
items, with warm caches, until about `MIN_STEPS` steps are measured; `wall_s` is the mean.
"""

import argparse
import asyncio
import json
import resource
import time
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial

from agents.agent import FormatAgent
from agents.prompting.renderer import Renderer
from agents.rollout.conversation import TokenConversation
from agents.rollout.episode import EpisodeConfig
from agents.rollout.group import GroupSpec, run_groups
from agents.samplers.sampler import ScriptedSampler
from agents.tools.tool import tool
from agents.tools.toolbox import Toolbox
from agents.types import EpisodeLimits, SamplingParams, StopReason, Trajectory
from envs.registry import get_env
from envs.remote.servers import Servers, on_servers
from envs.runtime.manager import EnvManager
from tasks.base_model.model import make_tokenizer
from tests.support.kills import Fleet

ENV = "textcraft"
GROUP_SIZE = 8
MIN_STEPS = 2000
HEARTBEAT_S = 0.002
MATERIALS = ("oak log", "cobblestone", "string")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One measurement."""

    agent: str
    episodes: int
    turns: int
    latency_s: float
    servers: int
    """HTTP servers that host the environments; 0: they are in the process."""
    cpu_ms_per_step: float
    """CPU time of the process per environment step, resets and prompts included; that of servers is not."""
    episodes_per_s: float
    loop_lag_ms: float
    """The longest time for which the event loop left another task waiting while episodes ran."""
    end_lag_ms: float
    """The same when they had ended: the garbage collector walks all trajectories, once."""
    wall_s: float
    ideal_s: float
    """Turns times latency: the time of the simulated model alone."""
    peak_mb: float
    """The peak memory of the process, imports included."""


def measure(*, agent: str, episodes: int, turns: int, latency_s: float, urls: Sequence[str] = ()) -> Result:
    """Run `episodes` of `turns` turns at once, in groups of `GROUP_SIZE` if that is a divisor.

    `urls`: of the servers that host the environments; none if they are in this process.
    """
    in_process = get_env(ENV)
    spec = on_servers(in_process, Servers(ENV, list(urls))) if urls else in_process
    train = spec.split(0).train
    group_size = GROUP_SIZE if episodes % GROUP_SIZE == 0 else 1
    num_items = episodes // group_size
    repeats = 1 if latency_s else max(1, MIN_STEPS // (episodes * turns))
    batches = [[train[(r * num_items + i) % len(train)] for i in range(num_items)] for r in range(repeats)]

    tokenizer = make_tokenizer()
    sampler = ScriptedSampler(
        SCRIPTS[agent],
        encode=lambda text: tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids,
        latency_s=latency_s,
    )
    limits = EpisodeLimits(max_turns=turns, max_tokens_per_turn=128, context_length=1_000_000)
    tools = Toolbox([look]) if agent == "react" else None
    config = EpisodeConfig(
        agent=FormatAgent(agent, schemas=tools.schemas if tools else ()), limits=limits, tools=tools
    )
    renderer = Renderer(tokenizer)

    async def run_all() -> tuple[float, float, float, float]:
        envs = EnvManager([spec], capacity=episodes)
        for warm in [on_servers(in_process, Servers(ENV, [url])) for url in urls] or [spec]:
            env = warm.make()
            for item in train:
                await env.reset(item)
            await env.close()
        heart = Heartbeat()
        beating = asyncio.create_task(heart.beat())
        await asyncio.sleep(10 * HEARTBEAT_S)
        heart.longest_s = 0.0
        cpu, wall = time.process_time(), time.perf_counter()
        for index, items in enumerate(batches):
            groups = await run_groups(
                items,
                GroupSpec(name=f"batch {index}", num_samples=group_size, max_attempts=1),
                envs=envs,
                start_conversation=partial(
                    TokenConversation,
                    sampler=sampler,
                    renderer=renderer,
                    sampling=SamplingParams(max_tokens=limits.max_tokens_per_turn),
                ),
                get_config=lambda _: config,
            )
            check(groups, turns=turns)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        lag_s, heart.longest_s = heart.longest_s, 0.0
        await asyncio.sleep(2 * HEARTBEAT_S)  # detects a stall at the very end as well
        end_lag_s = heart.longest_s
        beating.cancel()
        await envs.close()
        return cpu, wall, lag_s, end_lag_s

    cpu_s, wall_s, lag_s, end_lag_s = asyncio.run(run_all())
    return Result(
        agent=agent,
        episodes=episodes,
        turns=turns,
        latency_s=latency_s,
        servers=len(urls),
        cpu_ms_per_step=round(1e3 * cpu_s / (episodes * turns * repeats), 4),
        episodes_per_s=round(episodes * repeats / wall_s, 1),
        loop_lag_ms=round(1e3 * lag_s, 1),
        end_lag_ms=round(1e3 * end_lag_s, 1),
        wall_s=round(wall_s / repeats, 4),
        ideal_s=turns * latency_s,
        peak_mb=round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
    )


class Heartbeat:
    """Wakes up every `HEARTBEAT_S`; the longest gap is the event loop's lag, plus at most `HEARTBEAT_S`."""

    def __init__(self) -> None:
        self.longest_s = 0.0

    async def beat(self) -> None:
        while True:
            last = time.perf_counter()
            await asyncio.sleep(HEARTBEAT_S)
            self.longest_s = max(self.longest_s, time.perf_counter() - last)


def write_idle_action(episode_id: str, turn: int) -> str:
    """A valid action that does not end the episode; inventories, and so observations, differ."""
    number = zlib.crc32(f"{episode_id}/{turn}".encode()) % 64
    if number % 4 == 0:
        return "Thought: what do I have by now?\nAction: inventory"
    material = MATERIALS[number % len(MATERIALS)]
    return f"Thought: I need more of this to go on.\nAction: get {1 + number} {material}"


@tool
async def look(place: str, count: int = 1) -> str:
    """Look somewhere.

    Args:
        place: Where.
        count: How often.
    """
    return f"At {place} there is nothing, {count} times."


def write_idle_call(episode_id: str, turn: int) -> str:
    """A call of the trivial tool."""
    number = zlib.crc32(f"{episode_id}/{turn}".encode()) % 64
    return (
        "Thought: I do not know yet where it is.\nAction: look\n"
        f'Action Input: {{"place": "mile {number}", "count": {number % 4}}}'
    )


SCRIPTS = {"action": write_idle_action, "react": write_idle_call}


def check(groups: Sequence[Sequence[Trajectory]], *, turns: int) -> None:
    """Raise `RuntimeError` unless every episode ran to its last turn: a figure would not count."""
    for trajectory in (trajectory for group in groups for trajectory in group):
        if trajectory.stop_reason is not StopReason.MAX_TURNS or len(trajectory.turns) != turns:
            raise RuntimeError(
                f"{trajectory.item.item_id} ended early: {trajectory.stop_reason} {trajectory.error}"
            )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="CPU cost of the rollout core, without a model")
    parser.add_argument("--episodes", type=int, default=512, help="episodes played at once")
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--agent", choices=SCRIPTS, default="action")
    parser.add_argument("--latency", type=float, default=0.0, help="seconds that the simulated model takes")
    parser.add_argument("--servers", type=int, default=0, help="HTTP servers for the environments; 0: none")
    arguments = parser.parse_args()
    # Each server has room for all episodes.
    fleet = Fleet(ENV, arguments.servers, max_sessions=arguments.episodes) if arguments.servers else None
    try:
        result = measure(
            agent=arguments.agent,
            episodes=arguments.episodes,
            turns=arguments.turns,
            latency_s=arguments.latency,
            urls=fleet.urls if fleet else (),
        )
    finally:
        if fleet is not None:
            fleet.close()
    print(json.dumps(asdict(result)))


if __name__ == "__main__":
    main()
