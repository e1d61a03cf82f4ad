"""minigrid's own solver of BabyAI levels, speaking the text commands of `envs/babyai_view.py`.

The bot plans in single moves. They are said in as few commands as reach the same places: of all
commands that can be given, the one that takes its game furthest.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from envs.babyai_view import Move, commands, look

if TYPE_CHECKING:
    from minigrid.minigrid_env import MiniGridEnv

_WALK = (Move.LEFT, Move.RIGHT, Move.FORWARD)
_HEADINGS = ((1, 0), (0, 1), (-1, 0), (0, -1))
"""minigrid's directions."""
_TOO_LONG = 1000

Pose = tuple[int, int, int]
"""(x, y, direction)"""


@dataclass(frozen=True, slots=True)
class _Game:
    """The bot's game: `poses[i]` before `moves[i]`; `changes[i]` moves before it were more than walking."""

    moves: list[Move]
    poses: list[Pose]
    changes: list[int]


def solve(new: Callable[[], "MiniGridEnv"]) -> Sequence[str]:
    """Commands that complete the level that `new` makes; empty where the bot knows no solution."""
    game = _bot_game(new())
    # Another way to the same place may pass by a door that must stay shut or miss one to be gone to first.
    return _said(game, new(), detours=True) or _said(game, new(), detours=False)


def _said(game: _Game, level: "MiniGridEnv", *, detours: bool) -> list[str]:
    """The game in commands; empty if they do not complete the level. `detours`: by other ways, too."""
    said: list[str] = []
    at = 0
    while at < len(game.moves):
        command, moves, at = _furthest(level, game, at, detours=detours)
        said.append(command)
        for move in moves:
            _, reward, terminated, truncated, _ = level.step(move)
            if terminated or truncated:
                return said if terminated and reward > 0 else []
    return []


def _bot_game(level: "MiniGridEnv") -> _Game:
    from minigrid.utils.baby_ai_bot import BabyAIBot

    game = _Game([], [], [])
    changes = 0
    try:
        bot = BabyAIBot(level)
        move = None
        for _ in range(_TOO_LONG):
            move = Move(int(bot.replan(move)))
            game.moves.append(move)
            game.poses.append(_pose(level))
            game.changes.append(changes)
            changes += move not in _WALK
            _, _, terminated, truncated, _ = level.step(move)
            if terminated or truncated:
                break
    except Exception:  # it gives up by assertions of many kinds
        return _Game([], [], [])
    game.poses.append(_pose(level))
    game.changes.append(changes)
    return game


def _furthest(level: "MiniGridEnv", game: _Game, at: int, *, detours: bool) -> tuple[str, list[Move], int]:
    """(command, its moves, where in the bot's game it leads)"""
    best: tuple[str, list[Move], int] | None = None
    for command, moves in commands(look(level)).items():
        walk = next((i for i, move in enumerate(moves) if move not in _WALK), len(moves))
        end, rest = _walked(_pose(level), moves[:walk]), moves[walk:]
        places = range(len(game.moves) - len(rest), at - 1, -1) if detours else [at + walk]
        for place in places:
            reached = place + len(rest)
            as_said = detours or game.moves[at:reached] == moves
            same = game.changes[place : place + 1] == [game.changes[at]] and game.poses[place] == end
            if as_said and same and game.moves[place:reached] == rest and reached > (best[2] if best else at):
                best = (command, moves, reached)
                break
    assert best is not None, f"no command does what the bot does next, {game.moves[at].name}"
    return best


def _pose(level: "MiniGridEnv") -> Pose:
    return (int(level.agent_pos[0]), int(level.agent_pos[1]), int(level.agent_dir))


def _walked(pose: Pose, walk: Sequence[Move]) -> Pose:
    x, y, direction = pose
    for move in walk:
        if move is Move.FORWARD:
            x, y = x + _HEADINGS[direction][0], y + _HEADINGS[direction][1]
        else:
            direction = (direction + (1 if move is Move.RIGHT else 3)) % 4
    return (x, y, direction)
