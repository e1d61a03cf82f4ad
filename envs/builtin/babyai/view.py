"""What a BabyAI agent sees, as text, and what its text commands do, as minigrid's moves.

Positions are relative to the agent: `ahead` cells in front of it and `right` cells to its right. A
command that names an object walks the shortest way over cells in sight; it is planned here and
carried out by `envs/builtin/babyai/env.py`.
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
"""Cell in front for each heading: as the agent stands, turned right once, twice, three times."""


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
class Sight:
    """One object in view."""

    name: str
    """`red ball 1`, `grey locked door 2`: numbered from near to far among those of one name."""
    cell: Cell
    kind: str
    """minigrid's type: ball, box, key, door."""
    color: str
    state: str
    """Of a door: open, closed, locked; else empty."""

    @property
    def distance(self) -> int:
        """Cells to go, turns not counted."""
        return abs(self.cell[0]) + abs(self.cell[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """All that the agent sees at one moment."""

    sights: tuple[Sight, ...]
    """From near to far."""
    free: frozenset[Cell]
    """Cells in sight that can be walked on."""
    wall_ahead: int | None
    """Cells to the first wall straight ahead; None if none is in sight."""
    carrying: str | None
    """`red key`, or None."""

    @property
    def ahead(self) -> Sight | None:
        """What is right in front of the agent."""
        return next((sight for sight in self.sights if sight.cell == (1, 0)), None)


def look(env: "MiniGridEnv") -> View:
    """The agent's view, with what hides behind walls left out."""
    grid, visible = env.gen_obs_grid()
    middle, last = grid.width // 2, grid.height - 1
    objects: list[tuple[Cell, WorldObj]] = []
    free: set[Cell] = {(0, 0)}
    walls: list[int] = []
    for column in range(grid.width):
        for row in range(grid.height):
            cell = (last - row, column - middle)
            if cell == (0, 0) or not visible[column, row]:
                continue
            thing = grid.get(column, row)
            if thing is None or thing.can_overlap():
                free.add(cell)
            if thing is None:
                continue
            if thing.type == "wall" and cell[1] == 0:
                walls.append(cell[0])
            if thing.type in ("ball", "box", "key", "door"):
                objects.append((cell, thing))
    objects.sort(key=lambda entry: (abs(entry[0][0]) + abs(entry[0][1]), entry[0]))
    counts: dict[str, int] = {}
    sights = []
    for cell, thing in objects:
        state = ""
        if thing.type == "door":
            state = "open" if thing.is_open else "locked" if thing.is_locked else "closed"
        name = " ".join(filter(None, (thing.color, state, thing.type)))
        counts[name] = counts.get(name, 0) + 1
        sights.append(Sight(f"{name} {counts[name]}", cell, thing.type, thing.color, state))
    held = env.carrying
    return View(
        sights=tuple(sights),
        free=frozenset(free),
        wall_ahead=min(walls, default=None),
        carrying=f"{held.color} {held.type}" if held else None,
    )


def describe(view: View) -> str:
    """The view in words, without the commands."""
    lines = [f"You see {sight.name}: {_whereabouts(sight.cell)}." for sight in view.sights]
    if not view.sights:
        lines.append("You see no object.")
    if view.wall_ahead is not None:
        lines.append(f"A wall is {view.wall_ahead} ahead.")
    lines.append(f"You carry a {view.carrying}." if view.carrying else "You carry nothing.")
    return "\n".join(lines)


def _whereabouts(cell: Cell) -> str:
    ahead, right = cell
    parts = [f"{ahead} ahead"] if ahead else []
    if right:
        parts.append(f"{abs(right)} {'right' if right > 0 else 'left'}")
    return ", ".join(parts)


def commands(view: View) -> dict[str, list[Move]]:
    """Every command that can be given now, and the moves it stands for."""
    moves: dict[str, list[Move]] = {"turn left": [Move.LEFT], "turn right": [Move.RIGHT]}
    if (1, 0) in view.free:
        moves["move forward"] = [Move.FORWARD]
        if view.carrying and (view.ahead is None):
            moves["drop"] = [Move.DROP]
    if view.ahead is not None and view.ahead.kind in ("door", "box"):
        moves["toggle"] = [Move.TOGGLE]
    for sight in view.sights:
        way = path(view, sight.cell)
        if way is None:
            continue
        moves[f"go to {sight.name}"] = way or [Move.DONE]
        if sight.kind != "door":
            if not view.carrying:
                moves[f"pick up {sight.name}"] = [*way, Move.PICKUP]
        elif sight.state == "open":
            moves[f"go through {sight.name}"] = [*way, Move.FORWARD]
        elif sight.state == "closed" or view.carrying == f"{sight.color} key":
            moves[f"toggle and go through {sight.name}"] = [*way, Move.TOGGLE, Move.FORWARD]
    return moves


def path(view: View, target: Cell) -> list[Move] | None:
    """The fewest moves after which the agent faces `target`, next to it; None if there is no way."""
    start = ((0, 0), 0)
    came: dict[tuple[Cell, int], tuple[tuple[Cell, int], Move] | None] = {start: None}
    queue = deque([start])
    while queue:
        state = queue.popleft()
        (ahead, right), heading = state
        step = _TURNS[heading]
        front = (ahead + step[0], right + step[1])
        if front == target:
            moves: list[Move] = []
            before = came[state]
            while before is not None:
                moves.append(before[1])
                before = came[before[0]]
            return moves[::-1]
        following = [
            (((ahead, right), (heading + 3) % 4), Move.LEFT),
            (((ahead, right), (heading + 1) % 4), Move.RIGHT),
        ]
        if front in view.free:
            following.insert(0, ((front, heading), Move.FORWARD))
        for after, move in following:
            if after not in came:
                came[after] = (state, move)
                queue.append(after)
    return None
