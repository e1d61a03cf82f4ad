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

from envs.registry import ExpertStep
from envs.textcraft_world import Game, item_id, plain

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
        """`planks` → the first planks that the opening can make; other names as they are."""
        return self._concrete(name)

    def _member_of_tag(self, name: str) -> str:
        book = self._game.book
        if name in self.lines or not book.is_tag(item_id(name)):
            return name
        return next((o for o in self.lines if book.item_id_to_tag.get(item_id(o)) == item_id(name)), name)

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
    return [turn.step for turn in play(game, slips=lambda: False)]


@dataclass(frozen=True, slots=True)
class PlayedTurn:
    """A turn, and whether it is one to imitate."""

    step: ExpertStep
    right: bool


def play(game: Game, *, slips: Callable[[], bool]) -> list[PlayedTurn]:
    """The expert's turns, with a mistake wherever `slips()` says so, and its mending.

    The mistakes: to take what must be crafted, or a group; to craft before all ingredients are there. Each
    is refused by the game, and mended by saying the refused item's line again and starting it anew.
    """
    planner = Planner(game)
    turns: list[PlayedTurn] = []
    pending: list[str] = []  # lines of the thought that the next action closes
    owned: set[str] = set()

    def act(note: str, action: str, *, right: bool = True) -> None:
        step = ExpertStep(thought=" ".join([*pending, note]), action=action)
        turns.append(PlayedTurn(step, right=right))
        pending.clear()

    def make(name: str, need: int, path: tuple[str, ...]) -> None:
        if slips():
            act(f"{need} {name} get", f"get {ARMFUL} {name}", right=False)
        printed, line = planner.choose(name, need, path)
        times = -(-need // line.count)
        groups = [(n, i) for (n, i), (_, j) in zip(printed.inputs, line.inputs, strict=True) if i != j]
        if groups and slips():
            count, group = groups[0]
            said = expansion(printed, need=need, times=times)
            act(f"{said} {times * count} {group} get", f"get {ARMFUL} {group}", right=False)
        pending.append(expansion(line, need=need, times=times))
        for count, ingredient in line.inputs:
            if ingredient not in owned and slips():
                act(f"x {times}", command(line), right=False)
                make(name, need, path)
                return
            if ingredient in planner.lines:
                make(ingredient, times * count, (*path, name))
            else:
                amount = max(ARMFUL, times * count)
                act(f"{times * count} {ingredient} get", f"get {amount} {ingredient}")
            owned.add(ingredient)
        for left in range(times, 0, -1):
            act(f"x {left}", command(line))

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
