"""A scripted TextCraft expert that works from the opening's recipes alone, depth first.

Its thoughts write out a stack, so that each word can be looked up in the preceding text:

    Thought: 1 oak door by 3 oak door using 6 oak planks x 1. 6 oak planks by 4 oak planks using 1 oak
             logs x 2. 2 oak logs get
    Action: get 100 oak logs

    Thought: oak door, oak planks using oak logs x 2
    Action: craft oak planks using 1 oak logs

    Thought: oak door, oak planks x 1
    Action: craft oak planks using 1 oak logs

A line `6 oak planks by 4 oak planks using 1 oak logs x 2` means: six are needed; a recipe, quoted from the
opening, makes four; so craft twice. `… get` means that no recipe makes the item. Ingredients follow in the
order of their recipe; after the last one comes the number of crafts left, `x 2`, `x 1`. Raw materials are
taken a hundred at a time, so that one `get` is enough however often the recipe is repeated.

After the first turn, a thought begins with the items that are being made, the goal first, and with what has
just been obtained for the last of them. So what an item is for, and where to go on when it is made, stands in
the turn before.

A group stays a group where a recipe is quoted. Its member is named where it is needed, by continuing a line
of the opening that ends in the group's name (`craft 4 oak planks using 1 oak logs`):

    3 planks using 1 oak logs: planks are oak planks. 3 oak planks by 4 oak planks using 1 oak logs x 1.

So each word is one look-up: a model need not find out while it quotes a recipe that an ingredient is a group.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

from envs.builtin.textcraft.world import Problem, display_name, item_id
from envs.registry import ExpertStep

ARMFUL = 100
_LINE = re.compile(r"^craft (\d+) (.+?) using (.+)$")
_TOO_LONG = 10**6


@dataclass(frozen=True, slots=True)
class RecipeLine:
    """One recipe as the opening prints it, with plain names."""

    count: int
    output: str
    inputs: tuple[tuple[int, str], ...]


def parse(line: str) -> RecipeLine:
    """`craft 4 stick using 2 planks` → its parts."""
    match = _LINE.match(line)
    if match is None:
        raise ValueError(f"not a recipe line: {line!r}")
    inputs = tuple((int(n), name) for n, name in (part.split(" ", 1) for part in match[3].split(", ")))
    return RecipeLine(count=int(match[1]), output=match[2], inputs=inputs)


class Planner:
    """Chooses recipes for one problem: the line that makes an item, and its number of actions."""

    def __init__(self, problem: Problem) -> None:
        self.lines: dict[str, list[RecipeLine]] = {}
        for text in problem.recipes:
            line = parse(text)
            self.lines.setdefault(line.output, []).append(line)
        self._book = problem.book
        self.resolve_group = cache(self._resolve_group)
        """`planks` → the first planks in the book that the opening can make; other names stay as they are.

        Any member would do. The book's order makes it the same in all problems of a book, so that a policy
        can learn it by heart; an invented book has the order of its one opening.
        """

    def _resolve_group(self, name: str) -> str:
        book = self._book
        if name in self.lines or not book.is_tag(item_id(name)):
            return name
        members = (display_name(item) for item, tag in book.item_id_to_tag.items() if tag == item_id(name))
        return next((member for member in members if member in self.lines), name)

    def can_be_taken(self, name: str) -> bool:
        """Whether `get` works: no recipe makes the item, listed or not."""
        book, item = self._book, item_id(name)
        return bool(book.is_valid_item(item) and not book.is_craftable(item) and not book.is_tag(item))

    def cost(self, name: str, need: int, path: tuple[str, ...] = ()) -> int:
        """Number of actions to obtain `need` of `name`, without sharing between ingredients."""
        if name in path:
            return _TOO_LONG
        if name not in self.lines:
            return 1
        return min(self._line_cost(line, need, (*path, name)) for line in self.lines[name])

    def choose(self, name: str, need: int, path: tuple[str, ...] = ()) -> RecipeLine:
        """The cheapest recipe for `need` of `name`, as printed."""
        return min(self.lines[name], key=lambda line: self._line_cost(line, need, (*path, name)))

    def resolve_groups(self, line: RecipeLine) -> RecipeLine:
        """`line` with members in place of groups."""
        return replace(line, inputs=tuple((n, self.resolve_group(i)) for n, i in line.inputs))

    def _line_cost(self, line: RecipeLine, need: int, path: tuple[str, ...]) -> int:
        times = -(-need // line.count)
        return times + sum(self.cost(self.resolve_group(i), times * n, path) for n, i in line.inputs)


def solve(problem: Problem) -> Sequence[ExpertStep]:
    """The expert's turns; the last one crafts the goal."""
    return [turn.step for turn in play(problem)]


@dataclass(frozen=True, slots=True)
class PlayedTurn:
    """A turn of an expert that may err."""

    step: ExpertStep
    is_correct: bool
    """Whether the turn is one to imitate."""


@dataclass(frozen=True, slots=True)
class Mistakes:
    """When an expert errs; by default never."""

    slips: Callable[[], bool] = lambda: False
    """Whether to `get` an item that must be crafted, or a group, or to craft before all ingredients are
    there."""
    misreads: Callable[[RecipeLine], RecipeLine | None] = lambda line: None
    """The recipe with a mistake in it; None to read it correctly."""
    insists: Callable[[], bool] = lambda: False
    """Whether to repeat an action that was refused because of a misreading, or the whole misreading."""


NO_MISTAKES = Mistakes()


@dataclass(slots=True)
class _OpenItem:
    """An item that is being made."""

    name: str
    turn: int
    """The turn of its first line."""
    obtained: str | None = None
    """The ingredient that was obtained in the turn before."""


def play(problem: Problem, mistakes: Mistakes = NO_MISTAKES) -> list[PlayedTurn]:
    """The expert's turns, with mistakes and their corrections.

    The environment refuses each mistake sooner or later; the expert then repeats the line of the item and
    starts it again. Turns that follow from a misread recipe count as mistakes as well.
    """
    planner = Planner(problem)
    turns: list[PlayedTurn] = []
    pending: list[str] = []  # lines of the thought that the next action closes
    is_misread = False  # whether one of them is misread
    inventory: set[str] = set()
    open_items: list[_OpenItem] = []

    def act(note: str, action: str, *, is_correct: bool = True) -> None:
        nonlocal is_misread
        thought = " ".join([*pending, note])
        if earlier := [item for item in open_items if item.turn < len(turns)]:
            path = ", ".join(item.name for item in earlier)
            obtained, earlier[-1].obtained = earlier[-1].obtained, None
            if obtained is not None:
                path += f" using {obtained}"
            thought = f"{path} {thought}" if thought.startswith("x ") else f"{path}, {thought}"
        step = ExpertStep(thought=thought, action=action)
        turns.append(PlayedTurn(step, is_correct=is_correct and not is_misread))
        pending.clear()
        is_misread = False

    def insist(note: str, action: str) -> None:
        act(note, action, is_correct=False)
        while mistakes.insists():
            act(note, action, is_correct=False)

    def make(name: str, need: int, path: tuple[str, ...]) -> None:
        nonlocal is_misread
        if mistakes.slips():
            act(f"{need} {name} get", f"get {ARMFUL} {name}", is_correct=False)
        line = planner.choose(name, need, path)
        times = -(-need // line.count)
        wrong = mistakes.misreads(line)
        if wrong is not None:
            while True:
                pending.append(expansion(wrong, need=need, times=times))
                is_misread = True
                depth = start(name)
                follow(wrong, times, (*path, name))
                del open_items[depth:]
                if not mistakes.insists():
                    break
            make(name, need, path)
            return
        pending.append(expansion(line, need=need, times=times))
        depth = start(name)
        craft = command(planner.resolve_groups(line))
        for count, ingredient in line.inputs:
            need_of_it = times * count
            member = planner.resolve_group(ingredient)
            if member not in inventory and mistakes.slips():
                act(f"x {times}", craft, is_correct=False)
                del open_items[depth:]
                make(name, need, path)
                return
            if member != ingredient and mistakes.slips():
                act(f"{need_of_it} {ingredient} get", f"get {ARMFUL} {ingredient}", is_correct=False)
                del open_items[depth:]
                make(name, need, path)
                return
            obtain(ingredient, need_of_it, (*path, name))
            open_items[-1].obtained = ingredient
            inventory.add(member)
        for left in range(times, 0, -1):
            act(f"x {left}", craft)
        del open_items[depth:]

    def start(name: str) -> int:
        """Returns the number of items that were being made before."""
        open_items.append(_OpenItem(name, len(turns)))
        return len(open_items) - 1

    def obtain(name: str, need: int, path: tuple[str, ...]) -> None:
        member = planner.resolve_group(name)
        if member != name:
            pending.append(naming(name, planner.choose(member, need, path), need=need))
        if member in planner.lines:
            make(member, need, path)
        else:
            act(f"{need} {member} get", f"get {max(ARMFUL, need)} {member}")

    def follow(wrong: RecipeLine, times: int, path: tuple[str, ...]) -> None:
        """Follow a misread recipe until the environment refuses."""
        for count, ingredient in wrong.inputs:
            need = times * count
            member = planner.resolve_group(ingredient)
            can_be_made = member in planner.lines and planner.cost(member, need, path) < _TOO_LONG
            if can_be_made or planner.can_be_taken(member):
                obtain(ingredient, need, path)
                open_items[-1].obtained = ingredient
                inventory.add(member)
            else:
                insist(f"{need} {ingredient} get", f"get {max(ARMFUL, need)} {ingredient}")
                return
        insist(f"x {times}", command(planner.resolve_groups(wrong)))

    make(display_name(problem.goal), 1, ())
    return turns


def expansion(line: RecipeLine, *, need: int, times: int) -> str:
    """`6 oak planks by 4 oak planks using 1 oak logs x 2.`"""
    return f"{need} {line.output} by {line.count} {line.output} using {_ingredients(line)} x {times}."


def naming(group: str, member: RecipeLine, *, need: int) -> str:
    """`3 planks using 1 oak logs: planks are oak planks.`; `member` is the recipe of the group's member."""
    return f"{need} {group} using {_ingredients(member)}: {group} are {member.output}."


def command(line: RecipeLine) -> str:
    """`craft oak planks using 1 oak logs`; the count of the output is its recipe's."""
    return f"craft {line.output} using {_ingredients(line)}"


def _ingredients(line: RecipeLine) -> str:
    return ", ".join(f"{n} {name}" for n, name in line.inputs)
