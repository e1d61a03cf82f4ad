"""The agent's view as text, and its text commands as minigrid's moves.

Positions are relative to the agent: `ahead` cells in front of it and `right` cells to its right. A command
that names an object walks the shortest way over visible cells; it is planned here and carried out by
`env.py`.
"""

from collections import deque
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minigrid.core.world_object import WorldObj
    from minigrid.minigrid_env import MiniGridEnv

Cell = tuple[int, int]
"""(ahead, right)"""
_TURNS = ((1, 0), (0, 1), (-1, 0), (0, -1))
"""The cell in front for each heading: 0, 1, 2 or 3 turns to the right of the agent's own."""


class Move(IntEnum):
    """minigrid's actions."""

    LEFT = 0
    RIGHT = 1
    FORWARD = 2
    PICKUP = 3
    DROP = 4
    TOGGLE = 5
    DONE = 6
    """Nothing moves; the mission is verified."""


@dataclass(frozen=True, slots=True)
class VisibleObject:
    """One object in view."""

    name: str
    """`red ball 1`, `grey locked door 2`: objects of the same name are numbered from near to far."""
    cell: Cell
    kind: str
    """minigrid's type: ball, box, key, door."""
    color: str
    state: str
    """A door's: open, closed or locked; empty for other objects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The agent's view at one moment."""

    objects: tuple[VisibleObject, ...]
    """The objects from near to far."""
    free: frozenset[Cell]
    """Visible cells that the agent can walk on."""
    wall_ahead: int | None
    """Cells to the first wall straight ahead; None if no wall is visible there."""
    carrying: str | None
    """`red key`, or None."""

    @property
    def ahead(self) -> VisibleObject | None:
        """The object right in front of the agent."""
        return next((entry for entry in self.objects if entry.cell == (1, 0)), None)


def look(env: "MiniGridEnv") -> View:
    """The agent's view, without anything that walls hide."""
    grid, visible = env.gen_obs_grid()
    middle, last = grid.width // 2, grid.height - 1
    cells_and_objects: list[tuple[Cell, WorldObj]] = []
    free: set[Cell] = {(0, 0)}
    wall_distances: list[int] = []
    for column in range(grid.width):
        for row in range(grid.height):
            cell = (last - row, column - middle)
            if cell == (0, 0) or not visible[column, row]:
                continue
            entity = grid.get(column, row)
            if entity is None or entity.can_overlap():
                free.add(cell)
            if entity is None:
                continue
            if entity.type == "wall" and cell[1] == 0:
                wall_distances.append(cell[0])
            if entity.type in ("ball", "box", "key", "door"):
                cells_and_objects.append((cell, entity))
    cells_and_objects.sort(key=lambda entry: (abs(entry[0][0]) + abs(entry[0][1]), entry[0]))
    counts: dict[str, int] = {}
    objects = []
    for cell, entity in cells_and_objects:
        state = ""
        if entity.type == "door":
            state = "open" if entity.is_open else "locked" if entity.is_locked else "closed"
        name = " ".join(filter(None, (entity.color, state, entity.type)))
        counts[name] = counts.get(name, 0) + 1
        objects.append(VisibleObject(f"{name} {counts[name]}", cell, entity.type, entity.color, state))
    load = env.carrying
    return View(
        objects=tuple(objects),
        free=frozenset(free),
        wall_ahead=min(wall_distances, default=None),
        carrying=f"{load.color} {load.type}" if load else None,
    )


def describe(view: View) -> str:
    """The view in words, without the commands."""
    lines = [f"You see {entry.name}: {_describe_position(entry.cell)}." for entry in view.objects]
    if not view.objects:
        lines.append("You see no object.")
    if view.wall_ahead is not None:
        lines.append(f"A wall is {view.wall_ahead} ahead.")
    lines.append(f"You carry a {view.carrying}." if view.carrying else "You carry nothing.")
    return "\n".join(lines)


def _describe_position(cell: Cell) -> str:
    ahead, right = cell
    parts = [f"{ahead} ahead"] if ahead else []
    if right:
        parts.append(f"{abs(right)} {'right' if right > 0 else 'left'}")
    return ", ".join(parts)


def list_commands(view: View) -> dict[str, list[Move]]:
    """Every command that is possible now → its moves."""
    moves: dict[str, list[Move]] = {"turn left": [Move.LEFT], "turn right": [Move.RIGHT]}
    if (1, 0) in view.free:
        moves["move forward"] = [Move.FORWARD]
        if view.carrying and (view.ahead is None):
            moves["drop"] = [Move.DROP]
    if view.ahead is not None and view.ahead.kind in ("door", "box"):
        moves["toggle"] = [Move.TOGGLE]
    for target in view.objects:
        way = find_path(view, target.cell)
        if way is None:
            continue
        moves[f"go to {target.name}"] = way or [Move.DONE]
        if target.kind != "door":
            if not view.carrying:
                moves[f"pick up {target.name}"] = [*way, Move.PICKUP]
        elif target.state == "open":
            moves[f"go through {target.name}"] = [*way, Move.FORWARD]
        elif target.state == "closed" or view.carrying == f"{target.color} key":
            moves[f"toggle and go through {target.name}"] = [*way, Move.TOGGLE, Move.FORWARD]
    return moves


def find_path(view: View, target: Cell) -> list[Move] | None:
    """The fewest moves to a cell next to `target`, facing it; None if there is no way."""
    start = ((0, 0), 0)
    previous: dict[tuple[Cell, int], tuple[tuple[Cell, int], Move] | None] = {start: None}
    queue = deque([start])
    while queue:
        state = queue.popleft()
        (ahead, right), heading = state
        step = _TURNS[heading]
        front = (ahead + step[0], right + step[1])
        if front == target:
            moves: list[Move] = []
            before = previous[state]
            while before is not None:
                moves.append(before[1])
                before = previous[before[0]]
            return moves[::-1]
        following = [
            (((ahead, right), (heading + 3) % 4), Move.LEFT),
            (((ahead, right), (heading + 1) % 4), Move.RIGHT),
        ]
        if front in view.free:
            following.insert(0, ((front, heading), Move.FORWARD))
        for after, move in following:
            if after not in previous:
                previous[after] = (state, move)
                queue.append(after)
    return None
