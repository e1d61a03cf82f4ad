"""The effect of `kill -9` on a rollout: environment processes die during their episodes.

A scripted sampler runs items twice, undisturbed and with kills among its turns, each of a process chosen
at random: TextCraft's and BabyAI's instances get a process each, ALFWorld's have one, ScienceWorld has
JVMs. With a `Fleet` the instances live on HTTP servers, which are killed and restarted at once. Half of the
episodes solve their item, half give up before the end.
"""

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import httpx
import psutil

from agents.agent import FormatAgent
from agents.prompting.renderer import Renderer
from agents.rollout.conversation import TokenConversation
from agents.rollout.episode import EpisodeConfig
from agents.rollout.group import Callbacks, GroupSpec, run_groups
from agents.samplers.sampler import ScriptedSampler
from agents.types import Completion, EpisodeLimits, SamplingParams, StopReason, Trajectory
from envs.registry import EnvSpec, get_env
from envs.remote.servers import Servers, on_servers
from envs.runtime.manager import EnvManager
from envs.serve.limits import ServerLimits
from envs.types import Image, Item
from tasks.base_model.model import make_tokenizer
from tests.support.experts import actions_of
from tests.support.sockets import free_port

IDLE_ACTION = "look around"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A comparison of an undisturbed and a disturbed run of the same items."""

    env: str
    kills: int
    """Processes that were killed."""
    episodes: int
    """Of the undisturbed run, as are `successes`."""
    successes: int
    is_same: bool
    """The disturbed run left each trajectory once, with the same observations, rewards and end."""
    retries: int
    """Episodes that took more than one attempt."""
    undisturbed_s: float
    disturbed_s: float


class Killer:
    """A sampler that sometimes kills a part of an environment before it answers."""

    def __init__(
        self, script: ScriptedSampler, *, kills: int, calls: int, kill: Callable[[random.Random], bool]
    ) -> None:
        """The kills are spread over the first `calls` calls. `kill` returns whether there was anything to
        kill."""
        self._script = script
        self._due = [calls * (kill + 1) // (kills + 2) for kill in range(kills)]
        self._calls = 0
        self._chance = random.Random(0)
        self._kill = kill
        self.num_kills = 0

    async def sample(
        self,
        prompt_ids: Sequence[int],
        *,
        images: Sequence[Image] = (),
        params: SamplingParams,
        episode_id: str,
    ) -> Completion:
        self._calls += 1
        if self._due and self._calls >= self._due[0] and self._kill(self._chance):
            del self._due[0]
            self.num_kills += 1
        return await self._script.sample(prompt_ids, images=images, params=params, episode_id=episode_id)


class Processes:
    """The processes of environments on this machine."""

    def __init__(self) -> None:
        self._other_processes = set(psutil.Process().children(recursive=True))

    def kill(self, chance: random.Random) -> bool:
        """Kill one of them."""
        this = psutil.Process()
        victims = []
        for process in this.children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                # This process's direct children are JVMs and the fork server.
                is_worker = process.ppid() != this.pid or process.name() == "java"
                if (
                    is_worker
                    and process not in self._other_processes
                    and process.status() != psutil.STATUS_ZOMBIE
                ):
                    victims.append(process)
        if not victims:
            return False
        with suppress(ProcessLookupError):
            os.kill(chance.choice(victims).pid, signal.SIGKILL)
            return True
        return False


class Fleet:
    """HTTP servers of one environment, each in a process, that are restarted after a kill."""

    def __init__(self, env: str, count: int, *, max_sessions: int = ServerLimits().max_sessions) -> None:
        """Start them; returns when all answer. `max_sessions`: of each."""
        self._env = env
        self._max_sessions = max_sessions
        self._ports = [free_port() for _ in range(count)]
        self._running = {port: self._start(port) for port in self._ports}
        for port in self._ports:
            self._wait_until_ready(port)
        self._ready = set(self._ports)

    @property
    def urls(self) -> list[str]:
        return [f"http://127.0.0.1:{port}" for port in self._ports]

    def kill(self, chance: random.Random) -> bool:
        """Kill one that answers, and restart it."""
        if not self._ready:
            return False
        port = chance.choice(sorted(self._ready))
        self._ready.discard(port)
        self._running[port].kill()
        self._running[port].wait()
        threading.Thread(target=self._restart, args=(port,), daemon=True).start()
        return True

    def close(self) -> None:
        for process in self._running.values():
            process.kill()

    def _restart(self, port: int) -> None:
        self._running[port] = self._start(port)
        self._wait_until_ready(port)
        self._ready.add(port)

    def _start(self, port: int) -> "subprocess.Popen[bytes]":
        code = "from flows.cli.app import main; main()"
        return subprocess.Popen(
            [
                *(sys.executable, "-c", code, "serve-env", self._env),
                *("--port", str(port), "--max-sessions", str(self._max_sessions)),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def _wait_until_ready(self, port: int) -> None:
        for _ in range(600):
            with suppress(httpx.HTTPError):
                httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False).raise_for_status()
                return
            time.sleep(0.05)
        raise RuntimeError(f"the server on port {port} does not answer")


def measure(
    env: str,
    items: Sequence[Item],
    *,
    kills: int,
    num_samples: int = 8,
    capacity: int = 8,
    fleet: Fleet | None = None,
    kill: Callable[[random.Random], bool] | None = None,
) -> Outcome:
    """Run `num_samples` of each item undisturbed, then with `kills`, on local instances or on `fleet`.

    `kill` defaults to killing any process of the environment, or any server.
    """
    spec = get_env(env)
    if fleet is not None:
        spec = on_servers(spec, Servers(env, fleet.urls))
    elif spec.isolation == "none":
        spec = replace(spec, isolation="process")
    solutions = [[f"Action: {action}" for action in asyncio.run(actions_of(spec, item))] for item in items]
    turns = max(map(len, solutions))

    def respond(episode_id: str, turn: int) -> str:
        _, item_index, sample_index, _ = episode_id.split("/")
        actions = solutions[int(item_index)]
        actions = actions if int(sample_index) % 2 == 0 else actions[: len(actions) // 2]
        return actions[turn] if turn < len(actions) else f"Action: {IDLE_ACTION}"

    tokenizer = make_tokenizer()

    def sampler() -> ScriptedSampler:
        return ScriptedSampler(
            respond,
            encode=lambda text: tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids,
        )

    limits = EpisodeLimits(
        max_turns=turns,
        max_tokens_per_turn=128,
        context_length=1_000_000,
        episode_timeout_s=600,
        step_timeout_s=60,
    )
    config = EpisodeConfig(agent=FormatAgent("action"), limits=limits)
    renderer = Renderer(tokenizer)
    calls = sum(num_samples // 2 * (len(solution) + turns) for solution in solutions)
    kill = kill or (Processes().kill if fleet is None else fleet.kill)
    killer = Killer(sampler(), kills=kills, calls=calls, kill=kill)

    async def run_episodes(sampler: Killer | ScriptedSampler) -> tuple[list[Trajectory], float]:
        trajectories: list[Trajectory] = []
        envs = EnvManager([spec], capacity=capacity)
        start = time.perf_counter()
        await run_groups(
            items,
            GroupSpec(
                name="play",
                num_samples=num_samples,
                max_attempts=kills + 1,
                callbacks=Callbacks(on_trajectory=trajectories.append),
            ),
            envs=envs,
            start_conversation=partial(
                TokenConversation,
                sampler=sampler,
                renderer=renderer,
                sampling=SamplingParams(max_tokens=limits.max_tokens_per_turn),
            ),
            get_config=lambda _: config,
        )
        seconds = time.perf_counter() - start
        await envs.close()
        return sorted(trajectories, key=lambda t: (t.item.item_id, t.sample_index)), seconds

    baseline, undisturbed_s = asyncio.run(run_episodes(sampler()))
    result, disturbed_s = asyncio.run(run_episodes(killer))
    return Outcome(
        env=env,
        kills=killer.num_kills,
        episodes=len(baseline),
        successes=sum(trajectory.success for trajectory in baseline),
        is_same=list(map(to_record, result)) == list(map(to_record, baseline)),
        retries=sum(trajectory.attempts > 1 for trajectory in result),
        undisturbed_s=round(undisturbed_s, 2),
        disturbed_s=round(disturbed_s, 2),
    )


def to_record(
    trajectory: Trajectory,
) -> tuple[str, int, StopReason, float, bool, list[tuple[str, str, float]]]:
    """Everything in a trajectory that its environment decides."""
    return (
        trajectory.item.item_id,
        trajectory.sample_index,
        trajectory.stop_reason,
        trajectory.reward,
        trajectory.success,
        [(turn.action, turn.observation, turn.reward) for turn in trajectory.turns],
    )


def take_solvable_items(spec: EnvSpec, count: int) -> list[Item]:
    """The first training items whose solution is known."""
    items: list[Item] = []
    for item in spec.split(0).train:
        if len(items) == count:
            break
        if spec.solve(item):
            items.append(item)
    return items


def list_descendants() -> list[psutil.Process]:
    """Return all descendants of this process."""
    return psutil.Process().children(recursive=True)


def kill_browser(_: random.Random) -> bool:
    """End every Chromium that runs here."""
    browsers = []
    for process in list_descendants():
        with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            command = process.cmdline()
            if "bwrap" not in command[:1] and any(part.startswith("--user-data-dir=") for part in command):
                browsers.append(process)
    for browser in browsers:  # all of them, because one may just be ending
        with suppress(ProcessLookupError):
            os.kill(browser.pid, signal.SIGKILL)
    return bool(browsers)
