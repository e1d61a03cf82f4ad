"""Stage `provision`: starts the environments, proves that they work, and records what they are.

The scripted expert plays training items, all at once, on the pool that training will use. An item that it
does not solve is a fault of the environment, found here and not an hour into training. In an environment
without an expert, each episode takes one action. Sandboxes are started too, and the reward checks the items.
"""

import asyncio
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from agents.agent import FormatAgent
from agents.prompting.images import has_vision
from agents.rollout.episode import EpisodeConfig
from agents.rollout.scripted import expert_script, run_script
from envs.errors import EnvCrashed, SamplerFailed
from envs.files import write_json
from envs.registry import EnvSpec, ExpertStep, get_env
from envs.requirements.detection import Program
from envs.runtime.manager import EnvManager
from envs.sandbox.workspace import WithWorkspace
from envs.types import Item
from tasks.cluster.envs import find_cluster_host
from tasks.config.environments import environments
from tasks.config.episodes import check_reward, check_vision
from tasks.config.pipelines import Pipeline
from tasks.data.items import read_split
from tasks.runs.progress import SILENT, Progress

EPISODES = 64
"""The most expert episodes of each environment; more than a laptop can reasonably hold at once."""
SOLVING_S = 20.0
"""The time after which an expert does not begin to look for another solution."""
TRIAL = "look"
"""The action for items without a known solution; the environment must answer it, valid or not."""


def provision(pipeline: Pipeline, workspace: Path, progress: Progress = SILENT) -> None:
    """Play expert episodes in all environments at once; write `provision.json`.

    Raises `EnvCrashed` or `EpisodeTimeout` if an episode does not end in success, `ConfigError` for an item
    without the values that the reward's parameters need.
    """
    items = read_split(workspace, data=pipeline.data)
    check_reward(pipeline.agent, (*items.train, *items.test))
    check_vision((*items.train, *items.test), has_vision=has_vision(pipeline.model) is not False)
    start_s = time.perf_counter()
    proofs = {env: _proofs(get_env(env), items.train) for env in pipeline.data.envs}
    turns, steps = asyncio.run(_prove(proofs, pipeline=pipeline))
    receipt = {
        "python": platform.python_version(),
        "capacity": pipeline.rollout.max_live_envs,
        "episodes": sum(map(len, turns.values())),
        "solved": sum(bool(proof.solution) for env_proofs in proofs.values() for proof in env_proofs),
        "turns": sum(map(sum, turns.values())),
        "seconds": round(time.perf_counter() - start_s, 3),
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
    write_json(workspace / "provision.json", receipt)


def _where(env: str, *, pipeline: Pipeline) -> dict[str, object]:
    """Packages and programs on this machine, or the servers, which do not report theirs."""
    if env in pipeline.servers:
        return {"servers": pipeline.servers[env].recorded_urls}
    spec = get_env(env)
    programs = {need.name: need.version() for need in spec.requirements if isinstance(need, Program)}
    return {"packages": {name: version(name) for name in spec.packages}, "programs": programs}


@dataclass(frozen=True, slots=True)
class _Proof:
    item: Item
    solution: Sequence[ExpertStep]
    """Empty if none is known: then one action is tried."""


def _proofs(spec: EnvSpec, items: Sequence[Item]) -> list[_Proof]:
    """Items from all parts of `items` with their solutions; without solutions if none is found in time."""
    env_items = [item for item in items if item.env == spec.name]
    end_s = time.perf_counter() + SOLVING_S
    proofs: list[_Proof] = []
    # An environment on servers may lack here what its expert needs.
    solvable = env_items if all(need.find_remedy() is None for need in spec.needs) else []
    for item in solvable[:: max(1, len(env_items) // EPISODES)][:EPISODES]:
        if time.perf_counter() > end_s:
            break
        solution = spec.solve(item)
        if solution:
            proofs.append(_Proof(item, solution))
    return proofs or [_Proof(item, ()) for item in env_items[:EPISODES]]


async def _prove(
    proofs: Mapping[str, Sequence[_Proof]], *, pipeline: Pipeline
) -> tuple[dict[str, list[int]], dict[str, float]]:
    """Play all solutions at once; returns their turns and the mean seconds of a step, by environment."""
    most = pipeline.rollout.max_live_envs
    envs = EnvManager(environments(pipeline), capacity=most, total=most, remote_host=find_cluster_host())
    try:
        episodes = [
            asyncio.gather(*(_solve(proof, envs=envs, pipeline=pipeline) for proof in env_proofs))
            for env_proofs in proofs.values()
        ]
        turns = dict(zip(proofs, await asyncio.gather(*episodes), strict=True))
        return turns, {env: metrics.step.mean for env, metrics in envs.metrics.items()}
    finally:
        await envs.close()


async def _solve(proof: _Proof, *, envs: EnvManager, pipeline: Pipeline) -> int:
    """Play the solution, or one action; returns the number of turns."""
    item, steps = proof.item, proof.solution or [ExpertStep("", TRIAL)]
    limits = pipeline.rollout.limits(max_turns=len(steps))
    config = EpisodeConfig(agent=FormatAgent("raw"), limits=limits)
    async with envs.lease(item.env, timeout_s=limits.episode_timeout_s) as env:
        try:
            trajectory = await run_script(env, item, expert_script(steps, config=config), config=config)
        except SamplerFailed as error:
            raise EnvCrashed(f"{item.item_id}: the expert cannot continue: {error}") from None
        if isinstance(env.unwrapped, WithWorkspace):
            await _try_sandbox(env.unwrapped, item)
    spec = get_env(item.env)
    if spec.has_states and item.env not in pipeline.servers and trajectory.turns[0].state is None:
        raise EnvCrashed(
            f"{item.item_id}: state_key returns None in the first turn, and the EnvSpec has "
            "has_states=True; return a key from the reset on, or set has_states=False"
        )
    if proof.solution and not trajectory.success:
        last, packages = trajectory.turns[-1], spec.packages
        cause = f"another version of {' or '.join(packages)} may be installed; " if packages else ""
        raise EnvCrashed(
            f"the expert's solution of {item.item_id} does not solve it: its action "
            f"{len(trajectory.turns)} of {len(steps)}, {last.action[:80]!r}, is answered by "
            f"{last.observation[:80]!r}; {cause}play it, with the expert's actions as hints: wingspan play "
            f"{item.env} {item.index}"
        )
    return len(trajectory.turns)


async def _try_sandbox(env: WithWorkspace, item: Item) -> None:
    reply = await env.workspace.shell("echo works")
    if reply.is_error or reply.text.strip() != "works":
        raise EnvCrashed(f"{item.item_id}: the sandbox does not run commands: {reply.text[:80]!r}")
