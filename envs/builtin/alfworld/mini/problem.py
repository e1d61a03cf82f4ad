"""Writes a furnished room and a task as a problem in PDDL.

Parts, their order and the spelling of names are those of upstream's `initial_state.pddl`.
"""

from collections.abc import Iterable

from envs.builtin.alfworld.games import Task
from envs.builtin.alfworld.mini.rooms import RoomLayout, pickupable_types, receptacle_types
from envs.builtin.alfworld.upstream import constants, goal_library

_SPELLINGS = (("-", "_minus_"), ("#", "-"), ("|", "_bar_"), ("+", "_plus_"), (".", "_dot_"), (",", "_comma_"))
"""Replaced in this order: `#` stands for PDDL's own `-`, which must stay."""


def write_problem(layout: RoomLayout, task: Task, *, name: str) -> str:
    """The initial state and the goal."""
    facts = "\n".join(_facts(layout))
    goal = goal_library()[task.type]["pddl"].format(obj=task.object, recep=task.receptacle, toggle=task.lamp)
    fact_lines = "\n".join(_list_facts(layout))
    head = f"(define (problem plan_{name})\n(:domain alfred)\n(:objects\nagent1 # agent\n"
    text = f"\n{head}{fact_lines}\n)\n\n(:init\n{facts}\n)\n{goal}"
    for sign, replacement in _SPELLINGS:
        text = text.replace(sign, replacement)
    return text


def _list_facts(layout: RoomLayout) -> Iterable[str]:
    table, room = constants(), layout.room
    still = receptacle_types()
    kinds = sorted((set(table.OBJECTS_SET) | {entity.type for entity in layout.objects}) - still)
    yield from (f"{kind} # object" for kind in kinds)
    yield from (f"{kind}Type # otype" for kind in kinds)
    yield from (f"{kind}Type # rtype" for kind in sorted(still))
    yield from sorted(f"{entity.name} # object" for entity in layout.objects)
    yield from sorted(f"{entity.name} # receptacle" for entity in room.receptacles)
    yield from (
        f"{entity} # location" for entity in sorted({room.start, *(r.location for r in room.receptacles)})
    )


def _facts(layout: RoomLayout) -> Iterable[str]:
    table, room, objects = constants(), layout.room, layout.objects
    here = {entity.type for entity in objects}
    pickupable, able = pickupable_types(), table.VAL_ACTION_OBJECTS
    yield from (f"(receptacleType {entity.name} {entity.type}Type)" for entity in room.receptacles)
    yield from (f"(objectType {entity.name} {entity.type}Type)" for entity in objects)
    for receptacle in room.receptacle_types:
        contents = sorted(here & set(table.VAL_RECEPTACLE_OBJECTS[receptacle]))
        yield from (f"(canContain {receptacle}Type {kind}Type)" for kind in contents)
    yield from (f"(pickupable {entity.name})" for entity in objects if entity.type in pickupable)
    yield from (
        f"(isReceptacleObject {entity.name})"
        for entity in objects
        if entity.type in table.MOVABLE_RECEPTACLES
    )
    yield from (
        f"(openable {entity.name})" for entity in room.receptacles if entity.type in table.OPENABLE_CLASS_LIST
    )
    yield f"(atLocation agent1 {room.start})"
    for predicate in ("cleanable", "heatable", "coolable", "toggleable", "sliceable"):
        yield from (
            f"({predicate} {entity.name})"
            for entity in objects
            if entity.type in able[predicate.capitalize()]
        )
    yield from (f"(inReceptacle {name} {receptacle})" for name, receptacle in layout.containers.items())
    yield from (f"(receptacleAtLocation {entity.name} {entity.location})" for entity in room.receptacles)
    yield from (f"(objectAtLocation {entity.name} {entity.location})" for entity in objects)
