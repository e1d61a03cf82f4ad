"""The environment `alfworld`: upstream's games, numbered as in AgentGym. `alfworld:text?actions=false` is the
same without the list of actions in observations, as upstream's own text is.

Item `alfworld_N` for N below 2620 is AgentGym's game N (`agentenv-alfworld/configs/mappings_*.json`,
WooooDyy/AgentGym): 2,420 of the folder `train`, and its 200 test games, of `valid_train`. From 2620 on follow
the games that AgentGym omits: those of `valid_seen`, `valid_unseen` and the rest of `train`, sorted by name.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

from envs.adapters.arguments import parse_name, unknown_target
from envs.builtin.alfworld.data import DATA, ROOT
from envs.builtin.alfworld.env import AlfWorldEnv, write_instructions
from envs.builtin.alfworld.expert import add_thoughts
from envs.builtin.alfworld.games import GAME_FILE, TASK_TYPES, TRAJECTORY_FILE, is_solvable
from envs.builtin.alfworld.items import GameItems
from envs.builtin.alfworld.upstream import MAX_EPISODES, PACKAGES, PRELOAD
from envs.errors import ConfigError
from envs.files import write_atomically
from envs.registry import EnvSpec, ExpertStep, Split
from envs.types import Item

__all__ = ["EXAMPLE", "PACKAGES", "SOURCE", "SPEC", "parse_options", "spec"]

NAME = "alfworld"
EXAMPLE = f"{NAME}:text?actions=false"
SOURCE = DATA.about
VIEW = "text"
"""The only view, which the name of the family has before its options."""
REMEDY = f"wingspan data pull {NAME}"
PARTS = ("valid_seen", "valid_unseen", "train")
"""Folders, in the order in which their games are numbered after AgentGym's."""
INDEX = ".solvable.json"
"""A file in the data set's folder that caches which games upstream solved; reading all takes seconds."""


@cache
def agentgym_games() -> tuple[str, ...]:
    """AgentGym's 2,620 games by number: `<folder>/<task>/<trial>`."""
    lines = Path(__file__).with_name("agentgym_games.txt").read_text().splitlines()
    games: list[str] = []
    for task, *trials in map(str.split, lines):
        games += (f"{task}/trial_T{trial}" for trial in trials)
    return tuple(games)


@cache
def solvable_games() -> Mapping[str, bool]:
    """Every TextWorld game on disk by name, and whether upstream solved it.

    Raises `MissingDependency` if the data set is missing, `ConfigError` for a damaged file.
    """
    root = DATA.prepare()
    game_files = dict(_find_games(root / ROOT))
    key = hashlib.sha256(
        "\n".join(f"{name} {size}" for name, (_, size) in game_files.items()).encode()
    ).hexdigest()
    index = root / INDEX
    try:
        index_data = json.loads(index.read_text())
    except (FileNotFoundError, ValueError):
        index_data = {}
    if index_data.get("key") != key:
        index_data = {
            "key": key,
            "solvable": {n: is_solvable(file, remedy=REMEDY) for n, (file, _) in game_files.items()},
        }
        with suppress(OSError):  # a folder that cannot be written to
            write_atomically(index, json.dumps(index_data))
    solvable: Mapping[str, bool] = index_data["solvable"]
    return solvable


def _find_games(root: Path) -> Iterator[tuple[str, tuple[Path, str]]]:
    """(name, (file, size and time of change)) of the games that TextWorld can play, sorted."""
    for part in sorted(PARTS):
        for task in sorted((root / part).iterdir()):
            if task.name.split("-")[0] not in TASK_TYPES or "Sliced" in task.name:
                continue  # the rules have no actions for movable receptacles and slices
            for trial in sorted(task.iterdir()):
                file = trial / GAME_FILE
                if (trial / TRAJECTORY_FILE).exists() and file.exists():
                    stat = file.stat()
                    yield f"{part}/{task.name}/{trial.name}", (file, f"{stat.st_size} {stat.st_mtime_ns}")


@cache
def list_games() -> tuple[str, ...]:
    """All games by number."""
    first = agentgym_games()
    rest = [name for name, is_solved in solvable_games().items() if is_solved and name not in set(first)]
    return (*first, *sorted(rest, key=lambda name: (PARTS.index(name.partition("/")[0]), name)))


def _find_root() -> Path:
    return DATA.prepare() / ROOT


GAMES = GameItems(  # goes to the processes of games: no lambda in it
    env=NAME,
    list_games=list_games,
    find_root=_find_root,
    parts={part: part for part in PARTS} | {"valid_train": "valid_train"},
    remedy=REMEDY,
)


def _split(games: GameItems, seed: int) -> Split:
    """Training: the 3,553 games of `train` that upstream solved. Test: those of `valid_seen` (140) and
    `valid_unseen` (134), and AgentGym's 200 of `valid_train`; `part` in the metadata distinguishes them. As
    upstream, the split ignores the seed."""
    with SPEC.explain_missing():
        items = games.make_all()
        solvable = solvable_games()
    return Split(
        train=[
            i for i in items if i.metadata["part"] == "train" and solvable.get(list_games()[i.index], False)
        ],
        test=[i for i in items if i.metadata["part"] != "train"],
    )


def expert(item: Item) -> Sequence[ExpertStep]:
    """The walkthrough that upstream stored with the game; empty if there is none, or if it has the planner's
    names of objects, which the game does not know."""
    walkthrough = GAMES.read(item.index).walkthrough
    return [] if any("_bar_" in command for command in walkthrough) else add_thoughts(walkthrough)


def parse_options(argument: str, *, family: str, defaults: Mapping[str, bool]) -> dict[str, bool]:
    """The options of `<family>:text?option=…`, each true or false. Raises `ConfigError` for another name or
    option."""
    name = f"{family}:{argument}"
    view, options = parse_name(name)
    if view != VIEW:
        raise unknown_target(view, family=family, targets=(VIEW,))
    values = dict(defaults)
    for option, value in options.items():
        if option not in defaults:
            raise ConfigError(f"env {name!r}: no option {option}; there is {', '.join(defaults)}")
        if not isinstance(value, bool):
            raise ConfigError(f"env {name!r}: {option} is {value!r}, not true or false")
        values[option] = value
    return values


def _make_spec(name: str, *, lists_actions: bool) -> EnvSpec:
    games = replace(GAMES, env=name)
    return EnvSpec(
        name=name,
        make=partial(AlfWorldEnv, GAMES.read, lists_actions=lists_actions),
        split=partial(_split, games),
        make_item=games.make_item,
        expert=expert,
        instructions=write_instructions(lists_actions=lists_actions),
        packages=PACKAGES,
        requirements=(DATA,),
        isolation="process",
        preload=PRELOAD,
        max_episodes=MAX_EPISODES,
        source=SOURCE,
        has_states=True,
    )


def spec(argument: str) -> EnvSpec:
    """The environment `alfworld:<argument>`."""
    options = parse_options(argument, family=NAME, defaults={"actions": True})
    return _make_spec(f"{NAME}:{argument}", lists_actions=options["actions"])


SPEC = _make_spec(NAME, lists_actions=True)
