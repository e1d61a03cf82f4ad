"""minigrid's own solver of BabyAI levels, translated into the text commands of `envs/builtin/babyai/view.py`.

On three kinds of level the bot gives up or plans without end: the agent carries something from the start, a
key is hidden in a box, or a locked room contains the key of another one. Each is one errand away from a level
that the bot solves, so if it fails alone, it runs an errand first: drop, open a box, open a locked door.

The bot plans single moves. The translation takes few commands to the same places: always the command that
follows the bot's moves furthest.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from envs.builtin.babyai.view import Move, list_commands, look

if TYPE_CHECKING:
    from minigrid.minigrid_env import MiniGridEnv
    from minigrid.utils.baby_ai_bot import BabyAIBot

_WALK = (Move.LEFT, Move.RIGHT, Move.FORWARD)
_HEADINGS = ((1, 0), (0, 1), (-1, 0), (0, -1))
"""minigrid's directions."""
MAX_MOVES = 1000
MAX_SUBGOALS = 40
"""The most that the bot may add to its plan before one move. In the first 900 items, it adds at most 8 if it
succeeds. It adds forever if it looks for a key and the only door left to open is the key's own."""

Pose = tuple[int, int, int]
"""(x, y, direction)"""


@dataclass(frozen=True, slots=True)
class _Recording:
    """The bot's moves: `poses[i]` precedes `moves[i]`, and `changes[i]` of the moves before it were not steps
    or turns."""

    moves: list[Move] = field(default_factory=list)
    poses: list[Pose] = field(default_factory=list)
    changes: list[int] = field(default_factory=list)

    def add(self, level: "MiniGridEnv", move: Move) -> bool:
        """Record `move` and carry it out in `level`; returns whether the level has ended."""
        if len(self.moves) == MAX_MOVES:
            raise _EndlessError
        if not self.poses:
            self.poses.append(_pose(level))
            self.changes.append(0)
        self.moves.append(move)
        _, _, terminated, truncated, _ = level.step(move)
        self.poses.append(_pose(level))
        self.changes.append(self.changes[-1] + (move not in _WALK))
        return bool(terminated or truncated)


@dataclass(frozen=True, slots=True)
class _Errand:
    """An action before the mission."""

    kind: Literal["drop", "open box", "open door"]
    position: tuple[int, int] = (0, 0)
    """The box or door, as (x, y) in the grid."""


class _EndlessError(Exception):
    """The bot plans or walks without end."""


class _Plan(list[object]):
    """The bot's stack of subgoals; stops the bot if it adds to the stack without moving."""

    subgoals = 0
    """Added since the last move."""

    def append(self, subgoal: object) -> None:
        self.subgoals += 1
        if self.subgoals > MAX_SUBGOALS:
            raise _EndlessError
        super().append(subgoal)


def solve(new: Callable[[], "MiniGridEnv"]) -> Sequence[str]:
    """Commands that complete the level that `new` makes; empty if no solution is known."""
    for errand in (None, *_errands(new())):
        recording = _record_bot(new(), errand)
        # A detour may open a door that must stay shut, or miss one that comes first.
        for detours in (True, False):
            if plan := _translate(recording, new(), detours=detours):
                return plan
    return []


def _errands(level: "MiniGridEnv") -> Iterator[_Errand]:
    if level.carrying:
        yield _Errand("drop")
    for x in range(level.width):
        for y in range(level.height):
            cell = level.grid.get(x, y)
            if cell is not None and cell.type == "box":
                yield _Errand("open box", (x, y))
            elif cell is not None and cell.type == "door" and cell.is_locked:
                yield _Errand("open door", (x, y))


def _translate(recording: _Recording, level: "MiniGridEnv", *, detours: bool) -> list[str]:
    """The recording in commands; empty if they do not complete the level. `detours` allows other ways."""
    plan: list[str] = []
    index = 0
    while index < len(recording.moves):
        command, moves, index = _find_furthest(level, recording, index, detours=detours)
        plan.append(command)
        for move in moves:
            _, reward, terminated, truncated, _ = level.step(move)
            if terminated or truncated:
                return plan if terminated and reward > 0 else []
    return []


def _record_bot(level: "MiniGridEnv", errand: _Errand | None) -> _Recording:
    """The bot's moves from the start of `level`; empty if it gives up."""
    from minigrid.utils.baby_ai_bot import BabyAIBot

    recording = _Recording()
    try:
        bot = BabyAIBot(level)
        if errand is not None:
            mask = _run_errand(errand, level, recording)
            bot = BabyAIBot(level)  # reads the mission anew, since the level has changed
            bot.vis_mask = mask
        _drive(bot, level, recording, until_done=False)
    except Exception:  # it gives up with assertions of many kinds
        return _Recording()
    return recording


def _run_errand(errand: _Errand, level: "MiniGridEnv", recording: _Recording) -> object:
    """Run the errand; returns the bot's map of visible cells."""
    from minigrid.utils import baby_ai_bot as package

    bot = package.BabyAIBot(level)
    bot._process_obs()
    match errand.kind:
        case "drop":
            position = package.GoNextToSubgoal(bot, bot._find_drop_pos())
            bot.stack = [package.DropSubgoal(bot), position]
        case "open box":
            bot.stack = [package.GoNextToSubgoal(bot, errand.position)]
        case "open door":
            door = level.grid.get(*errand.position)
            bot.stack = [package.OpenSubgoal(bot), package.GoNextToSubgoal(bot, door, reason="Open")]
    _drive(bot, level, recording, until_done=True)
    if errand.kind == "open box":  # the bot considers the mission lost once a box is open
        recording.add(level, Move.TOGGLE)
    return bot.vis_mask


def _drive(bot: "BabyAIBot", level: "MiniGridEnv", recording: _Recording, *, until_done: bool) -> None:
    """Let `bot` move until the level ends or, with `until_done`, until its plan is carried out."""
    bot.stack = plan = _Plan(bot.stack)
    move = None
    has_ended = False
    while not has_ended:
        plan.subgoals = 0
        move = Move(int(bot.replan(move)))
        if until_done and not plan:
            return
        has_ended = recording.add(level, move)


def _find_furthest(
    level: "MiniGridEnv", recording: _Recording, index: int, *, detours: bool
) -> tuple[str, list[Move], int]:
    """(command, its moves, the index in the recording to which it leads)"""
    best: tuple[str, list[Move], int] | None = None
    for command, moves in list_commands(look(level)).items():
        walk = next((i for i, move in enumerate(moves) if move not in _WALK), len(moves))
        end, rest = _walk_from(_pose(level), moves[:walk]), moves[walk:]
        positions = range(len(recording.moves) - len(rest), index - 1, -1) if detours else [index + walk]
        for position in positions:
            last = position + len(rest)
            if (
                (detours or recording.moves[index:last] == moves)
                and recording.changes[position : position + 1] == [recording.changes[index]]
                and recording.poses[position] == end
                and recording.moves[position:last] == rest
                and last > (best[2] if best else index)
            ):
                best = (command, moves, last)
                break
    assert best is not None, f"no command does what the bot does next, {recording.moves[index].name}"
    return best


def _pose(level: "MiniGridEnv") -> Pose:
    return (int(level.agent_pos[0]), int(level.agent_pos[1]), int(level.agent_dir))


def _walk_from(pose: Pose, walk: Sequence[Move]) -> Pose:
    x, y, direction = pose
    for move in walk:
        if move is Move.FORWARD:
            x, y = x + _HEADINGS[direction][0], y + _HEADINGS[direction][1]
        else:
            direction = (direction + (1 if move is Move.RIGHT else 3)) % 4
    return (x, y, direction)
