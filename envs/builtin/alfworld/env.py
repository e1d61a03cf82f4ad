"""The environment: an item's game, read from disk and played in a house."""

from collections.abc import Callable
from functools import partial
from typing import Any

from envs.builtin.alfworld.games import Game
from envs.builtin.alfworld.house import House, Seen
from envs.errors import ConfigError
from envs.types import Item, StepResult

INSTRUCTIONS = """\
You are in a house and have a task. Every round you are told what you see and which actions there are now, \
and you answer with your thought and one of these actions, word for word. You stand in the middle of the \
room at first: "go to" a place to see what is on it; a closed one must be opened to see what is in it. You \
can carry one object: "take" it where you find it, "move" it to a place. Objects are heated with a \
microwave, cooled with a fridge and cleaned with a sinkbasin while you carry them and stand there; "use" \
turns on a lamp. If you are told "Nothing happens", the action was not possible."""


class AlfWorldEnv:
    """One live game."""

    def __init__(self, read: Callable[[int], Game]) -> None:
        """`read` finds the game of an item's number."""
        self._read = read
        self._house: House | None = None
        self._seen: Seen | None = None
        self._game: Game | None = None
        self._is_playing = False

    async def reset(self, item: Item) -> str:
        """Start `item`; returns the room, the task and the actions."""
        self._leave()
        self._game = self._read(item.index)
        self._house = House(self._game)
        self._seen, self._is_playing = self._house.opening, True
        return _told(self._seen)

    async def step(self, action: str) -> StepResult:
        """Carry out one command; what is none is answered by `Nothing happens.`"""
        if self._house is None or not self._is_playing:
            raise RuntimeError("step before reset, or after the end")
        seen = self._seen = self._house.act(action)
        self._is_playing = not seen.won
        met, wanted = seen.conditions
        return StepResult(
            seen.text if seen.won else _told(seen),
            float(seen.won),
            terminated=seen.won,
            success=seen.won,
            metrics={"goal_conditions": met / wanted},
        )

    async def inspect(self, what: str) -> Any:
        """`observation` (without the list of actions), `available_actions`, or `task_type`
        (`<task>/<trial>`), as AgentGym's clients read them."""
        if self._seen is None or self._game is None:
            raise RuntimeError(f"{what!r} is asked before a reset")
        facts = {
            "observation": self._seen.text,
            "available_actions": list(self._seen.commands),
            "task_type": self._game.name,
        }
        if what not in facts:
            raise ConfigError(f"alfworld tells nothing of {what!r}, only of {', '.join(facts)}")
        return facts[what]

    async def close(self) -> None:
        """Leave the house."""
        self._leave()

    def _leave(self) -> None:
        house, self._house = self._house, None
        self._is_playing, self._seen = False, None
        if house is not None:
            house.close()


def maker(read: Callable[[int], Game]) -> Callable[[], AlfWorldEnv]:
    """What makes an instance, in whatever process."""
    return partial(AlfWorldEnv, read)


def _told(seen: Seen) -> str:
    return f"{seen.text}\nAvailable actions: {', '.join(seen.commands)}"
