"""The environment `alfworld`: upstream's games, numbered as in AgentGym.

Item `alfworld_N` for N below 2620 is AgentGym's game N (`agentenv-alfworld/configs/mappings_*.json`,
WooooDyy/AgentGym): 2,420 of the folder `train`, 200 of `valid_train`, its test games. From 2620 on come the
games that AgentGym leaves out: those of `valid_seen`, `valid_unseen` and the rest of `train`, sorted by
name.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from envs.builtin.alfworld.data import GAMES, ROOT
from envs.builtin.alfworld.env import INSTRUCTIONS, maker
from envs.builtin.alfworld.expert import add_thoughts
from envs.builtin.alfworld.games import GAME, TASK_TYPES, TRAJECTORY, Game, facts_of, is_solvable, read_game
from envs.builtin.alfworld.upstream import MAX_EPISODES, PACKAGES, PRELOAD
from envs.errors import unknown_item
from envs.files import write_atomically
from envs.registry import EnvSpec, ExpertStep, Split
from envs.types import Item

NAME = "alfworld"
MEND = f"wingspan data pull {NAME}"
OTHERS = ("valid_seen", "valid_unseen", "train")
"""Folders, in the order of their numbers after AgentGym's."""
INDEX = ".solvable.json"
"""In the data set's folder: which games upstream solved, as their files say, which takes seconds to read."""


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
    """Every game for TextWorld that is on disk, by name, and whether upstream solved it.

    Raises `MissingDependency` where there are none, `ConfigError` for a damaged file.
    """
    root = GAMES.prepare()
    game_files = dict(_list_games(root / ROOT))
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
            "solvable": {n: is_solvable(file, mend=MEND) for n, (file, _) in game_files.items()},
        }
        write_atomically(index, json.dumps(index_data))
    solvable: Mapping[str, bool] = index_data["solvable"]
    return solvable


def _list_games(root: Path) -> Iterator[tuple[str, tuple[Path, str]]]:
    """(name, (file, size and time of change)) of the games that TextWorld can play, sorted."""
    for part in sorted(set(OTHERS)):
        for task in sorted((root / part).iterdir()):
            if task.name.split("-")[0] not in TASK_TYPES or "Sliced" in task.name:
                continue  # movable receptacles and slices: the rules have no such actions
            for trial in sorted(task.iterdir()):
                file = trial / GAME
                if (trial / TRAJECTORY).exists() and file.exists():
                    there = os.stat(file)
                    yield f"{part}/{task.name}/{trial.name}", (file, f"{there.st_size} {there.st_mtime_ns}")


@cache
def names() -> tuple[str, ...]:
    """All games by number."""
    known = agentgym_games()
    rest = [name for name, solved in solvable_games().items() if solved and name not in set(known)]
    return (*known, *sorted(rest, key=lambda name: (OTHERS.index(name.partition("/")[0]), name)))


def make_item(index: int) -> Item:
    """The item `alfworld_<index>`."""
    if not 0 <= index < len(names()):
        raise unknown_item(NAME, index, count=len(names()))
    part, task, _ = names()[index].split("/")
    return Item(item_id=f"{NAME}_{index}", env=NAME, metadata={**facts_of(task), "part": part})


def read(index: int) -> Game:
    """The game of an item."""
    make_item(index)
    return read_game(GAMES.prepare() / ROOT / names()[index], mend=MEND)


def split(seed: int) -> Split:
    """Training: the games of `train` that upstream solved, 3,553 of them. Test: those of `valid_seen` (140)
    and `valid_unseen` (134), and AgentGym's 200 of `valid_train`; metadata's `part` tells them apart. It is
    the same for every seed, as it is upstream."""
    with SPEC.explain_missing():
        items = [make_item(index) for index in range(len(names()))]
        solved = solvable_games()
    return Split(
        train=[i for i in items if i.metadata["part"] == "train" and solved.get(names()[i.index], False)],
        test=[i for i in items if i.metadata["part"] != "train"],
    )


def expert(item: Item) -> Sequence[ExpertStep]:
    """The walkthrough that upstream stored with the game; empty where it stored none, or one in the names
    of the planner, which the game does not know."""
    walkthrough = read(item.index).walkthrough
    return [] if any("_bar_" in command for command in walkthrough) else add_thoughts(walkthrough)


SPEC = EnvSpec(
    name=NAME,
    make=maker(read),
    split=split,
    make_item=make_item,
    expert=expert,
    instructions=INSTRUCTIONS,
    packages=PACKAGES,
    requirements=(GAMES,),
    isolation="process",
    preload=PRELOAD,
    max_episodes=MAX_EPISODES,
    source=GAMES.about,
)
