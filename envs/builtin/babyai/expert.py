"""minigrid's own solver of BabyAI levels, speaking the text commands of `envs/builtin/babyai/view.py`.

The bot gives up on three kinds of level, or plans without end: the agent carries something from the start,
a key is hidden in a box, a locked room holds the key of another one. Each is an errand away from a level that
the bot solves, so where it fails alone it runs an errand first: drop, open a box, open a locked door.

The bot plans in single moves. They are said in as few commands as reach the same places: of all
commands that can be given, the one that takes its game furthest.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from envs.builtin.babyai.view import Move, commands, look

if TYPE_CHECKING:
    from minigrid.minigrid_env import MiniGridEnv
    from minigrid.utils.baby_ai_bot import BabyAIBot

_WALK = (Move.LEFT, Move.RIGHT, Move.FORWARD)
_HEADINGS = ((1, 0), (0, 1), (-1, 0), (0, -1))
"""minigrid's directions."""
MAX_MOVES = 1000
MAX_SUBGOALS = 40
"""That the bot may add to its plan before one move. In the first 900 items it adds 8 at most where it
succeeds. It adds for ever where it looks for a key and the only door left to open is the key's own."""

Pose = tuple[int, int, int]
"""(x, y, direction)"""


@dataclass(frozen=True, slots=True)
class _Game:
    """The bot's game: `poses[i]` before `moves[i]`; `changes[i]` moves before it were more than walking."""

    moves: list[Move] = field(default_factory=list)
    poses: list[Pose] = field(default_factory=list)
    changes: list[int] = field(default_factory=list)

    def add(self, level: "MiniGridEnv", move: Move) -> bool:
        """Record `move` and carry it out in `level`; returns whether the level has ended."""
        if len(self.moves) == MAX_MOVES:
            raise _GivenUp
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
    """What is done before the mission."""

    kind: Literal["drop", "open box", "open door"]
    position: tuple[int, int] = (0, 0)
    """Of the box or door, in the grid."""


class _GivenUp(Exception):
    """The bot plans or walks without end."""


class _Plan(list[Any]):
    """The bot's stack of subgoals, which ends it where it adds to the stack and never moves."""

    subgoals = 0
    """Since the last move."""

    def append(self, subgoal: Any) -> None:
        self.subgoals += 1
        if self.subgoals > MAX_SUBGOALS:
            raise _GivenUp
        super().append(subgoal)


def solve(new: Callable[[], "MiniGridEnv"]) -> Sequence[str]:
    """Commands that complete the level that `new` makes; empty where no solution is known."""
    for errand in (None, *_errands(new())):
        game = _bot_game(new(), errand)
        # Another way to the same place may pass by a door that must stay shut, or miss one that comes first.
        if said := _choose_actions(game, new(), detours=True) or _choose_actions(game, new(), detours=False):
            return said
    return []


def _errands(level: "MiniGridEnv") -> Iterator[_Errand]:
    if level.carrying:
        yield _Errand("drop")
    for x in range(level.width):
        for y in range(level.height):
            thing = level.grid.get(x, y)
            if thing is not None and thing.type == "box":
                yield _Errand("open box", (x, y))
            elif thing is not None and thing.type == "door" and thing.is_locked:
                yield _Errand("open door", (x, y))


def _choose_actions(game: _Game, level: "MiniGridEnv", *, detours: bool) -> list[str]:
    """The game in commands; empty if they do not complete the level. `detours`: by other ways, too."""
    said: list[str] = []
    index = 0
    while index < len(game.moves):
        command, moves, index = _furthest(level, game, index, detours=detours)
        said.append(command)
        for move in moves:
            _, reward, terminated, truncated, _ = level.step(move)
            if terminated or truncated:
                return said if terminated and reward > 0 else []
    return []


def _bot_game(level: "MiniGridEnv", errand: _Errand | None) -> _Game:
    """The bot's game from the start of `level`; empty where it gives up."""
    from minigrid.utils.baby_ai_bot import BabyAIBot

    game = _Game()
    try:
        bot = BabyAIBot(level)
        if errand is not None:
            mask = _run_errand(errand, level, game)
            bot = BabyAIBot(level)  # reads the mission anew: what the level holds has changed
            bot.vis_mask = mask
        _drive(bot, level, game, until_done=False)
    except Exception:  # it gives up by assertions of many kinds
        return _Game()
    return game


def _run_errand(errand: _Errand, level: "MiniGridEnv", game: _Game) -> Any:
    """Run it; returns the bot's map of the cells that it has seen."""
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
    _drive(bot, level, game, until_done=True)
    if errand.kind == "open box":  # the bot itself takes an open box for a lost mission
        game.add(level, Move.TOGGLE)
    return bot.vis_mask


def _drive(bot: "BabyAIBot", level: "MiniGridEnv", game: _Game, *, until_done: bool) -> None:
    """Let `bot` move, until the level ends or, `until_done`, until its plan is carried out."""
    bot.stack = plan = _Plan(bot.stack)
    move = None
    has_ended = False
    while not has_ended:
        plan.subgoals = 0
        move = Move(int(bot.replan(move)))
        if until_done and not plan:
            return
        has_ended = game.add(level, move)


def _furthest(level: "MiniGridEnv", game: _Game, index: int, *, detours: bool) -> tuple[str, list[Move], int]:
    """(command, its moves, where in the bot's game it leads)"""
    best: tuple[str, list[Move], int] | None = None
    for command, moves in commands(look(level)).items():
        walk = next((i for i, move in enumerate(moves) if move not in _WALK), len(moves))
        end, rest = _walk_from(_pose(level), moves[:walk]), moves[walk:]
        places = range(len(game.moves) - len(rest), index - 1, -1) if detours else [index + walk]
        for position in places:
            reached = position + len(rest)
            as_said = detours or game.moves[index:reached] == moves
            same = (
                game.changes[position : position + 1] == [game.changes[index]] and game.poses[position] == end
            )
            if (
                as_said
                and same
                and game.moves[position:reached] == rest
                and reached > (best[2] if best else index)
            ):
                best = (command, moves, reached)
                break
    assert best is not None, f"no command does what the bot does next, {game.moves[index].name}"
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
