"""textarena: its single-player text games, as they are.

Game, observations, reward and the end are the package's own. Item `textarena:<game>_<N>` is the game reset
with seed `N`; options are arguments of the game (`textarena:GuessTheNumber-v0?max_number=50`). The reward
comes with the end: 1 for a win, less for a part of the way, as the game says. Success is a reward of 1 that
was not cut short by an invalid move. A game's own limit of turns is one of its rules: `terminated`.

The seeds of training and test differ; what a game makes of them may not: TowerOfHanoi has one problem.

Some games take long to make a problem, which holds up this process's other episodes: Sokoban-v0 0.3 s,
RushHour-v0 a second, Sudoku-v0-hard eight, Sokoban-v0-medium half a minute. The others take milliseconds.

Games for several players are refused: no opponent that the package has can play them all. Games with words
need data of nltk.
"""

import importlib
import io
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from functools import cache, partial
from typing import Any

from envs.adapters.arguments import load, parse, unknown
from envs.adapters.seeds import OwnRandom, seeded_split
from envs.errors import ConfigError, MissingDependency
from envs.registry import EnvSpec, no_expert
from envs.types import Item, StepResult

FAMILY = "textarena"
EXAMPLE = "textarena:GuessTheNumber-v0"
SOURCE = "the textarena package: games made from seeds; nothing to download"
PACKAGES = ("textarena",)
SLOW = ("RushHour", "Sokoban", "Sudoku")
"""Games whose making takes tenths of a second and more: they would hold up all that play in one process."""

GAMES = (
    "Bandit",
    "Blackjack",
    "Countdown",
    "Crosswords",
    "Cryptarithm",
    "FifteenPuzzle",
    "FrozenLake",
    "Game2048",
    "GuessTheNumber",
    "Hangman",
    "LightsOut",
    "LogicPuzzle",
    "Mastermind",
    "Minesweeper",
    "PegJump",
    "RushHour",
    "Secretary",
    "Set",
    "Slitherlink",
    "Sokoban",
    "Sudoku",
    "ThreeCardMonte",
    "TowerOfHanoi",
    "UltimateTexasHoldem",
    "WordLadder",
    "WordSearch",
    "Wordle",
)
"""Modules of the games for one player. Left out: GuessWho and TwentyQuestions, whose game master is a
language model behind a paid service, and Klondike, whose module has an error of syntax."""

MAX_ACTION_LENGTH = 2000
NLTK_DATA = ("words", "averaged_perceptron_tagger_eng")

INSTRUCTIONS = """\
You play a text game whose rules the first message tells. Every round you are told what happened, and you \
answer with your thought and your move, on one line, as the rules want it."""


class TextArenaEnv:
    """One live game."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._rules: Any = None
        """The game without its wrappers; kept over episodes, for some take seconds to make."""
        self._game: Any = None
        self._random = OwnRandom(0)
        self._seen = ""

    async def reset(self, item: Item) -> str:
        """Start the game with `item`'s seed; returns its rules and what is seen."""
        if self._rules is None:
            self._rules = _make(self._name)
        self._game = self._rules
        # Wrappers keep the observations of all episodes that they see: new ones for each.
        for wrapper in _registered(self._name).default_wrappers or ():
            self._game = wrapper(self._game)
        self._seen = ""
        self._random = OwnRandom(item.seed)
        with self._random, _silence():
            self._game.reset(num_players=1, seed=item.seed)
        return self._news()

    async def step(self, action: str) -> StepResult:
        """Make a move."""
        if self._game is None:
            raise RuntimeError("step before reset")
        if len(action) > MAX_ACTION_LENGTH:
            return StepResult(f"A move has at most {MAX_ACTION_LENGTH} characters.")
        with self._random, _silence():
            done, _ = self._game.step(action)
        if not done:
            return StepResult(self._news())
        rewards, facts = self._rules.close()
        self._game = None
        reward, reason = rewards[0], facts[0].get("reason")
        if isinstance(reward, str):  # four games mix up the two when an invalid move ends them
            reward, reason = 0.0, reward
        return StepResult(
            str(reason or "The game is over."),
            float(reward),
            terminated=True,
            success=reward >= 1 and not facts[0]["invalid_move"],
        )

    async def close(self) -> None:
        """Forget the game."""
        self._game = self._rules = None

    def _news(self) -> str:
        """What has not been told: the package's default view begins with all that was said before."""
        with self._random, _silence():
            _, view = self._game.get_observation()
        news: str = view.removeprefix(self._seen) or view
        self._seen = view
        return news.strip()


@cache
def spec(argument: str) -> EnvSpec:
    """The environment `textarena:<argument>`."""
    name = f"{FAMILY}:{argument}"
    _make(name)  # whatever is wrong with the name, its options or the game's data is said now
    return EnvSpec(
        name=name,
        make=partial(TextArenaEnv, name),
        split=partial(seeded_split, name),
        expert=no_expert,
        instructions=INSTRUCTIONS,
        action_hint="your move",
        packages=PACKAGES,
        source=SOURCE,
        isolation="process" if argument.startswith(SLOW) else "none",
        preload=("textarena",),
    )


def _registered(name: str) -> Any:
    """The package's entry for the game; raises `ConfigError` where there is none to be played here."""
    load("textarena", family=FAMILY, package="textarena")
    entries = importlib.import_module("textarena.envs.registration").ENV_REGISTRY
    target, _ = parse(name.removeprefix(f"{FAMILY}:"), family=FAMILY)
    if target not in entries:
        raise unknown(
            target, family=FAMILY, known=(key for key, entry in entries.items() if _playable(entry))
        )
    if not _playable(entries[target]):
        raise ConfigError(
            f"env {name!r} is refused; the games that one player can play here are {', '.join(GAMES)}"
        )
    return entries[target]


def _playable(entry: Any) -> bool:
    return str(entry.entry_point).split(".")[2] in GAMES


def _make(name: str) -> Any:
    """The bare game; raises `MissingDependency` where its words are not there."""
    _registered(name)
    target, options = parse(name.removeprefix(f"{FAMILY}:"), family=FAMILY)
    package = importlib.import_module("textarena")
    try:
        with _no_downloads(), _silence(), OwnRandom(0):
            game = package.make(target, **options)
    except LookupError as error:
        if "nltk" not in str(error).lower():
            raise
        raise MissingDependency(
            f"env {name!r} needs words; python -m nltk.downloader {' '.join(NLTK_DATA)}"
        ) from None
    except SyntaxError as error:
        raise ConfigError(f"env {name!r}: the game is written for Python 3.12 ({error})") from None
    except TypeError as error:
        raise ConfigError(f"env {name!r}: the game refuses its options: {error}") from None
    while isinstance(game, package.Wrapper):
        game = game.env
    return game


def _silence() -> redirect_stdout[io.StringIO]:
    """Some games print what they do."""
    return redirect_stdout(io.StringIO())


@contextmanager
def _no_downloads() -> Iterator[None]:
    """Games fetch their words when they are imported, each time; here a person does it once, knowingly."""
    nltk: Any = importlib.import_module("nltk")
    download, nltk.download = nltk.download, lambda *_, **__: False
    try:
        yield
    finally:
        nltk.download = download
