"""A game on disk, as ALFWorld keeps it: a folder with `traj_data.json` and `game.tw-pddl`.

    train/pick_and_place_simple-Mug-None-Desk-301/trial_T20190907_174127_043461/
        traj_data.json      the task, and ALFRED's demonstration, which is not read
        game.tw-pddl        JSON: pddl_domain, pddl_problem, grammar, solvable, walkthrough
        initial_state.pddl  the problem alone, which is enough if there is no game.tw-pddl

Owns how these files are read and how a damaged one is reported.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envs.builtin.alfworld.upstream import domain, goal_library, grammar
from envs.errors import ConfigError, MissingDependency

TASK_TYPES = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)
"""ALFWorld's six, in its order."""

TREATMENTS = {
    "pick_clean_then_place_in_recep": ("clean", "SinkBasin"),
    "pick_heat_then_place_in_recep": ("heat", "Microwave"),
    "pick_cool_then_place_in_recep": ("cool", "Fridge"),
}
"""Task type → what is done to the object, and the type of the receptacle that does it."""

ROOMS = ("kitchen", "livingroom", "bedroom", "bathroom")
"""Rooms by the hundreds of a scene's number, which are 0 and 2 to 4."""

TRAJECTORY_FILE, GAME_FILE, PROBLEM_FILE = "traj_data.json", "game.tw-pddl", "initial_state.pddl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A task. Objects are given by type, e.g. `Mug`; empty if the task has no such object."""

    type: str
    """One of `TASK_TYPES`."""
    object: str
    receptacle: str
    lamp: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Game:
    """One game: its task, rules, problem and texts."""

    name: str
    """`<task>/<trial>`, the last two folders."""
    file: str
    """The file of the problem, for errors."""
    task: Task
    domain: str
    problem: str
    grammar: str
    walkthrough: Sequence[str]
    """Commands that win; empty if the file has none."""


def read_game(folder: Path, *, remedy: str) -> Game:
    """The game in `folder`.

    Raises `MissingDependency` for missing files, `ConfigError` for damaged ones. Both name the file, what was
    expected, and `remedy`, the command that fetches the games again.
    """
    file = folder / GAME_FILE
    task = _read_task(folder / TRAJECTORY_FILE, remedy=remedy)
    name = "/".join(folder.parts[-2:])
    if not file.exists() and (folder / PROBLEM_FILE).exists():
        return _complete_problem(folder / PROBLEM_FILE, name=name, task=task)
    recording = _read_json(file, remedy=remedy)
    return Game(
        name=name,
        file=str(file),
        task=task,
        domain=_text(recording, "pddl_domain", file, remedy=remedy),
        problem=_text(recording, "pddl_problem", file, remedy=remedy),
        grammar=_text(recording, "grammar", file, remedy=remedy),
        walkthrough=tuple(recording.get("walkthrough") or ()),
    )


def parse_task_folder(task_folder: str) -> dict[str, str]:
    """Task type and room, from a task's folder such as `pick_and_place_simple-Mug-None-Desk-301`."""
    floor_plan = int(task_folder.rpartition("-")[2])
    return {"task": task_folder.partition("-")[0], "room": ROOMS[max(0, floor_plan // 100 - 1)]}


def is_solvable(file: Path, *, remedy: str) -> bool:
    """Whether upstream solved the game in a `game.tw-pddl`; raises as `read_game` does."""
    return bool(_read_json(file, remedy=remedy).get("solvable"))


def _complete_problem(file: Path, *, name: str, task: Task) -> Game:
    """A game of which only the problem is there, with the package's rules and sentences. Upstream chooses
    between a task's two templates at random; here the name of the game decides."""
    variant = hashlib.sha256(name.encode()).digest()[0]
    return Game(
        name=name,
        file=str(file),
        task=task,
        domain=domain(),
        problem=file.read_text(),
        grammar=make_grammar(describe_task(task, variant)),
        walkthrough=(),
    )


def describe_task(task: Task, variant: int) -> str:
    """The task in words, by one of upstream's templates."""
    templates = goal_library()[task.type]["templates"]
    template: str = templates[variant % len(templates)]
    return template.format(
        obj=task.object.lower(), recep=task.receptacle.lower(), toggle=task.lamp.lower(), mrecep=""
    )


def make_grammar(sentence: str) -> str:
    """Upstream's grammar with the task's sentence in it."""
    return grammar().replace("UNKNOWN GOAL", sentence)


def _read_task(file: Path, *, remedy: str) -> Task:
    trajectory = _read_json(file, remedy=remedy)
    kind = _text(trajectory, "task_type", file, remedy=remedy)
    if kind not in TASK_TYPES:
        raise ConfigError(f"{file}: unknown task_type {kind!r}; ALFWorld has {', '.join(TASK_TYPES)}")
    targets = trajectory.get("pddl_params")
    if not isinstance(targets, dict):
        raise ConfigError(f"{file}: an object 'pddl_params' was expected, not {targets!r}; run: {remedy}")
    return Task(
        type=kind,
        object=targets.get("object_target") or "",
        receptacle=targets.get("parent_target") or "",
        lamp=targets.get("toggle_target") or "",
    )


def _read_json(file: Path, *, remedy: str) -> dict[str, Any]:
    try:
        value = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise MissingDependency(f"ALFWorld: there is no {file}; run: {remedy}") from None
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{file}, line {error.lineno}: a whole JSON object was expected ({error.msg} at character "
            f"{error.pos} of {len(error.doc)}); run: {remedy}"
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: UTF-8 was expected ({error}); run: {remedy}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{file}: a JSON object was expected, not a {type(value).__name__}; run: {remedy}")
    return value


def _text(values: Mapping[str, object], key: str, file: Path, *, remedy: str) -> str:
    value = values.get(key)
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{file}: a text {key!r} was expected, not {value!r:.60}; run: {remedy}")
    return value
