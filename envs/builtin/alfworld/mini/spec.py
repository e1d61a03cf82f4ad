"""The environments `alfworld-mini` and `alfworld-mini:text?actions=false`."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache, partial

from envs.builtin.alfworld.env import AlfWorldEnv, write_instructions
from envs.builtin.alfworld.games import Game
from envs.builtin.alfworld.items import GameItems
from envs.builtin.alfworld.mini.make import MINI_DATA
from envs.builtin.alfworld.mini.more import COUNT, FIRST, PART, make_draft, make_game
from envs.builtin.alfworld.mini.plans import plans
from envs.builtin.alfworld.mini.searcher import Searcher
from envs.builtin.alfworld.spec import PACKAGES, parse_options
from envs.builtin.alfworld.spec import SPEC as ALFWORLD
from envs.registry import EnvSpec, ExpertStep, Split
from envs.types import Item

__all__ = ["EXAMPLE", "PACKAGES", "SOURCE", "SPEC", "spec"]

NAME = "alfworld-mini"
EXAMPLE = f"{NAME}:text?actions=false"
SOURCE = f"stand-in, not ALFWorld's games: {MINI_DATA.about}"
PARTS = {"train": "train", PART: PART, "valid_seen": "seen", "valid_unseen": "unseen"}
"""Folder → part: training games, other games of the training rooms, and games of other rooms."""


@cache
def _folders() -> tuple[str, ...]:
    return tuple(plan.game for plan in plans() if plan.plan is not None)


@cache
def _all_folders() -> tuple[str, ...]:
    return (*_folders(), *(make_draft(FIRST + i).folder for i in range(COUNT)))


GAMES = GameItems(
    env=NAME,
    list_games=_folders,
    find_root=MINI_DATA.prepare,
    parts=PARTS,
    remedy=f"wingspan data make {NAME}",
)


def read(index: int) -> Game:
    """The game with a number, one of `more` included."""
    return GAMES.read(index) if index < len(_folders()) else make_game(FIRST + index - len(_folders()))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Variant:
    """One of the environments of this module."""

    name: str = NAME
    lists_actions: bool = True
    has_more: bool = False

    @property
    def items(self) -> GameItems:
        return replace(GAMES, env=self.name, list_games=_all_folders if self.has_more else _folders)


def _split(variant: _Variant, seed: int) -> Split:
    """The games of the folders `train` and, if there are, `more`; those of the two others. As upstream, the
    split ignores the seed."""
    items = variant.items.make_all()
    return Split(
        train=[item for item in items if item.metadata["part"] in ("train", PART)],
        test=[item for item in items if item.metadata["part"] not in ("train", PART)],
    )


def _solve(variant: _Variant, item: Item) -> Iterable[ExpertStep]:
    """A search that knows no more than a player. The planner's plan is in the game's file."""
    return Searcher(read(item.index), reads_actions=variant.lists_actions).solve()


def _make_spec(variant: _Variant) -> EnvSpec:
    return replace(
        ALFWORLD,
        name=variant.name,
        make=partial(AlfWorldEnv, read, lists_actions=variant.lists_actions),
        split=partial(_split, variant),
        make_item=variant.items.make_item,
        expert=partial(_solve, variant),
        instructions=write_instructions(lists_actions=variant.lists_actions),
        requirements=(MINI_DATA,),
        source=SOURCE,
    )


def spec(argument: str) -> EnvSpec:
    """The environment `alfworld-mini:<argument>`."""
    options = parse_options(argument, family=NAME, defaults={"actions": True, "more": False})
    return _make_spec(
        _Variant(name=f"{NAME}:{argument}", lists_actions=options["actions"], has_more=options["more"])
    )


SPEC = _make_spec(_Variant())
