"""An expert that knows no more than a player: it looks for what it needs, place by place.

It looks into the places in the order in which actions are listed, opens those that are closed, and takes the
first object of the right type. It remembers what it has seen.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field

from envs.builtin.alfworld.games import TREATMENTS, Game
from envs.errors import ConfigError
from envs.registry import ExpertStep

_FACT = re.compile(r"\((\w+) ([^()]+)\)")

_Steps = Generator[ExpertStep, None, None]


@dataclass(slots=True)
class _Place:
    """A receptacle of the room."""

    name: str
    type: str
    location: str
    is_closed: bool
    objects: list[str] = field(default_factory=list)
    is_known: bool = False
    """Whether the expert has seen what is in it."""


class Searcher:
    """Solves one game, whose state it follows."""

    def __init__(self, game: Game) -> None:
        self._game, self._task = game, game.task
        facts = _read_facts(game.problem)
        names = _name({thing for rows in facts.values() for row in rows for thing in row})
        self._types = {names[thing]: kind.removesuffix("type") for thing, kind in facts["objecttype"]}
        closed = {thing for (thing,) in facts["openable"]}
        locations = {thing: location for thing, location in facts["receptacleatlocation"]}  # noqa: C416
        places = {
            thing: _Place(names[thing], kind.removesuffix("type"), locations[thing], thing in closed)
            for thing, kind in facts["receptacletype"]
        }
        for thing, receptacle in facts["inreceptacle"]:
            places[receptacle].objects.append(names[thing])
        self._places = sorted(places.values(), key=lambda place: place.name)
        self._location = ""

    def solve(self) -> _Steps:
        """Yield every step of the game."""
        task, kind = self._task, self._task.object.lower()
        if task.type == "look_at_obj_in_light":
            yield from self._take(kind)
            yield from self._turn_on(task.lamp.lower())
            return
        target = self._first(task.receptacle.lower())
        if task.type in TREATMENTS:
            verb, receptacle = TREATMENTS[task.type]
            name = yield from self._take(kind)
            yield from self._treat(name, verb, self._first(receptacle.lower()))
            yield from self._put(name, target)
            return
        count = 2 if task.type == "pick_two_obj_and_place" else 1
        while len(self._objects_in(target, kind)) < count:
            name = yield from self._take(kind, target=target)
            yield from self._put(name, target)

    def _first(self, kind: str) -> _Place:
        for place in self._places:
            if place.type == kind:
                return place
        raise ConfigError(f"{self._game.file}: there is no {kind} in this room")

    def _objects_in(self, place: _Place, kind: str) -> list[str]:
        return sorted(name for name in place.objects if self._types[name] == kind)

    def _find(
        self, kind: str, target: _Place | None = None
    ) -> Generator[ExpertStep, None, tuple[str, _Place]]:
        """Look for an object until one is seen that is not in `target`; returns its name and its place."""
        while True:
            for place in self._places:
                objects = self._objects_in(place, kind)
                if place.is_known and objects and place is not target:
                    return objects[0], place
            next_place = next((place for place in self._places if not place.is_known), None)
            if next_place is None:
                raise ConfigError(f"{self._game.file}: there is no {kind} in any place")
            article = "an" if kind[0] in "aeiou" else "a"
            yield from self._look_into(next_place, thought=f"I look for {article} {kind}.")

    def _look_into(self, place: _Place, *, thought: str) -> _Steps:
        if place.location == self._location and not place.is_closed:
            yield ExpertStep(thought=thought, action=f"examine {place.name}")
        yield from self._go(place, thought=thought)
        yield from self._open(place, thought=thought)
        place.is_known = True

    def _go(self, place: _Place, *, thought: str) -> _Steps:
        if place.location != self._location:  # else the game knows no such action
            yield ExpertStep(thought=thought, action=f"go to {place.name}")
            self._location = place.location
            place.is_known |= not place.is_closed

    def _open(self, place: _Place, *, thought: str) -> _Steps:
        if place.is_closed:
            yield ExpertStep(thought=thought, action=f"open {place.name}")
            place.is_closed, place.is_known = False, True

    def _take(self, kind: str, *, target: _Place | None = None) -> Generator[ExpertStep, None, str]:
        name, place = yield from self._find(kind, target)
        yield from self._go(place, thought=f"I take {name}.")
        yield ExpertStep(thought=f"I take {name}.", action=f"take {name} from {place.name}")
        place.objects.remove(name)
        return name

    def _treat(self, name: str, verb: str, place: _Place) -> _Steps:
        thought = f"I {verb} {name}."
        yield from self._go(place, thought=thought)
        yield ExpertStep(thought=thought, action=f"{verb} {name} with {place.name}")

    def _put(self, name: str, place: _Place) -> _Steps:
        thought = f"I move {name} to {place.name}."
        yield from self._go(place, thought=thought)
        yield from self._open(place, thought=thought)
        yield ExpertStep(thought=thought, action=f"move {name} to {place.name}")
        place.objects.append(name)

    def _turn_on(self, kind: str) -> _Steps:
        name, place = yield from self._find(kind)
        yield from self._go(place, thought=f"I turn on {name}.")
        yield ExpertStep(thought=f"I turn on {name}.", action=f"use {name}")


def _read_facts(problem: str) -> Mapping[str, Sequence[Sequence[str]]]:
    """The arguments of the facts that hold at the start, by predicate, in lower case as in the game."""
    initial = problem.lower().partition("(:init")[2].partition("(:goal")[0]
    facts = defaultdict[str, list[list[str]]](list)
    for predicate, arguments in _FACT.findall(initial):
        facts[predicate].append(arguments.split())
    return facts


def _name(things: Collection[str]) -> Mapping[str, str]:
    """The game's names of what PDDL names by coordinates, numbered as by alfworld's `Demangler`."""
    kinds = defaultdict[str, list[str]](list)
    for thing in sorted(things, reverse=True):
        kind, separator, _ = thing.partition("_bar_")
        if separator:  # not a type
            kinds[kind + ("basin" if "basin" in thing else "")].append(thing)
    return {
        thing: f"{kind} {number}"
        for kind, members in kinds.items()
        for number, thing in enumerate(members, start=1)
    }
