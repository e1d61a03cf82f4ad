"""textarena: its single-player text games, as they are.

Games, observations, rewards and ends are the package's. Item `textarena:<game>_<N>` is the game reset with
seed `N`; options are arguments of the game (`textarena:GuessTheNumber-v0?max_number=50`). The reward comes at
the end: 1 for a win, less for partial progress, as the game defines it. Success is a reward of 1 without an
invalid move at the end. A game's limit of turns is one of its rules: `terminated`.

Training and test have different seeds, but a game may make the same problem of them: TowerOfHanoi has one.

Some games take long to make a problem, which delays this process's other episodes: Sokoban-v0 0.3 s,
RushHour-v0 a second, Sudoku-v0-hard eight, Sokoban-v0-medium half a minute. The others take milliseconds.

Games for several players are rejected: the package has no opponent that can play them all. Word games need
data of nltk.
"""

import importlib
import io
from contextlib import AbstractContextManager, redirect_stdout
from functools import cache, partial
from typing import TYPE_CHECKING

from envs.adapters.arguments import import_package, parse_name, unknown_target
from envs.adapters.seeds import EpisodeRandom, seeded_split
from envs.errors import ConfigError, MissingDependency
from envs.registry import EnvSpec, no_expert
from envs.requirements.plugins import replace_attribute
from envs.types import Item, StepResult

if TYPE_CHECKING:
    from textarena import Env
    from textarena.envs.registration import EnvSpec as GameEntry

FAMILY = "textarena"
EXAMPLE = "textarena:GuessTheNumber-v0"
SOURCE = "the textarena package: games made from seeds; nothing to download"
PACKAGES = ("textarena",)
SLOW = ("RushHour", "Sokoban", "Sudoku")
"""Games that take tenths of a second or more to make: they would delay a process's other episodes."""

_GAMES = """
    Bandit Blackjack Countdown Crosswords Cryptarithm FifteenPuzzle FrozenLake Game2048
    GuessTheNumber Hangman LightsOut LogicPuzzle Mastermind Minesweeper PegJump RushHour Secretary
    Set Slitherlink Sokoban Sudoku ThreeCardMonte TowerOfHanoi UltimateTexasHoldem WordLadder
    WordSearch Wordle
    """
SINGLE_PLAYER_GAMES = tuple(_GAMES.split())
"""Modules of the games for one player. GuessWho and TwentyQuestions are left out because their game master is
a language model behind a paid service, and Klondike because its module has a syntax error."""

MAX_ACTION_LENGTH = 2000
NLTK_DATA = ("words", "averaged_perceptron_tagger_eng")

INSTRUCTIONS = """\
You play a text game whose rules the first message tells. Every round you are told what happened, and you \
make one move, as the rules want it."""


class TextArenaEnv:
    """One live game."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._bare_env: Env | None = None
        """The game without its wrappers, reused by later episodes: some games take seconds to make."""
        self._env: Env | None = None
        self._random = EpisodeRandom(0)
        self._last_view = ""

    async def reset(self, item: Item) -> str:
        """Start the game with `item`'s seed; returns its rules and first observation."""
        if self._bare_env is None:
            self._bare_env = _make(self._name)
        self._env = self._bare_env
        # Wrappers accumulate observations over episodes: each episode gets new ones.
        for wrapper in _find_entry(self._name).default_wrappers or ():
            self._env = wrapper(self._env)
        self._last_view = ""
        self._random = EpisodeRandom(item.seed)
        with self._random, _silence():
            self._env.reset(num_players=1, seed=item.seed)
        return self._read_news(self._env)

    async def step(self, action: str) -> StepResult:
        """Make a move."""
        if self._env is None or self._bare_env is None:
            raise RuntimeError("step before reset")
        if len(action) > MAX_ACTION_LENGTH:
            return StepResult(f"A move has at most {MAX_ACTION_LENGTH} characters.")
        with self._random, _silence():
            done, _ = self._env.step(action)
        if not done:
            return StepResult(self._read_news(self._env))
        rewards, facts = self._bare_env.close()
        self._env = None
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
        self._env = self._bare_env = None

    def _read_news(self, env: "Env") -> str:
        """The new part of the view, which begins with all that was shown before."""
        with self._random, _silence():
            _, view = env.get_observation()
        news: str = view.removeprefix(self._last_view) or view
        self._last_view = view
        return news.strip()


@cache
def spec(argument: str) -> EnvSpec:
    """The environment `textarena:<argument>`."""
    name = f"{FAMILY}:{argument}"
    _make(name)  # reports errors in the name, its options or the game's data now
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


def _find_entry(name: str) -> "GameEntry":
    """The package's entry for the game; raises `ConfigError` if it cannot be played here."""
    import_package("textarena", family=FAMILY)
    entries = importlib.import_module("textarena.envs.registration").ENV_REGISTRY
    target, _ = parse_name(name)
    if target not in entries:
        targets = [target for target, entry in entries.items() if _is_playable(entry)]
        raise unknown_target(target, family=FAMILY, targets=targets)
    if not _is_playable(entries[target]):
        raise ConfigError(
            f"env {name!r} is rejected; games for one player are {', '.join(SINGLE_PLAYER_GAMES)}"
        )
    return entries[target]


def _is_playable(entry: "GameEntry") -> bool:
    return str(entry.entry_point).split(".")[2] in SINGLE_PLAYER_GAMES


def _make(name: str) -> "Env":
    """The bare game; raises `MissingDependency` if its words are not installed."""
    _find_entry(name)
    target, options = parse_name(name)
    package = importlib.import_module("textarena")
    try:
        with _no_downloads(), _silence(), EpisodeRandom(0):
            env = package.make(target, **options)
    except LookupError as error:
        if "nltk" not in str(error).lower():
            raise
        raise MissingDependency(
            f"env {name!r} needs words; python -m nltk.downloader {' '.join(NLTK_DATA)}"
        ) from None
    except SyntaxError as error:
        raise ConfigError(f"env {name!r}: the game is written for Python 3.12 ({error})") from None
    except TypeError as error:
        raise ConfigError(f"env {name!r}: the game rejects its options: {error}") from None
    while isinstance(env, package.Wrapper):
        env = env.env
    return env


def _silence() -> redirect_stdout[io.StringIO]:
    """Discard the output of games that print."""
    return redirect_stdout(io.StringIO())


def _no_downloads() -> AbstractContextManager[None]:
    """Block the downloads that games make when they are imported; users download words once, knowingly."""
    return replace_attribute(importlib.import_module("nltk"), "download", lambda *_, **__: False)
