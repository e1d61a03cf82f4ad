"""The three kinds of games, their levels and items, and how an item's game is made.

They are TextWorld's challenges (Côté et al. 2018, TextWorld, arXiv 1806.11532):

- `coin-collector`: a chain of rooms with as many dead ends; a coin lies in the last room. There is one
  way, of `length` turns, from 2 to 20: TextWorld's levels 102 to 120.
- `treasure-hunter`: an object to find, and another that must not be taken. The walkthrough has `length` turns
  (a map with a circle may have a shorter way): 1 to 5 in five rooms (levels 1, 3, 5, 7, 9), 2 to 10 in ten
  rooms with doors and containers (levels 11 to 20 without 16). An odd level of the first ten is the same as
  the even one after it, and 15 the same as 16. Levels from 21 on take up to minutes to generate and are left
  out.
- `cooking`: a recipe is read, its ingredients are fetched and processed, the meal is prepared and eaten.
  `level` is from 1 to 10, from 4 to about 45 turns.
"""

import importlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING

from envs.builtin.textworld.play import Play, quest_commands
from envs.builtin.textworld.upstream import generate, import_textworld
from envs.errors import check_index
from envs.registry import Split
from envs.types import Item

if TYPE_CHECKING:
    from textworld import Game

SEEDS_PER_LEVEL, TEST_SEEDS = 200, 8
"""The numbers of seeds of the split; there are more items by number."""
MAX_SEED = 2**31
_ATTEMPTS = 50
_LOCK = Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One level of a kind of games."""

    settings: Mapping[str, object]
    """The settings as TextWorld's challenge takes them."""
    metadata: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of games."""

    module: str
    """The module of `textworld.challenges`."""
    goal: str
    """The player's task, where the game does not word it."""
    levels: Sequence[Level]


_TREASURES = {1: 1, 3: 2, 5: 3, 7: 4, 9: 5, 11: 2, 12: 3, 13: 4, 14: 5, 15: 6, 17: 7, 18: 8, 19: 9, 20: 10}
"""TextWorld's level → turns."""
_MEALS: Sequence[Mapping[str, object]] = (
    {"recipe": 1, "take": 1},
    {"recipe": 1, "take": 1, "open": True},
    {"recipe": 1, "take": 1, "cut": True},
    {"recipe": 1, "take": 1, "open": True, "cook": True},
    {"recipe": 1, "take": 1, "open": True, "cook": True, "cut": True},
    {"recipe": 1, "take": 1, "open": True, "go": 6},
    {"recipe": 2, "take": 2, "open": True, "cook": True, "cut": True, "go": 6},
    {"recipe": 3, "take": 3, "open": True, "cook": True, "cut": True, "go": 6},
    {"recipe": 3, "take": 3, "open": True, "cook": True, "cut": True, "go": 9},
    {"recipe": 3, "take": 3, "open": True, "cook": True, "cut": True, "go": 12},
)
"""TextWorld's skills at each level: ingredients, those to fetch, closed containers and doors, rooms."""

KINDS: Mapping[str, Kind] = {
    "coin-collector": Kind(
        module="tw_coin_collector.coin_collector",
        goal="Find the coin and take it.",
        levels=[
            Level(settings={"level": 100 + turns}, metadata={"game": "coin-collector", "length": turns})
            for turns in range(2, 21)
        ],
    ),
    "treasure-hunter": Kind(
        module="tw_treasure_hunter.treasure_hunter",
        goal="",
        levels=[
            Level(settings={"level": level}, metadata={"game": "treasure-hunter", "length": turns})
            for level, turns in _TREASURES.items()
        ],
    ),
    "cooking": Kind(
        module="tw_cooking.cooking",
        goal="",
        levels=[
            Level(
                settings={"recipe_seed": 0, "split": None, "go": 1, **skills},
                metadata={"game": "cooking", "level": level},
            )
            for level, skills in enumerate(_MEALS, start=1)
        ],
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The games of an environment, by number.

    Item `N` is of kind `N % len(kinds)`; of that kind's items, number `n = N // len(kinds)`, it is level
    `n % len(levels)` with seed `n // len(levels)`.
    """

    name: str
    """The name of the environment."""
    kinds: Sequence[str]

    def make_item(self, index: int) -> Item:
        """The item `<name>_<index>`; raises `ConfigError` for a number that has no seed."""
        count = len(self.kinds) * MAX_SEED * min(len(KINDS[kind].levels) for kind in self.kinds)
        check_index(self.name, index, count=count)
        kind, level, seed = self._place(index)
        metadata = KINDS[kind].levels[level].metadata
        return Item(item_id=f"{self.name}_{index}", env=self.name, seed=seed, metadata=metadata)

    def split(self, seed: int) -> Split:
        """192 training and 8 test seeds of each level."""
        train: list[int] = []
        test: list[int] = []
        for number, kind in enumerate(self.kinds):
            levels = len(KINDS[kind].levels)
            for level in range(levels):
                seeds = list(range(SEEDS_PER_LEVEL))
                random.Random(f"textworld/split/{seed}/{kind}/{level}").shuffle(seeds)
                indices = [(levels * s + level) * len(self.kinds) + number for s in seeds]
                test += indices[:TEST_SEEDS]
                train += indices[TEST_SEEDS:]
        return Split(train=[*map(self.make_item, sorted(train))], test=[*map(self.make_item, sorted(test))])

    def start(self, index: int) -> Play:
        """Item `index`, at its beginning."""
        kind, level, seed = self._place(index)
        game, _ = make_game(kind, level, seed)
        return Play(game, goal=game.objective or KINDS[kind].goal)

    def solve(self, index: int) -> list[str]:
        """The commands of the walkthrough; empty if they do not win.

        Upstream's walkthroughs open doors that they have opened before, and look at the inventory, which
        every observation shows: such commands are left out.
        """
        _, walkthrough = make_game(*self._place(index))
        play = self.start(index)
        commands = []
        for command in walkthrough:
            if command in play.commands and command != "inventory":
                play.act(command)
                commands.append(command)
        return commands if play.is_won else []

    def _place(self, index: int) -> tuple[str, int, int]:
        number, kind_number = divmod(index, len(self.kinds))
        kind = self.kinds[kind_number]
        seed, level = divmod(number, len(KINDS[kind].levels))
        return kind, level, seed


def make_game(kind: str, level: int, seed: int) -> "tuple[Game, Sequence[str]]":
    """A `textworld.Game` and the commands of its walkthrough; a map that has no quest of the level's length
    is replaced by another one."""
    with _LOCK:
        return _make_game(kind, level, seed)


@lru_cache(maxsize=1024)
def _make_game(kind: str, level: int, seed: int) -> "tuple[Game, Sequence[str]]":
    import_textworld()
    from textworld.generator import QuestGenerationError

    make = importlib.import_module(f"textworld.challenges.{KINDS[kind].module}").make
    settings = KINDS[kind].levels[level].settings
    for attempt in range(_ATTEMPTS):
        try:
            game, walkthrough = generate(make, settings, seed=(seed + 1_000_003 * attempt) % MAX_SEED)
        except QuestGenerationError:
            continue
        return game, walkthrough or quest_commands(game)
    raise RuntimeError(f"{kind}, level {level + 1}, seed {seed}: {_ATTEMPTS} maps have no quest")
