"""A game on disk, as ALFWorld keeps it: a folder with `traj_data.json` and `game.tw-pddl`.

    train/pick_and_place_simple-Mug-None-Desk-301/trial_T20190907_174127_043461/
        traj_data.json      what the task is about (of ALFRED's demonstration; most of it is not read)
        game.tw-pddl        JSON: pddl_domain, pddl_problem, grammar, solvable, walkthrough
        initial_state.pddl  the problem alone, which is enough where there is no game.tw-pddl

Owns what is read of these files and how a damaged one is told.
"""

import hashlib
import json
from collections.abc import Sequence
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

ROOMS = ("kitchen", "livingroom", "bedroom", "bathroom")
"""By hundreds of a scene's number, of which 0 and 2 to 4 are used."""

TRAJECTORY, GAME, PROBLEM = "traj_data.json", "game.tw-pddl", "initial_state.pddl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What is to be done, by types of objects, e.g. `Mug`; empty where the task has no such thing."""

    type: str
    """One of `TASK_TYPES`."""
    object: str
    receptacle: str
    lamp: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Game:
    """All that is played."""

    name: str
    """`<task>/<trial>`, the last two folders."""
    file: str
    """Where the problem was read, to be named if it is damaged."""
    task: Task
    domain: str
    problem: str
    grammar: str
    walkthrough: Sequence[str]
    """Commands that win, as far as the file tells any."""


def read_game(folder: Path, *, mend: str) -> Game:
    """The game in `folder`; `mend` is the command that brings it again.

    Raises `MissingDependency` for files that are not there, `ConfigError` for damaged ones: both name the
    file, what was expected, and `mend`.
    """
    file = folder / GAME
    task = _task(_json(folder / TRAJECTORY, mend=mend), folder / TRAJECTORY, mend=mend)
    name = "/".join(folder.parts[-2:])
    if not file.exists() and (folder / PROBLEM).exists():
        return _unsaid(folder / PROBLEM, name=name, task=task)
    recording = _json(file, mend=mend)
    return Game(
        name=name,
        file=str(file),
        task=task,
        domain=_text(recording, "pddl_domain", file, mend=mend),
        problem=_text(recording, "pddl_problem", file, mend=mend),
        grammar=_text(recording, "grammar", file, mend=mend),
        walkthrough=tuple(recording.get("walkthrough") or ()),
    )


def facts_of(task_folder: str) -> dict[str, str]:
    """What the name of a task's folder tells, e.g. of `pick_and_place_simple-Mug-None-Desk-301`: type and
    room."""
    floor_plan = int(task_folder.rpartition("-")[2])
    return {"task": task_folder.partition("-")[0], "room": ROOMS[max(0, floor_plan // 100 - 1)]}


def is_solvable(file: Path, *, mend: str) -> bool:
    """Whether upstream solved the game in a `game.tw-pddl`; raises as `read_game` does."""
    return bool(_json(file, mend=mend).get("solvable"))


def _unsaid(file: Path, *, name: str, task: Task) -> Game:
    """A game of which there is only the problem: with the package's rules and sentences. Of a task's two
    templates upstream draws one at random where it makes such games; here the name of the game decides."""
    variant = hashlib.sha256(name.encode()).digest()[0]
    return Game(
        name=name,
        file=str(file),
        task=task,
        domain=domain(),
        problem=file.read_text(),
        grammar=grammar_of(said(task, variant)),
        walkthrough=(),
    )


def said(task: Task, variant: int) -> str:
    """A task in words, by one of upstream's templates."""
    templates = goal_library()[task.type]["templates"]
    template: str = templates[variant % len(templates)]
    return template.format(
        obj=task.object.lower(), recep=task.receptacle.lower(), toggle=task.lamp.lower(), mrecep=""
    )


def grammar_of(sentence: str) -> str:
    """Upstream's grammar with a task in it."""
    return grammar().replace("UNKNOWN GOAL", sentence)


def _task(trajectory: dict[str, Any], file: Path, *, mend: str) -> Task:
    kind = _text(trajectory, "task_type", file, mend=mend)
    if kind not in TASK_TYPES:
        raise ConfigError(f"{file}: task_type {kind!r} is none of ALFWorld's: {', '.join(TASK_TYPES)}")
    about = trajectory.get("pddl_params")
    if not isinstance(about, dict):
        raise ConfigError(f"{file}: an object 'pddl_params' was expected, not {about!r}; run: {mend}")
    return Task(
        type=kind,
        object=about.get("object_target") or "",
        receptacle=about.get("parent_target") or "",
        lamp=about.get("toggle_target") or "",
    )


def _json(file: Path, *, mend: str) -> dict[str, Any]:
    try:
        read = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise MissingDependency(f"ALFWorld: there is no {file}; run: {mend}") from None
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{file}, line {error.lineno}: a whole JSON object was expected ({error.msg} at character "
            f"{error.pos} of {len(error.doc)}); run: {mend}"
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: UTF-8 was expected ({error}); run: {mend}") from None
    if not isinstance(read, dict):
        raise ConfigError(f"{file}: a JSON object was expected, not a {type(read).__name__}; run: {mend}")
    return read


def _text(values: dict[str, Any], key: str, file: Path, *, mend: str) -> str:
    value = values.get(key)
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{file}: a text {key!r} was expected, not {value!r:.60}; run: {mend}")
    return value
