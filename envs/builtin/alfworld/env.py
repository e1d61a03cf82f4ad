"""The environment: an item's game, read from disk and played in a house."""

from collections.abc import Callable
from typing import Any

from envs.builtin.alfworld.games import Game
from envs.builtin.alfworld.house import House, HouseState
from envs.errors import ConfigError
from envs.types import Item, StepResult

_LIST = "which actions there are now, and you take one of these actions, word for word"
_EXAMPLES = (
    'take one action, such as "go to desk 1", "open drawer 2", "examine shelf 1", "take mug 1 from desk 1", '
    '"move mug 1 to shelf 1", "clean mug 1 with sinkbasin 1", "use desklamp 1", "look" or "inventory"'
)


def write_instructions(*, lists_actions: bool) -> str:
    """How to act, where observations list the actions and where they do not."""
    return f"""\
You are in a house and have a task. Every round you are told what you see and \
{_LIST if lists_actions else _EXAMPLES}. You stand in the middle of the \
room at first: "go to" a place to see what is on it; a closed one must be opened to see what is in it. You \
can carry one object: "take" it where you find it, "move" it to a place. Objects are heated with a \
microwave, cooled with a fridge and cleaned with a sinkbasin while you carry them and stand there; "use" \
turns on a lamp. If you are told "Nothing happens", the action was not possible."""


class AlfWorldEnv:
    """One live game."""

    def __init__(self, read_game: Callable[[int], Game], *, lists_actions: bool = True) -> None:
        """`read_game` returns the game of an item's number; `lists_actions`: whether observations end with
        the actions that are possible."""
        self._read_game, self._lists_actions = read_game, lists_actions
        self._house: House | None = None
        self._state: HouseState | None = None
        self._game: Game | None = None

    async def reset(self, item: Item) -> str:
        """Start `item`; returns the room and the task."""
        await self.close()
        self._game = self._read_game(item.index)
        self._house = House(self._game)
        self._state = self._house.opening
        return self._describe(self._state)

    async def step(self, action: str) -> StepResult:
        """Carry out one command; an invalid one is answered by `Nothing happens.`"""
        if self._house is None or self._state is None or self._state.is_won:
            raise RuntimeError("step before reset, or after the end")
        state = self._state = self._house.act(action)
        num_met, num_conditions = state.conditions
        return StepResult(
            state.text if state.is_won else self._describe(state),
            float(state.is_won),
            terminated=state.is_won,
            success=state.is_won,
            metrics={"goal_conditions": num_met / num_conditions},
        )

    def state_key(self) -> str | None:
        """The key of the facts that hold in the house."""
        return None if self._state is None or self._state.is_won else self._state.key

    async def inspect(self, name: str) -> Any:
        """`observation` (without the list of actions), `available_actions`, or `task_type`
        (`<task>/<trial>`), as AgentGym's clients read them."""
        if self._state is None or self._game is None:
            raise RuntimeError(f"inspect {name!r} before reset")
        facts = {
            "observation": self._state.text,
            "available_actions": list(self._state.commands),
            "task_type": self._game.name,
        }
        if name not in facts:
            raise ConfigError(f"alfworld has no fact {name!r}; it has {', '.join(facts)}")
        return facts[name]

    async def close(self) -> None:
        """Leave the house."""
        house, self._house, self._state = self._house, None, None
        if house is not None:
            house.close()

    def _describe(self, state: HouseState) -> str:
        return (
            f"{state.text}\nAvailable actions: {', '.join(state.commands)}"
            if self._lists_actions
            else state.text
        )
