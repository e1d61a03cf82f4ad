"""TextWorld's generator and rules, without its interpreter.

TextWorld compiles a game to Inform 7 and plays it with `jericho`. Neither is used: compiling takes seconds a
game, and jericho brings a C library and spaCy. The world, the quests and the rules that say which commands
are possible are TextWorld's own Python code, which also follows the state of a compiled game.
"""

import importlib.util
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING

from envs.requirements.plugins import replace_attribute

if TYPE_CHECKING:
    from textworld import Game, GameMaker, GameOptions

PACKAGES = ("textworld",)


def stand_in_for_jericho() -> ModuleType:
    """What `import textworld` needs of jericho."""
    module = ModuleType("jericho")
    module.__spec__ = ModuleSpec("jericho", None)
    for name in ("UnsupportedGameWarning", "TruncatedInputActionWarning"):
        setattr(module, name, type(name, (UserWarning,), {}))
    return module


def import_textworld() -> ModuleType:
    """The package `textworld`; takes seconds the first time."""
    if importlib.util.find_spec("textworld") is not None and importlib.util.find_spec("jericho") is None:
        sys.modules["jericho"] = stand_in_for_jericho()
    textworld = importlib.import_module("textworld")
    # Its grammar runs out of names for the rooms of large maps, and says so each time.
    warnings.filterwarnings("ignore", category=textworld.GenerationWarning)
    return textworld


def generate(
    make: "Callable[[Mapping[str, object], GameOptions], Game]", settings: Mapping[str, object], *, seed: int
) -> "tuple[Game, Sequence[str]]":
    """A game of a challenge, and the commands of its walkthrough; empty if it has none.

    `make`: of a module in `textworld.challenges`; `seed`: of the map, the objects, the quest and the texts.
    One thread at a time. Raises TextWorld's `QuestGenerationError` if the map of this seed has no such quest.
    """
    textworld = import_textworld()
    logic = importlib.import_module("textworld.logic").GameLogic
    load = logic.load
    options = textworld.GameOptions()
    options.seeds = seed
    options.grammar.only_last_action = True  # the goal, without the way to it
    with (
        replace_attribute(textworld.GameMaker, "set_walkthrough", _record_walkthrough),
        replace_attribute(logic, "load", lambda paths: _load_rules(load, tuple(paths))),
    ):
        game = make(settings, options)
    return game, getattr(options, "walkthrough", ())


def _record_walkthrough(maker: "GameMaker", commands: Sequence[str]) -> None:
    """A walkthrough is recorded, where TextWorld would compile the game and play it."""
    maker.options.walkthrough = tuple(commands)


@cache
def _load_rules(load: Callable[[Sequence[str]], object], paths: tuple[str, ...]) -> object:
    """The rules of a challenge, read from their files once: that takes ten times as long as the rest of a
    game's generation, and TextWorld does it for every game. Games do not change them."""
    return load(paths)
