"""TextWorld's generator and rules, without its interpreter.

TextWorld compiles a game to Inform 7 and plays it with `jericho`. Neither is used: compiling takes seconds a
game, and jericho brings a C library and spaCy. The world, the quests and the rules that say which commands
are possible are TextWorld's own Python code, which also follows the state of a compiled game.
"""

import importlib.util
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

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
    make: Callable[[Mapping[str, Any], Any], Any], settings: Mapping[str, Any], *, seed: int
) -> tuple[Any, Sequence[str]]:
    """A `textworld.Game` of a challenge, and the commands of its walkthrough; empty if it has none.

    `make`: of a module in `textworld.challenges`; `seed`: of the map, the objects, the quest and the texts.
    One thread at a time. Raises TextWorld's `QuestGenerationError` if the map of this seed has no such quest.
    """
    textworld = import_textworld()
    logic = importlib.import_module("textworld.logic").GameLogic
    options = textworld.GameOptions()
    options.seeds = seed
    options.grammar.only_last_action = True  # the goal, without the way to it
    with _keep_walkthrough(textworld.GameMaker), _keep_rules(logic):
        game = make(settings, options)
    return game, getattr(options, "walkthrough", ())


@contextmanager
def _keep_walkthrough(maker: Any) -> Iterator[None]:
    """A walkthrough is recorded, where TextWorld would compile the game and play it."""
    original = maker.set_walkthrough

    def record(self: Any, commands: Sequence[str]) -> None:
        self.options.walkthrough = tuple(commands)

    maker.set_walkthrough = record
    try:
        yield
    finally:
        maker.set_walkthrough = original


@contextmanager
def _keep_rules(logic: Any) -> Iterator[None]:
    """The rules of a challenge are read from their files once: that takes ten times as long as the rest of a
    game's generation, and TextWorld does it for every game. Games do not change them."""
    original = logic.load
    logic.load = lambda paths: _load_rules(original, tuple(paths))
    try:
        yield
    finally:
        logic.load = original


@cache
def _load_rules(load: Callable[[Sequence[str]], Any], paths: tuple[str, ...]) -> Any:
    return load(paths)
