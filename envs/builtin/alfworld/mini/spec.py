"""The environment `alfworld-mini`."""

from collections.abc import Sequence
from functools import cache, partial

from envs.builtin.alfworld.env import INSTRUCTIONS, AlfWorldEnv
from envs.builtin.alfworld.expert import add_thoughts
from envs.builtin.alfworld.games import Game, parse_task_folder, read_game
from envs.builtin.alfworld.mini.make import MINI_DATA
from envs.builtin.alfworld.mini.plans import plans
from envs.builtin.alfworld.upstream import MAX_EPISODES, PACKAGES, PRELOAD
from envs.errors import unknown_item
from envs.registry import EnvSpec, ExpertStep, Split
from envs.types import Item

NAME = "alfworld-mini"
PARTS = {"train": "train", "valid_seen": "seen", "valid_unseen": "unseen"}
"""Folder → part: training games, other games of the training rooms, and games of other rooms."""


@cache
def _folders() -> tuple[str, ...]:
    return tuple(plan.game for plan in plans() if plan.plan is not None)


def make_item(index: int) -> Item:
    """The item `alfworld-mini_<index>`."""
    if not 0 <= index < len(_folders()):
        raise unknown_item(NAME, index, count=len(_folders()))
    part, task, _ = _folders()[index].split("/")
    return Item(
        item_id=f"{NAME}_{index}", env=NAME, metadata={**parse_task_folder(task), "part": PARTS[part]}
    )


def read(index: int) -> Game:
    """The game of an item."""
    make_item(index)
    return read_game(MINI_DATA.prepare() / _folders()[index], remedy=f"wingspan data make {NAME}")


def split(seed: int) -> Split:
    """The games that the planner solved: those of the folder `train`, and those of the two others. As
    upstream, the split ignores the seed."""
    items = [make_item(index) for index in range(len(_folders()))]
    return Split(
        train=[item for item in items if item.metadata["part"] == "train"],
        test=[item for item in items if item.metadata["part"] != "train"],
    )


def expert(item: Item) -> Sequence[ExpertStep]:
    """The planner's plan."""
    plan = {plan.game: plan.plan for plan in plans()}[_folders()[item.index]]
    return add_thoughts(plan or ())


SPEC = EnvSpec(
    name=NAME,
    make=partial(AlfWorldEnv, read),
    split=split,
    make_item=make_item,
    expert=expert,
    instructions=INSTRUCTIONS,
    packages=PACKAGES,
    requirements=(MINI_DATA,),
    isolation="process",
    preload=PRELOAD,
    max_episodes=MAX_EPISODES,
    source=f"stand-in, not ALFWorld's games: {MINI_DATA.about}",
)
