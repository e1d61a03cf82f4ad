"""BabyAI: missions in a grid of rooms, with observations and actions in words.

The levels, missions, rewards and the end of an episode are `minigrid`'s own (Chevalier-Boisvert et al. 2019,
BabyAI, arXiv 1810.08272). Items are numbered as in AgentGym: `babyai_N` is level `N % 40` of its forty,
generated from seed `N // 40`; only level 4 differs (docs/environments.md). `view.py` turns views into text
and commands into moves; a command such as `go to red ball 1` stands for many moves, and each counts for the
reward.
"""

import os
import random
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from envs.builtin.babyai.expert import solve
from envs.builtin.babyai.view import Move, describe, list_commands, look
from envs.errors import check_index
from envs.registry import EnvSpec, ExpertStep, Split
from envs.types import Item, StepResult, hash_state

if TYPE_CHECKING:
    from minigrid.core.world_object import WorldObj
    from minigrid.envs.babyai.core.verifier import Instr
    from minigrid.minigrid_env import MiniGridEnv

State = tuple[object, ...]

_LEVELS = """
    GoToRedBallGrey-v0 GoToRedBall-v0 GoToRedBallNoDists-v0 GoToObjS6-v1 GoToLocalS8N7-v0
    GoToObjMazeS7-v0 GoToImpUnlock-v0 GoToSeqS5R2-v0 GoToRedBlueBall-v0 GoToDoor-v0 GoToObjDoor-v0
    Open-v0 OpenRedDoor-v0 OpenDoorLoc-v0 OpenRedBlueDoorsDebug-v0 OpenDoorsOrderN4Debug-v0
    Pickup-v0 UnblockPickup-v0 PickupLoc-v0 PickupDistDebug-v0 PickupAbove-v0 PutNextLocalS6N4-v0
    PutNextS7N4Carrying-v0 Unlock-v0 UnlockLocalDist-v0 KeyInBox-v0 UnlockPickupDist-v0
    BlockedUnlockPickup-v0 UnlockToUnlock-v0 ActionObjDoor-v0 FindObjS7-v0 KeyCorridorS6R3-v0
    OneRoomS20-v0 MoveTwoAcrossS8N9-v0 SynthS5R2-v0 SynthLoc-v0 SynthSeq-v0 MiniBossLevel-v0
    BossLevel-v0 BossLevelNoUnlock-v0
    """
LEVELS = tuple(_LEVELS.split())
"""AgentGym's levels 1 to 40, in its order. Level 4 has `-v0` there, whose rooms had 4 cells by mistake;
minigrid replaced it."""

INSTRUCTIONS = """\
You are in a grid of rooms and have a mission. Every round you are told what you see and which actions \
there are now; "3 ahead, 1 left" is a place relative to where you stand and look. You take \
one of the actions, word for word. "go to" walks until you face an object, "pick up" also \
takes it, "go through" enters an open door, "toggle and go through" opens a closed one first; a locked \
door needs the key of its colour in your hands. "drop" lays down what you carry, "toggle" opens what is \
right in front of you. What you look for may be behind you or in another room."""


TEST_ITEMS, TRAIN_ITEMS = 90, 810
"""The sizes of AgentGym-RL's BabyAI; its code does not say which items it chose."""
SEEDS = 2**31
"""The seeds of each level that all random generators involved can distinguish."""


class BabyAIEnv:
    """One live level."""

    def __init__(self) -> None:
        self.level: MiniGridEnv | None = None
        self._moves: dict[str, list[Move]] = {}
        self._observation = ""

    async def reset(self, item: Item) -> str:
        """Start `item`; returns the mission, the view, and the actions."""
        self.level = make_level(item.index)
        self._look(self.level)
        return f"Your mission: {self.level.mission}\n{self._observation}"

    async def step(self, action: str) -> StepResult:
        """Carry out one of the listed actions; any other is refused by an observation and changes nothing."""
        level = self.level
        if level is None:
            raise RuntimeError("step before reset, or after the end")
        words = " ".join(action.lower().split())
        moves = self._moves.get(words.replace("pickup ", "pick up "))
        if moves is None:
            return StepResult(f"{action.strip()[:60]!r} is no action now.\n{self._observation}")
        for move in moves:
            _, reward, terminated, truncated, _ = level.step(move)
            if terminated or truncated:
                success = terminated and reward > 0
                self.level = None
                return StepResult(
                    "The mission is complete." if success else "The mission has failed.",
                    float(reward),
                    terminated=terminated,
                    truncated=truncated and not terminated,
                    success=success,
                )
        self._look(level)
        return StepResult(self._observation)

    def state_key(self) -> str | None:
        """The key of the grid, the agent's place and load, and what is left of the mission."""
        return None if self.level is None else hash_state(read_state(self.level))

    async def close(self) -> None:
        """Forget the level."""
        self.level = None

    def _look(self, level: "MiniGridEnv") -> None:
        view = look(level)
        self._moves = list_commands(view)
        self._observation = f"{describe(view)}\nActions: {', '.join(self._moves)}"


def read_state(level: "MiniGridEnv") -> State:
    """What the level's future depends on: the agent, all objects but the walls, which never change, and the
    progress of the mission; not the moves so far, which count for the reward."""
    objects = [
        (place, _describe_object(entity))
        for place, entity in enumerate(level.grid.grid)
        if entity is not None and entity.type != "wall"
    ]
    pose = (*map(int, level.agent_pos), int(level.agent_dir))
    mission: Instr = level.unwrapped.instrs  # `RoomGridLevel.instrs`
    return pose, _describe_object(level.carrying), objects, _progress(mission)


def _describe_object(entity: "WorldObj | None") -> State:
    if entity is None:
        return ()
    # A mission may mean one of two objects that look the same, "the ball on your left" at the start:
    # where it was then tells them apart.
    start = () if entity.init_pos is None else tuple(map(int, entity.init_pos))
    door = (entity.is_open, entity.is_locked) if entity.type == "door" else ()
    return entity.type, entity.color, start, door, _describe_object(entity.contains)


def _progress(mission: "Instr") -> State:
    """Which parts of a mission are done, what each has seen in the agent's hands, and where it believes its
    objects to be: minigrid updates that only when something is dropped."""
    if hasattr(mission, "instr_a"):
        done = (mission.a_done == "success", mission.b_done == "success")
        return done, _progress(mission.instr_a), _progress(mission.instr_b)
    targets = [
        getattr(mission, name) for name in ("desc", "desc_move", "desc_fixed") if hasattr(mission, name)
    ]
    places = [sorted(tuple(map(int, place)) for place in target.obj_poss) for target in targets]
    return _describe_object(getattr(mission, "preCarrying", None)), places


def make_level(index: int) -> "MiniGridEnv":
    """minigrid's environment of item `index`, reset; raises `MissingDependency` without minigrid."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    with SPEC.explain_missing():
        import gymnasium
        import minigrid  # noqa: F401 - registers the levels
        from minigrid.envs.babyai.core import roomgrid_level
    roomgrid_level.print = lambda *_: None  # it prints every draft of a level that it rejects
    level: MiniGridEnv = gymnasium.make(
        f"BabyAI-{LEVELS[index % len(LEVELS)]}", disable_env_checker=True
    ).unwrapped
    level.reset(seed=index // len(LEVELS))
    return level


def make_item(index: int) -> Item:
    """The item `babyai_<index>`. Raises `ConfigError` for a number that has no seed."""
    check_index("babyai", index, count=len(LEVELS) * SEEDS)
    return Item(
        item_id=f"babyai_{index}",
        env="babyai",
        seed=index // len(LEVELS),
        metadata={"level": index % len(LEVELS) + 1},
    )


def split(seed: int) -> Split:
    """810 training and 90 test items of the first 900; the test has two or three of each level."""
    rng = random.Random(f"babyai/split/{seed}")
    levels = [list(range(level, TRAIN_ITEMS + TEST_ITEMS, len(LEVELS))) for level in range(len(LEVELS))]
    for indices in levels:
        rng.shuffle(indices)
    per_level, more = divmod(TEST_ITEMS, len(LEVELS))
    thrice = set(rng.sample(range(len(LEVELS)), more))
    test = [i for n, indices in enumerate(levels) for i in indices[: per_level + (n in thrice)]]
    train = set(range(TRAIN_ITEMS + TEST_ITEMS)) - set(test)
    return Split(train=[make_item(i) for i in sorted(train)], test=[make_item(i) for i in sorted(test)])


def expert(item: Item) -> Sequence[ExpertStep]:
    """The solution of minigrid's bot in commands; empty if it finds none."""
    return [ExpertStep(thought="", action=command) for command in solve(partial(make_level, item.index))]


SPEC = EnvSpec(
    name="babyai",
    make=BabyAIEnv,
    split=split,
    make_item=make_item,
    expert=expert,
    instructions=INSTRUCTIONS,
    packages=("minigrid", "gymnasium"),
    preload=("minigrid",),
    source="the minigrid package: its levels, generated from the item's number; nothing to download",
    has_states=True,
)
