"""The environment `alfworld-mini`."""

from collections.abc import Iterable
from dataclasses import replace
from functools import cache, partial

from envs.builtin.alfworld.env import AlfWorldEnv
from envs.builtin.alfworld.items import GameItems
from envs.builtin.alfworld.mini.make import MINI_DATA
from envs.builtin.alfworld.mini.plans import plans
from envs.builtin.alfworld.mini.searcher import Searcher
from envs.builtin.alfworld.spec import SPEC as ALFWORLD
from envs.registry import ExpertStep, Split
from envs.types import Item

NAME = "alfworld-mini"
PARTS = {"train": "train", "valid_seen": "seen", "valid_unseen": "unseen"}
"""Folder → part: training games, other games of the training rooms, and games of other rooms."""


@cache
def _folders() -> tuple[str, ...]:
    return tuple(plan.game for plan in plans() if plan.plan is not None)


GAMES = GameItems(
    env=NAME,
    list_games=_folders,
    find_root=MINI_DATA.prepare,
    parts=PARTS,
    remedy=f"wingspan data make {NAME}",
)


def split(seed: int) -> Split:
    """The games that the planner solved: those of the folder `train`, and those of the two others. As
    upstream, the split ignores the seed."""
    items = GAMES.make_all()
    return Split(
        train=[item for item in items if item.metadata["part"] == "train"],
        test=[item for item in items if item.metadata["part"] != "train"],
    )


def expert(item: Item) -> Iterable[ExpertStep]:
    """A search that knows no more than a player. The planner's plan is in the game's file."""
    return Searcher(GAMES.read(item.index)).solve()


SPEC = replace(
    ALFWORLD,
    name=NAME,
    make=partial(AlfWorldEnv, GAMES.read),
    split=split,
    make_item=GAMES.make_item,
    expert=expert,
    requirements=(MINI_DATA,),
    source=f"stand-in, not ALFWorld's games: {MINI_DATA.about}",
)
