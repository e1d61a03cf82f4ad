"""TextWorld: three kinds of generated text games, with the number of turns that they take as a parameter.

`textworld` has all three; `textworld:coin-collector`, `textworld:treasure-hunter` and `textworld:cooking`
have one each. `games.py` says what the levels are, `play.py` what the player reads.
"""

import asyncio
from collections.abc import Sequence
from functools import partial

from envs.adapters.arguments import parse_name, unknown_target
from envs.builtin.textworld.games import KINDS, World
from envs.builtin.textworld.play import Play
from envs.builtin.textworld.upstream import PACKAGES
from envs.errors import ConfigError
from envs.registry import EnvSpec, ExpertStep
from envs.types import Item, StepResult, hash_state

__all__ = ["EXAMPLE", "FAMILY", "PACKAGES", "SOURCE", "SPEC", "spec"]

FAMILY = "textworld"
EXAMPLE = f"{FAMILY}:coin-collector"
SOURCE = "the textworld package: games generated from the item's number; nothing to download"

INSTRUCTIONS = """\
You are in a house and have a task. Every round you are told where you are, what is there, which exits \
there are, what you carry, and which actions there are now. You take one of the \
actions, word for word. You see only the room that you are in and what lies in open containers: go through \
the rooms to find what you look for, and open what is closed. A recipe is in the cookbook ("examine \
cookbook"); follow its directions exactly, because what is burned or cut in a wrong way cannot be repaired."""


class TextWorldEnv:
    """One live game."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._play: Play | None = None

    async def reset(self, item: Item) -> str:
        """Start `item`; returns the task, the room and the actions. The first takes tenths of a second."""
        self._play = None
        with SPEC.explain_missing():
            self._play = await asyncio.to_thread(self._world.start, item.index)
        return f"Your task: {self._play.goal}\n{_observe(self._play)}"

    async def step(self, action: str) -> StepResult:
        """Carry out one of the possible commands; any other is refused by an observation and changes
        nothing. The reward is the share of the game's points that the command gains."""
        play = self._play
        if play is None:
            raise RuntimeError("step before reset, or after the end")
        words = " ".join(action.split()).lower()
        command = next((c for c in play.commands if c.lower() == words), None)
        if command is None:
            return StepResult(f"{action.strip()[:60]!r} is no action now.\n{_observe(play)}")
        before = play.score
        answer = play.act(command)
        reward = play.score - before
        if play.is_won or play.is_lost:
            self._play = None
            end = "You have won." if play.is_won else "You have lost."
            return StepResult(f"{answer} {end}", reward, terminated=True, success=play.is_won)
        return StepResult(f"{answer}\n{_observe(play)}".lstrip(), reward)

    def state_key(self) -> str | None:
        """The key of the facts, and of the quests that have been completed."""
        return None if self._play is None else hash_state(self._play.facts, self._play.quests)

    async def close(self) -> None:
        """Forget the game."""
        self._play = None


def _observe(play: Play) -> str:
    return f"{play.describe()}\nActions: {', '.join(play.listed_commands)}"


def spec(argument: str) -> EnvSpec:
    """The environment `textworld:<kind>`; raises `ConfigError` for another name or an option."""
    name = f"{FAMILY}:{argument}"
    kind, options = parse_name(name)
    if kind not in KINDS:
        raise unknown_target(kind, family=FAMILY, targets=tuple(KINDS))
    if options:
        raise ConfigError(f"env {name!r}: give no options; `where` selects items by length and level")
    return get_spec(World(name=name, kinds=(kind,)))


def get_spec(world: World) -> EnvSpec:
    """The environment of the games of `world`."""

    def expert(item: Item) -> Sequence[ExpertStep]:
        return [ExpertStep(thought="", action=command) for command in world.solve(item.index)]

    return EnvSpec(
        name=world.name,
        make=partial(TextWorldEnv, world),
        split=world.split,
        make_item=world.make_item,
        expert=expert,
        instructions=INSTRUCTIONS,
        packages=PACKAGES,
        source=SOURCE,
        has_states=True,
    )


SPEC = get_spec(World(name=FAMILY, kinds=tuple(KINDS)))
