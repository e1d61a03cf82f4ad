"""ScienceWorld: experiments of elementary-school science in a simulated house, by text commands.

The simulator is the Java program of the `scienceworld` package (Wang et al. 2022, ScienceWorld, arXiv
2203.07540). Each live instance has its own JVM and talks to it through py4j from its own thread. The
package's Python wrapper is not used: its `step` makes ten more queries than a policy needs and takes nine
times as long. Items are numbered as in AgentGym: the variations of 23 tasks, task after task (it omits the
tasks 5-1, 5-2, 9-1 to 9-3, 10-1 and 10-2).

The score grows from 0 to 1 as parts of the task are done. Focusing on a wrong object ends the task with a
score of -1, which counts as 0 here. The reward of a step is the score that it adds. Success is a score of 1.
"""

import asyncio
import atexit
import json
import random
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from envs.errors import ConfigError, unknown_item
from envs.registry import EnvSpec, ExpertStep, Split
from envs.requirements.detection import JAVA
from envs.types import Item, StepResult

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Task:
    """One of AgentGym's tasks; variations `0..train` are for training, from `test` on for tests."""

    number: str
    name: str
    variations: int
    train: int
    test: int


TASKS = (
    Task("1-1", "boil", 30, 14, 21),
    Task("1-2", "melt", 30, 14, 21),
    Task("1-3", "freeze", 30, 14, 21),
    Task("1-4", "change-the-state-of-matter-of", 30, 14, 21),
    Task("2-1", "use-thermometer", 540, 270, 405),
    Task("2-2", "measure-melting-point-known-substance", 436, 218, 327),
    Task("2-3", "measure-melting-point-unknown-substance", 300, 150, 225),
    Task("3-1", "power-component", 20, 10, 15),
    Task("3-2", "power-component-renewable-vs-nonrenewable-energy", 20, 10, 15),
    Task("3-3", "test-conductivity", 900, 450, 675),
    Task("3-4", "test-conductivity-of-unknown-substances", 600, 300, 450),
    Task("4-1", "find-living-thing", 300, 150, 225),
    Task("4-2", "find-non-living-thing", 300, 150, 225),
    Task("4-3", "find-plant", 300, 150, 225),
    Task("4-4", "find-animal", 300, 150, 225),
    Task("6-1", "chemistry-mix", 32, 16, 24),
    Task("6-2", "chemistry-mix-paint-secondary-color", 36, 18, 27),
    Task("6-3", "chemistry-mix-paint-tertiary-color", 36, 18, 27),
    Task("7-1", "lifespan-longest-lived", 125, 62, 93),
    Task("7-2", "lifespan-shortest-lived", 125, 62, 93),
    Task("7-3", "lifespan-longest-lived-then-shortest-lived", 125, 62, 93),
    Task("8-1", "identify-life-stages-1", 14, 6, 9),
    Task("8-2", "identify-life-stages-2", 10, 4, 6),
)
"""The tasks in the package's order; the variations between `train` and `test` are its development set."""

TEST_ITEMS, TRAIN_ITEMS = 200, 2120
"""The sizes of AgentGym-RL's SciWorld; its code does not say which items it chose."""

_HASH_OPTIONS = ("-XX:+IgnoreUnrecognizedVMOptions", "-XX:+UnlockExperimentalVMOptions", "-XX:hashCode=2")
"""The simulator iterates over sets of its objects in the order of hash codes, which Java draws anew each
time; the order decides which of two objects warms the other first and which container a gold path opens. With
one hash code for all objects, it is the order of their creation."""
JVM_OPTIONS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xss512k", *_HASH_OPTIONS)
HEAP_SIZE, SOLVER_HEAP_SIZE = "192m", "2g"
"""Without a limit the heap of one JVM reached 1.08 GB; with this one a JVM takes about 160 MB. The solver
needs more: it stores whole sets of paths through the house."""

INSTRUCTIONS = """\
You carry out an experiment in a simulated house. Every round you are told what happened, and you \
take one action. Actions: open OBJ, close OBJ, activate OBJ, deactivate OBJ, \
connect OBJ to OBJ, disconnect OBJ, use OBJ [on OBJ], look around, look at OBJ, look in OBJ, read OBJ, \
move OBJ to OBJ, pick up OBJ, put down OBJ, pour OBJ into OBJ, dunk OBJ into OBJ, mix OBJ, go to LOC, \
eat OBJ, flush OBJ, focus on OBJ (only on what the task asks for: a wrong one ends it), wait, wait1, \
examine OBJ, task, inventory. Where a name is ambiguous you are asked to choose by a number."""


class Jvm:
    """One simulator process; every method blocks, and one thread at a time may call."""

    def __init__(self, *, heap_size: str = HEAP_SIZE) -> None:
        """Start it; raises `MissingDependency` without Java or the package."""
        # The simulator writes a table of its objects into its working directory.
        self._folder = tempfile.TemporaryDirectory()
        with SPEC.explain_missing():
            from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
            from scienceworld.constants import JAR_PATH

            # With die_on_exit, the JVM ends with this process, however that ends.
            port, self._process = launch_gateway(
                classpath=JAR_PATH,
                javaopts=[*JVM_OPTIONS, f"-Xmx{heap_size}"],
                die_on_exit=True,
                return_proc=True,
                cwd=self._folder.name,
            )
        # No memory management: its finalizers would log messages long after the JVM has ended. Besides texts
        # and numbers, the simulator rarely returns objects, and these are lists of actions.
        self._gateway = JavaGateway(
            gateway_parameters=GatewayParameters(port=port, enable_memory_management=False)
        )
        self.simulator: JavaObject = self._gateway.jvm.scienceworld.runtime.pythonapi.PythonInterface()

    @property
    def pid(self) -> int:
        """Process id of the JVM."""
        return int(self._process.pid)

    @property
    def is_alive(self) -> bool:
        """False once the process has ended."""
        return self._process.poll() is None

    def load(self, task: str, variation: int, *, solve: bool = False) -> str:
        """Start a variation; returns the task's description. `solve` also computes the gold path."""
        self.simulator.load(task, variation, "", solve)
        self.simulator.reset()
        return str(self.simulator.getTaskDescription())

    def gold_path(self) -> list[str]:
        """The actions of the simulator's own solver; needs `load(solve=True)`."""
        return [str(action) for action in self.simulator.getGoldActionSequence()]

    def step(self, action: str) -> tuple[str, float, bool]:
        """(observation, score in [-1, 1], whether the task has ended: done, or lost by a score below 0)"""
        observation = str(self.simulator.step(action))
        score = float(self.simulator.getScore())
        return observation, score, score < 0 or bool(self.simulator.getCompleted())

    def inspect(self, name: str) -> object:
        """A fact that observations omit, named and formed as by AgentGym's server."""
        simulator = self.simulator
        match name:
            case "action_hint":
                return {
                    "possible_actions": list(map(str, simulator.getPossibleActions())),
                    "possible_objects": list(map(str, simulator.getPossibleObjects())),
                }
            case "goals":
                return {"goals": str(simulator.getGoalProgressStr())}
            case "task_description":
                return {"task_description": str(simulator.getTaskDescription())}
            case "object_tree":
                simulator.getObjectTree(self._folder.name)
                return {"object_tree": json.loads(Path(self._folder.name, "objectTree.json").read_text())}
            case "state":
                return {
                    "observation": str(simulator.freeActionLook()),
                    "inventory": str(simulator.freeActionInventory()),
                    "task_description": str(simulator.getTaskDescription()),
                    "goal_progress": str(simulator.getGoalProgressStr()),
                    "possible_actions": list(map(str, simulator.getPossibleActions()))[:10],
                    "possible_objects": list(map(str, simulator.getPossibleObjects()))[:10],
                    "current_moves": int(simulator.getNumMoves()),
                }
        raise ConfigError(f"sciworld has no fact {name!r}")

    def close(self) -> None:
        """End the process. Idempotent."""
        self._process.kill()
        self._process.wait()
        with suppress(Exception):
            self._gateway.close()
        self._folder.cleanup()


class SciWorldEnv:
    """One live instance; its JVM starts with the first `reset`."""

    def __init__(self) -> None:
        self.jvm: Jvm | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._score = 0.0
        self._points = self._points_gained = 0
        self._is_playing = False

    @property
    def is_alive(self) -> bool:
        """False once the JVM has died."""
        return self.jvm is None or self.jvm.is_alive

    async def prepare(self) -> None:
        """Start the JVM."""
        await self._in_thread(self._start_jvm)

    async def reset(self, item: Item) -> str:
        """Start `item`; returns the task and the first view."""
        task, variation = find_variation(item.index)
        self._score, self._points, self._is_playing = 0.0, 0, True

        def start() -> tuple[str, float]:
            jvm = self._start_jvm()
            description = jvm.load(task.name, variation)
            observation, score, _ = jvm.step("look around")
            return f"{description}\n{observation}", score

        opening, score = await self._in_thread(start)
        self._count_points(score)
        return opening

    async def step(self, action: str) -> StepResult:
        """Apply one command."""
        jvm = self.jvm
        if jvm is None or not self._is_playing:
            raise RuntimeError("step before reset, or after the end")
        command = " ".join(action.split())[:200]
        observation, score, has_ended = await self._in_thread(lambda: jvm.step(command))
        self._is_playing = not has_ended
        score = max(0.0, score)
        gain, self._score = score - self._score, score
        self._count_points(score)
        return StepResult(observation, gain, terminated=has_ended, success=has_ended and score >= 1.0)

    async def inspect(self, name: str) -> object:
        """`points`, or a fact of `Jvm.inspect`."""
        jvm = self.jvm
        if jvm is None:
            raise RuntimeError("inspect before reset")
        if name == "points":
            return {"score": self._points, "reward": self._points_gained}
        return await self._in_thread(lambda: jvm.inspect(name))

    async def close(self) -> None:
        """End the JVM."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        if self.jvm is not None:
            await asyncio.to_thread(self.jvm.close)  # ends a step that hangs
        await asyncio.get_running_loop().run_in_executor(thread, self._end)  # a JVM that was still starting
        thread.shutdown(wait=False)

    def _count_points(self, score: float) -> None:
        """Whole points up to 100, of the episode and of the last action, as AgentGym's server reports them. A
        reset may already give some."""
        points = round(100 * max(0.0, score))
        self._points_gained, self._points = points - self._points, points

    def _end(self) -> None:
        jvm, self.jvm = self.jvm, None
        if jvm is not None:
            jvm.close()

    def _start_jvm(self) -> Jvm:
        if self.jvm is None:
            self.jvm = Jvm()
        return self.jvm

    async def _in_thread(self, work: Callable[[], T]) -> T:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="sciworld")
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def find_variation(index: int) -> tuple[Task, int]:
    """AgentGym's item `index` → (task, variation). Raises `ConfigError` if there is no such item."""
    rest = index
    for task in TASKS:
        if 0 <= rest < task.variations:
            return task, rest
        rest -= task.variations
    raise unknown_item("sciworld", index, count=sum(task.variations for task in TASKS))


def make_item(index: int) -> Item:
    """The item `sciworld_<index>`."""
    task, _ = find_variation(index)
    return Item(item_id=f"sciworld_{index}", env="sciworld", metadata={"task": task.number})


def split(seed: int) -> Split:
    """2,120 training items drawn from the package's training variations, 200 test items from its test
    variations."""
    rng = random.Random(f"sciworld/split/{seed}")
    first, train, test = 0, list[int](), list[int]()
    for task in TASKS:
        train += range(first, first + task.train)
        test += range(first + task.test, first + task.variations)
        first += task.variations
    return Split(
        train=[make_item(i) for i in sorted(rng.sample(train, min(len(train), TRAIN_ITEMS)))],
        test=[make_item(i) for i in sorted(rng.sample(test, TEST_ITEMS))],
    )


def _solver() -> Jvm:
    """The JVM that solves, which stays up; another if it has died."""
    if not _start_solver().is_alive:
        _start_solver.cache_clear()
    return _start_solver()


@cache
def _start_solver() -> Jvm:
    jvm = Jvm(heap_size=SOLVER_HEAP_SIZE)
    atexit.register(jvm.close)
    return jvm


def expert(item: Item) -> Sequence[ExpertStep]:
    """The simulator's own gold path."""
    task, variation = find_variation(item.index)
    jvm = _solver()
    jvm.load(task.name, variation, solve=True)
    return [ExpertStep(thought="", action=action) for action in jvm.gold_path()]


SPEC = EnvSpec(
    name="sciworld",
    make=SciWorldEnv,
    split=split,
    make_item=make_item,
    expert=expert,
    instructions=INSTRUCTIONS,
    packages=("scienceworld",),
    isolation="own",
    requirements=(JAVA,),
    source="the scienceworld package: its simulator, tasks and variations; nothing to download",
)
