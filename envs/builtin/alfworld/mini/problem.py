"""A filled room and a task as a problem in PDDL.

The order and the parts are those of upstream's `initial_state.pddl`; so is the way in which names are spelt
in PDDL.
"""

from collections.abc import Iterable

from envs.builtin.alfworld.games import Task
from envs.builtin.alfworld.mini.rooms import Filled, pickupable_types, receptacle_types
from envs.builtin.alfworld.upstream import constants, goal_library

_SPELT = (("-", "_minus_"), ("#", "-"), ("|", "_bar_"), ("+", "_plus_"), (".", "_dot_"), (",", "_comma_"))
"""In this order: upstream writes `#` where PDDL has its own `-`."""


def problem(filled: Filled, task: Task, *, name: str) -> str:
    """The initial state and the goal."""
    facts = "\n".join(_facts(filled))
    goal = goal_library()[task.type]["pddl"].format(obj=task.object, recep=task.receptacle, toggle=task.lamp)
    fact_lines = "\n".join(_list_facts(filled))
    head = f"(define (problem plan_{name})\n(:domain alfred)\n(:objects\nagent1 # agent\n"
    return _spelt(f"\n{head}{fact_lines}\n)\n\n(:init\n{facts}\n)\n{goal}")


def _list_facts(filled: Filled) -> Iterable[str]:
    table, room = constants(), filled.room
    still = receptacle_types()
    kinds = sorted((set(table.OBJECTS_SET) | {thing.type for thing in filled.objects}) - still)
    yield from (f"{kind} # object" for kind in kinds)
    yield from (f"{kind}Type # otype" for kind in kinds)
    yield from (f"{kind}Type # rtype" for kind in sorted(still))
    yield from sorted(f"{thing.name} # object" for thing in filled.objects)
    yield from sorted(f"{thing.name} # receptacle" for thing in room.receptacles)
    yield from (
        f"{thing} # location" for thing in sorted({room.start, *(r.location for r in room.receptacles)})
    )


def _facts(filled: Filled) -> Iterable[str]:
    table, room, objects = constants(), filled.room, filled.objects
    here = {thing.type for thing in objects}
    pickupable, able = pickupable_types(), table.VAL_ACTION_OBJECTS
    yield from (f"(receptacleType {thing.name} {thing.type}Type)" for thing in room.receptacles)
    yield from (f"(objectType {thing.name} {thing.type}Type)" for thing in objects)
    for receptacle in room.receptacle_types:
        contents = sorted(here & set(table.VAL_RECEPTACLE_OBJECTS[receptacle]))
        yield from (f"(canContain {receptacle}Type {kind}Type)" for kind in contents)
    yield from (f"(pickupable {thing.name})" for thing in objects if thing.type in pickupable)
    yield from (
        f"(isReceptacleObject {thing.name})" for thing in objects if thing.type in table.MOVABLE_RECEPTACLES
    )
    yield from (
        f"(openable {thing.name})" for thing in room.receptacles if thing.type in table.OPENABLE_CLASS_LIST
    )
    yield f"(atLocation agent1 {room.start})"
    for predicate in ("cleanable", "heatable", "coolable", "toggleable", "sliceable"):
        yield from (
            f"({predicate} {thing.name})" for thing in objects if thing.type in able[predicate.capitalize()]
        )
    yield from (f"(inReceptacle {what} {where})" for what, where in filled.inside.items())
    yield from (f"(receptacleAtLocation {thing.name} {thing.location})" for thing in room.receptacles)
    yield from (f"(objectAtLocation {thing.name} {thing.location})" for thing in objects)


def _spelt(text: str) -> str:
    for spelling, spelt in _SPELT:
        text = text.replace(spelling, spelt)
    return text
