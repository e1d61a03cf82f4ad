"""Which games there are: for each number a room, its objects and a task that is not yet done.

Rooms are upstream's split of its scenes: `train` and `seen` games are in its training scenes, `unseen` ones
in its test scenes, which no other game is in. A `seen` game has a task that its room has in no training
game.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from envs.builtin.alfworld.games import TASK_TYPES, Task, grammar_of, said
from envs.builtin.alfworld.mini.problem import problem
from envs.builtin.alfworld.mini.rooms import LAMP, Filled, Room, fill, pickupable_types, room
from envs.builtin.alfworld.upstream import constants

GAMES = {"train": 150, "seen": 30, "unseen": 30}
"""Games of each part, of each task type a sixth; numbered in this order."""

FOLDERS = {"train": "train", "seen": "valid_seen", "unseen": "valid_unseen"}
"""As upstream calls them on disk."""

LARGEST = 57_000
"""Characters of a problem: the planner searches a larger house for minutes, and it takes seconds to start."""

_STATIONS = {
    "pick_clean_then_place_in_recep": ("SinkBasin", "Cleanable"),
    "pick_heat_then_place_in_recep": ("Microwave", "Heatable"),
    "pick_cool_then_place_in_recep": ("Fridge", "Coolable"),
}
"""Where it is done, and to what."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A game before the planner has seen it."""

    number: int
    part: str
    task: Task
    filled: Filled
    sentence: str

    @property
    def trial(self) -> str:
        """Name of its folder, the last part."""
        return f"trial_mini_{self.number:04d}"

    @property
    def folder(self) -> str:
        """Within the data set, as upstream names them: task, object, movable receptacle, place or lamp,
        scene."""
        task = self.task
        target = task.lamp or task.receptacle
        name = f"{task.type}-{task.object}-None-{target}-{self.filled.room.number}"
        return f"{FOLDERS[self.part]}/{name}/{self.trial}"

    @property
    def problem(self) -> str:
        """In PDDL."""
        return problem(self.filled, self.task, name=self.trial)

    @property
    def grammar(self) -> str:
        """Upstream's, with the task in it."""
        return grammar_of(self.sentence)


def drafts() -> Iterator[Draft]:
    """All games, in order; takes seconds."""
    used_tasks: set[tuple[Task, int]] = set()
    number = 0
    for part, count in GAMES.items():
        for turn in range(count):
            draft = _draft(number, part, TASK_TYPES[turn % len(TASK_TYPES)], used_tasks)
            used_tasks.add((draft.task, draft.filled.room.number))
            yield draft
            number += 1


def _draft(number: int, part: str, kind: str, used_tasks: set[tuple[Task, int]]) -> Draft:
    chance = random.Random(f"alfworld-mini/game/{number}")
    rooms = _rooms(kind, unseen=part == "unseen")
    while True:
        filled = fill(room(chance.choice(rooms)), chance)
        tasks = [task for task in _tasks(kind, filled) if (task, filled.room.number) not in used_tasks]
        if tasks:
            task = chance.choice(tasks)
            draft = Draft(number, part, task, filled, said(task, chance.randrange(2)))
            if len(draft.problem) <= LARGEST:
                return draft


@cache
def _rooms(kind: str, *, unseen: bool) -> Sequence[int]:
    """Floor plans in which a type of task can be set."""
    table = constants()
    numbers = table.TEST_SCENE_NUMBERS if unseen else table.TRAIN_SCENE_NUMBERS
    return [number for number in sorted(numbers) if _has_what_it_takes(kind, room(number))]


def _has_what_it_takes(kind: str, room: Room) -> bool:
    if kind == "look_at_obj_in_light":
        return LAMP in room.types
    return kind not in _STATIONS or _STATIONS[kind][0] in room.receptacle_types


def _tasks(kind: str, filled: Filled) -> list[Task]:
    """All tasks of a type that a filled room allows and that are not done from the start."""
    able = constants().VAL_ACTION_OBJECTS
    objects = sorted({thing.type for thing in filled.objects} & pickupable_types())
    if kind == "look_at_obj_in_light":
        lit = bool(filled.of_type(LAMP))
        return [Task(type=kind, object=thing, receptacle="", lamp=LAMP) for thing in objects if lit]
    if kind in _STATIONS:
        objects = [thing for thing in objects if thing in able[_STATIONS[kind][1]]]
    if kind == "pick_two_obj_and_place":
        objects = [thing for thing in objects if len(filled.of_type(thing)) > 1]
    holds = constants().VAL_RECEPTACLE_OBJECTS
    return [
        Task(type=kind, object=thing, receptacle=receptacle, lamp="")
        for thing in objects
        for receptacle in filled.room.receptacle_types
        if thing in holds[receptacle] and not _is_done(kind, thing, receptacle, filled)
    ]


def _is_done(kind: str, what: str, receptacle: str, filled: Filled) -> bool:
    kinds = {thing.name: thing.type for thing in filled.room.receptacles}
    places = [filled.inside[thing.name] for thing in filled.of_type(what) if thing.name in filled.inside]
    there = [target for target in places if kinds[target] == receptacle]
    if kind in _STATIONS:
        return False
    if kind == "pick_two_obj_and_place":
        return any(there.count(target) > 1 for target in there)
    return bool(there)
