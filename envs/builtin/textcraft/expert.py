"""A scripted TextCraft player that works from the opening's recipes alone, depth first.

Its thought is a stack written out, so that each next word can be looked up in what stands before:

    Thought: 1 oak door by 3 oak door using 6 oak planks x 1. 6 oak planks by 4 oak planks using 1 oak
             logs x 2. 2 oak logs get
    Action: get 100 oak logs

A line `6 oak planks by 4 oak planks using 1 oak logs x 2` says: six are needed; a recipe, said as the
opening has it, makes four; so craft twice. `… get` says: no recipe makes it. Ingredients are handled in
the order of their recipe; after the last one comes `x 2`, `x 1`, the crafts that are left. Raw materials
are taken a hundred at a time, so that one trip is enough however often the recipe is repeated.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from envs.builtin.textcraft.world import Game, item_id, plain
from envs.registry import ExpertStep

ARMFUL = 100
_LINE = re.compile(r"^craft (\d+) (.+?) using (.+)$")
_TOO_LONG = 10**6


@dataclass(frozen=True, slots=True)
class Line:
    """One recipe as the opening prints it, with plain names."""

    count: int
    output: str
    inputs: tuple[tuple[int, str], ...]


def parse(line: str) -> Line:
    """`craft 4 stick using 2 planks` → its parts."""
    match = _LINE.match(line)
    if match is None:
        raise ValueError(f"not a recipe line: {line!r}")
    inputs = tuple((int(n), name) for n, name in (part.split(" ", 1) for part in match[3].split(", ")))
    return Line(count=int(match[1]), output=match[2], inputs=inputs)


class Planner:
    """Chooses recipes for one game: which line makes an item, and how many actions that takes."""

    def __init__(self, game: Game) -> None:
        self.lines: dict[str, list[Line]] = {}
        for text in game.recipes:
            line = parse(text)
            self.lines.setdefault(line.output, []).append(line)
        self._game = game
        self._concrete = cache(self._member_of_tag)

    def concrete(self, name: str) -> str:
        """`planks` → the first planks in the book that the opening can make; other names as they are.

        Any member would do. The book's order makes it the same in every game of one book, so that a player
        of real games can know it by heart; an invented book has the order of its one opening.
        """
        return self._concrete(name)

    def _member_of_tag(self, name: str) -> str:
        book = self._game.book
        if name in self.lines or not book.is_tag(item_id(name)):
            return name
        members = (plain(item) for item, tag in book.item_id_to_tag.items() if tag == item_id(name))
        return next((member for member in members if member in self.lines), name)

    def can_be_taken(self, name: str) -> bool:
        """Whether `get` gives it: an item that no recipe makes, listed or not."""
        book, item = self._game.book, item_id(name)
        return bool(book.is_valid_item(item) and not book.is_craftable(item) and not book.is_tag(item))

    def cost(self, name: str, need: int, path: tuple[str, ...] = ()) -> int:
        """Actions that `need` of `name` take, each want served on its own."""
        if name in path:
            return _TOO_LONG
        if name not in self.lines:
            return 1
        return min(self._line_cost(line, need, (*path, name)) for line in self.lines[name])

    def choose(self, name: str, need: int, path: tuple[str, ...]) -> tuple[Line, Line]:
        """The cheapest recipe for `need` of `name`: as it is printed, and with its groups made concrete."""
        line = min(self.lines[name], key=lambda line: self._line_cost(line, need, (*path, name)))
        inputs = tuple((n, self.concrete(i)) for n, i in line.inputs)
        return line, Line(count=line.count, output=line.output, inputs=inputs)

    def _line_cost(self, line: Line, need: int, path: tuple[str, ...]) -> int:
        times = -(-need // line.count)
        return times + sum(self.cost(self.concrete(i), times * n, path) for n, i in line.inputs)


def solve(game: Game) -> Sequence[ExpertStep]:
    """The expert's turns for `game`, the goal crafted by the last one."""
    return [turn.step for turn in play(game)]


@dataclass(frozen=True, slots=True)
class PlayedTurn:
    """A turn, and whether it is one to imitate."""

    step: ExpertStep
    right: bool


@dataclass(frozen=True, slots=True)
class Mistakes:
    """When a player errs; by default never."""

    slips: Callable[[], bool] = lambda: False
    """Whether to take what must be crafted, or a group, or to craft before all ingredients are there."""
    misreads: Callable[[Line], Line | None] = lambda line: None
    """A recipe as it is read: with one wrong ingredient or count; None if it is read right."""
    insists: Callable[[], bool] = lambda: False
    """Whether to do once more what was refused because of a misreading."""


NO_MISTAKES = Mistakes()


def play(game: Game, mistakes: Mistakes = NO_MISTAKES) -> list[PlayedTurn]:
    """The expert's turns, with mistakes and their mending.

    Each mistake is refused by the game sooner or later, and mended by saying the line of the item that it
    is about again and starting it anew. What follows from a misread recipe is not to be imitated, either.
    """
    planner = Planner(game)
    turns: list[PlayedTurn] = []
    pending: list[str] = []  # lines of the thought that the next action closes
    misread = False  # whether one of them is
    inventory: set[str] = set()

    def act(note: str, action: str, *, right: bool = True) -> None:
        nonlocal misread
        step = ExpertStep(thought=" ".join([*pending, note]), action=action)
        turns.append(PlayedTurn(step, right=right and not misread))
        pending.clear()
        misread = False

    def insist(note: str, action: str) -> None:
        act(note, action, right=False)
        while mistakes.insists():
            act(note, action, right=False)

    def make(name: str, need: int, path: tuple[str, ...]) -> None:
        nonlocal misread
        if mistakes.slips():
            act(f"{need} {name} get", f"get {ARMFUL} {name}", right=False)
        recipe_line, line = planner.choose(name, need, path)
        times = -(-need // line.count)
        wrong = mistakes.misreads(line)
        if wrong is not None:
            pending.append(expansion(wrong, need=need, times=times))
            misread = True
            follow(wrong, times, (*path, name))
            make(name, need, path)
            return
        groups = [(n, i) for (n, i), (_, j) in zip(recipe_line.inputs, line.inputs, strict=True) if i != j]
        if groups and mistakes.slips():
            count, group = groups[0]
            said = expansion(recipe_line, need=need, times=times)
            act(f"{said} {times * count} {group} get", f"get {ARMFUL} {group}", right=False)
        pending.append(expansion(line, need=need, times=times))
        for count, ingredient in line.inputs:
            if ingredient not in inventory and mistakes.slips():
                act(f"x {times}", command(line), right=False)
                make(name, need, path)
                return
            obtain(ingredient, times * count, (*path, name))
            inventory.add(ingredient)
        for left in range(times, 0, -1):
            act(f"x {left}", command(line))

    def obtain(name: str, need: int, path: tuple[str, ...]) -> None:
        if name in planner.lines:
            make(name, need, path)
        else:
            act(f"{need} {name} get", f"get {max(ARMFUL, need)} {name}")

    def follow(wrong: Line, times: int, path: tuple[str, ...]) -> None:
        """Do what a misread recipe says, until the game refuses."""
        for count, ingredient in wrong.inputs:
            need = times * count
            can_be_made = ingredient in planner.lines and planner.cost(ingredient, need, path) < _TOO_LONG
            if can_be_made or planner.can_be_taken(ingredient):
                obtain(ingredient, need, path)
                inventory.add(ingredient)
            else:
                insist(f"{need} {ingredient} get", f"get {max(ARMFUL, need)} {ingredient}")
                return
        insist(f"x {times}", command(wrong))

    make(plain(game.goal), 1, ())
    return turns


def expansion(line: Line, *, need: int, times: int) -> str:
    """`6 oak planks by 4 oak planks using 1 oak logs x 2.`"""
    return f"{need} {line.output} by {line.count} {line.output} using {_ingredients(line)} x {times}."


def command(line: Line) -> str:
    """`craft oak planks using 1 oak logs`; the game takes the output's count from its recipe."""
    return f"craft {line.output} using {_ingredients(line)}"


def _ingredients(line: Line) -> str:
    return ", ".join(f"{n} {name}" for n, name in line.inputs)
