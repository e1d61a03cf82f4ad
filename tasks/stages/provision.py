"""Stage `provision`: bring the environments up, prove that they work, record what they are.

The scripted expert plays training items on the pool that training will use, all at once. Anything
but a solved item is a fault of the environment, found here and not an hour into training. Where an
environment has no expert, items are begun and one action is answered. Sandboxes are started, too, and the
items are shown to the reward, which says what it lacks.
"""

import asyncio
import json
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from agents.agent import FormatAgent
from agents.prompting.images import has_vision
from agents.rollout.episode import EpisodeConfig
from agents.rollout.scripted import expert_script, run_script
from envs.errors import EnvCrashed, SamplerFailed
from envs.files import write_atomically
from envs.registry import EnvSpec, ExpertStep, get_env
from envs.requirements.detection import Program
from envs.runtime.manager import EnvManager
from envs.sandbox.workspace import WithWorkspace
from envs.types import Item
from tasks.cluster.envs import find_cluster_host
from tasks.config.environments import environments
from tasks.config.episodes import check_reward, check_vision
from tasks.config.pipelines import Pipeline
from tasks.data.items import read_items
from tasks.progress import SILENT, Progress

EPISODES = 64
"""Most expert episodes of each environment; more than any sensible number of live ones on a laptop."""
SOLVING_S = 20.0
"""Most seconds in which an expert begins to look for another solution."""
TRIAL = "look"
"""The one action where no solution is known; whatever it is taken for, it must be answered."""


def provision(pipeline: Pipeline, workspace: Path, progress: Progress = SILENT) -> None:
    """Play expert episodes of every environment at once; write `provision.json`.

    Raises `EnvCrashed` or `EpisodeTimeout` if an episode does not end in success, `ConfigError` for an item
    that does not fill the reward's parameters.
    """
    items, held_out = (
        read_items(workspace / "data" / file, data=pipeline.data) for file in ("train.jsonl", "test.jsonl")
    )
    check_reward(pipeline.agent, (*items, *held_out))
    check_vision((*items, *held_out), has_vision=has_vision(pipeline.model) is not False)
    started = time.perf_counter()
    proofs = {env: _proofs(get_env(env), items) for env in pipeline.data.envs}
    turns, steps = asyncio.run(_prove(proofs, pipeline=pipeline))
    receipt = {
        "python": platform.python_version(),
        "capacity": pipeline.rollout.max_live_envs,
        "episodes": sum(map(len, turns.values())),
        "solved": sum(bool(proof.solution) for own in proofs.values() for proof in own),
        "turns": sum(map(sum, turns.values())),
        "seconds": round(time.perf_counter() - started, 3),
        "envs": {
            env: {
                **_where(env, pipeline=pipeline),
                "episodes": len(turns[env]),
                "solved": sum(bool(proof.solution) for proof in proofs[env]),
                "turns": sum(turns[env]),
                "seconds_per_step": round(steps[env], 6),
            }
            for env in proofs
        },
    }
    write_atomically(workspace / "provision.json", json.dumps(receipt, indent=2) + "\n")


def _where(env: str, *, pipeline: Pipeline) -> dict[str, Any]:
    """What it is: packages and programs of this machine, or servers, which do not tell theirs."""
    if env in pipeline.servers:
        return {"servers": list(pipeline.servers[env].urls)}
    spec = get_env(env)
    programs = {need.name: need.version() for need in spec.requirements if isinstance(need, Program)}
    return {"packages": {name: version(name) for name in spec.packages}, "programs": programs}


@dataclass(frozen=True, slots=True)
class _Proof:
    item: Item
    solution: Sequence[ExpertStep]
    """Empty where none is known: then one action is tried."""


def _proofs(spec: EnvSpec, items: Sequence[Item]) -> list[_Proof]:
    """Items from all over `items`, with solutions; items alone if none is known in the time that there is."""
    own = [item for item in items if item.env == spec.name]
    until = time.perf_counter() + SOLVING_S
    found: list[_Proof] = []
    # An environment on servers may lack here what its expert needs.
    solvable = own if all(need.find_remedy() is None for need in spec.needs) else []
    for item in solvable[:: max(1, len(own) // EPISODES)][:EPISODES]:
        if time.perf_counter() > until:
            break
        solution = spec.solve(item)
        if solution:
            found.append(_Proof(item, solution))
    return found or [_Proof(item, ()) for item in own[:EPISODES]]


async def _prove(
    proofs: Mapping[str, Sequence[_Proof]], *, pipeline: Pipeline
) -> tuple[dict[str, list[int]], dict[str, float]]:
    """Play every solution at once; returns each one's turns and the mean seconds of a step, by env."""
    most = pipeline.rollout.max_live_envs
    envs = EnvManager(environments(pipeline), capacity=most, total=most, remote_host=find_cluster_host())
    try:
        played = [
            asyncio.gather(*(_solve(proof, envs=envs, pipeline=pipeline) for proof in own))
            for own in proofs.values()
        ]
        turns = dict(zip(proofs, await asyncio.gather(*played), strict=True))
        return turns, {env: metrics.step.mean for env, metrics in envs.metrics.items()}
    finally:
        await envs.close()


async def _solve(proof: _Proof, *, envs: EnvManager, pipeline: Pipeline) -> int:
    """Returns the number of turns."""
    item, steps = proof.item, proof.solution or [ExpertStep("", TRIAL)]
    limits = pipeline.rollout.limits(max_turns=len(steps))
    config = EpisodeConfig(agent=FormatAgent("raw"), limits=limits)
    async with envs.lease(item.env, timeout_s=limits.episode_timeout_s) as env:
        try:
            trajectory = await run_script(env, item, expert_script(steps, config=config), config=config)
        except SamplerFailed as error:
            raise EnvCrashed(f"{item.item_id}: the expert cannot go on: {error}") from None
        if isinstance(env.unwrapped, WithWorkspace):
            await _try_sandbox(env.unwrapped, item)
    if proof.solution and not trajectory.success:
        packages = ", ".join(get_env(item.env).packages)
        raise EnvCrashed(
            f"the expert's solution of {item.item_id} does not solve it (last observation: "
            f"{trajectory.turns[-1].observation[:80]!r}); is another version of {packages} installed?"
        )
    return len(trajectory.turns)


async def _try_sandbox(env: WithWorkspace, item: Item) -> None:
    reply = await env.workspace.shell("echo works")
    if reply.is_error or reply.text.strip() != "works":
        raise EnvCrashed(f"{item.item_id}: the sandbox does not run commands: {reply.text[:80]!r}")
