"""Draws the games: for each number a room, its objects and a task that is not done at the start.

Rooms follow upstream's split of its scenes: `train` and `seen` games use its training scenes, only `unseen`
games its test scenes. The task of a `seen` game occurs in no training game of its room.
"""

import random
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from envs.builtin.alfworld.games import TASK_TYPES, TREATMENTS, Task, describe_task, make_grammar
from envs.builtin.alfworld.mini.problem import write_problem
from envs.builtin.alfworld.mini.rooms import LAMP, Room, RoomLayout, furnish, make_room, pickupable_types
from envs.builtin.alfworld.upstream import constants

COUNTS = {"train": 150, "seen": 30, "unseen": 30}
"""Number of games of each part, a sixth of each task type; numbered in this order."""

FOLDERS = {"train": "train", "seen": "valid_seen", "unseen": "valid_unseen", "more": "more"}
"""Part → upstream's folder."""

MAX_PROBLEM_LENGTH = 57_000
"""Characters; the planner searches a larger house for minutes, and the game takes seconds to start."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A game without a plan."""

    number: int
    part: str
    task: Task
    layout: RoomLayout
    sentence: str

    @property
    def trial(self) -> str:
        """The last part of its folder."""
        return f"trial_mini_{self.number:04d}"

    @property
    def folder(self) -> str:
        """The game's folder in the data set, named as upstream's: task, object, movable receptacle, target,
        scene."""
        task = self.task
        target = task.lamp or task.receptacle
        name = f"{task.type}-{task.object}-None-{target}-{self.layout.room.number}"
        return f"{FOLDERS[self.part]}/{name}/{self.trial}"

    @property
    def problem(self) -> str:
        """The problem in PDDL."""
        return write_problem(self.layout, self.task, name=self.trial)

    @property
    def grammar(self) -> str:
        """Upstream's, with the task's sentence in it."""
        return make_grammar(self.sentence)


def drafts() -> Iterator[Draft]:
    """All games, in order; takes seconds."""
    used_tasks: set[tuple[Task, int]] = set()
    number = 0
    for part, count in COUNTS.items():
        for turn in range(count):
            draft = draw(number, part, TASK_TYPES[turn % len(TASK_TYPES)], used_tasks)
            used_tasks.add((draft.task, draft.layout.room.number))
            yield draft
            number += 1


def draw(number: int, part: str, kind: str, used_tasks: Collection[tuple[Task, int]]) -> Draft:
    """Draw game `number` with a task of type `kind` that `used_tasks` does not have in the same room."""
    chance = random.Random(f"alfworld-mini/game/{number}")
    rooms = _rooms(kind, unseen=part == "unseen")
    while True:
        layout = furnish(make_room(chance.choice(rooms)), chance)
        tasks = [task for task in _tasks(kind, layout) if (task, layout.room.number) not in used_tasks]
        if tasks:
            task = chance.choice(tasks)
            draft = Draft(number, part, task, layout, describe_task(task, chance.randrange(2)))
            if len(draft.problem) <= MAX_PROBLEM_LENGTH:
                return draft


@cache
def _rooms(kind: str, *, unseen: bool) -> Sequence[int]:
    """Floor plans that support a type of task."""
    table = constants()
    numbers = table.TEST_SCENE_NUMBERS if unseen else table.TRAIN_SCENE_NUMBERS
    return [number for number in sorted(numbers) if _supports(kind, make_room(number))]


def _supports(kind: str, room: Room) -> bool:
    if kind == "look_at_obj_in_light":
        return LAMP in room.types
    return kind not in TREATMENTS or TREATMENTS[kind][1] in room.receptacle_types


def _tasks(kind: str, layout: RoomLayout) -> list[Task]:
    """All tasks of a type that the room allows and that are not done at the start."""
    able = constants().VAL_ACTION_OBJECTS
    objects = sorted({entity.type for entity in layout.objects} & pickupable_types())
    if kind == "look_at_obj_in_light":
        has_lamp = bool(layout.find_objects(LAMP))
        return [Task(type=kind, object=target, receptacle="", lamp=LAMP) for target in objects if has_lamp]
    if kind in TREATMENTS:
        verb, _ = TREATMENTS[kind]
        objects = [target for target in objects if target in able[f"{verb.capitalize()}able"]]
    if kind == "pick_two_obj_and_place":
        objects = [target for target in objects if len(layout.find_objects(target)) > 1]
    holds = constants().VAL_RECEPTACLE_OBJECTS
    return [
        Task(type=kind, object=target, receptacle=receptacle, lamp="")
        for target in objects
        for receptacle in layout.room.receptacle_types
        if target in holds[receptacle] and not _is_done(kind, target, receptacle, layout)
    ]


def _is_done(kind: str, target: str, receptacle: str, layout: RoomLayout) -> bool:
    if kind in TREATMENTS:
        return False
    kinds = {entity.name: entity.type for entity in layout.room.receptacles}
    containers = [layout.containers.get(entity.name, "") for entity in layout.find_objects(target)]
    counts = Counter(name for name in containers if kinds.get(name) == receptacle)
    return max(counts.values(), default=0) >= (2 if kind == "pick_two_obj_and_place" else 1)
