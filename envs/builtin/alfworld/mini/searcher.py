"""An expert that knows no more than a player: it looks for what it needs, place by place.

It looks into the places in the order in which the opening names them, opens those that are closed, and takes
the first object of the right type. It remembers what it has seen.

Its thoughts suit a small model, which is good at continuing a text that it has begun to repeat. A search
quotes the opening from the last place on (`bed 1, a cabinet 4`), so that the next place is read, not known;
and what is looked for comes right before what decides, its number where one is seen (`cd 1`).
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

    def __init__(self, game: Game, *, reads_actions: bool = True) -> None:
        """`reads_actions`: whether observations list the actions. If not, the expert cannot know which places
        are reached from where it stands: it tries to go there, and examines the place when nothing happens.
        """
        self._game, self._task, self._reads_actions = game, game.task, reads_actions
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
        self._places = sorted(places.values(), key=_order_in_opening)
        self._location = ""
        self._here: _Place | None = None
        """The place that was gone to or examined last."""
        self._last: _Place | None = None
        """The place that the search reached last."""

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
        for place in reversed(self._places):  # number 1 is the last of its type
            if place.type == kind:
                return place
        raise ConfigError(f"{self._game.file}: there is no {kind} in this room")

    def _objects_in(self, place: _Place, kind: str) -> list[str]:
        """In the order in which observations name them, the last number first."""
        names = (name for name in place.objects if self._types[name] == kind)
        return sorted(names, key=_number, reverse=True)

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
            yield from self._look_into(next_place, kind)

    def _look_into(self, place: _Place, kind: str) -> _Steps:
        thought = f"I look for {kind}: {self._quote(place)}"
        if place.location == self._location and self._reads_actions and not place.is_closed:
            yield ExpertStep(thought=thought, action=f"examine {place.name}")
        yield from self._go(place, thought=thought)
        yield from self._open(place, thought=f"I look for {kind} in {place.name}")
        place.is_known, self._last = True, place

    def _quote(self, place: _Place) -> str:
        """The opening's words from the place that was reached last to `place`."""
        if self._last is None:
            return f"you see a {place.name}"
        joint = ", and" if place is self._places[-1] else ","
        return f"{self._last.name}{joint} a {place.name}"

    def _go(self, place: _Place, *, thought: str) -> _Steps:
        """Be where `place` is reached."""
        if place is self._here:
            return
        is_reached = place.location == self._location  # the game then refuses to go there
        if not is_reached or not self._reads_actions:
            yield ExpertStep(thought=thought, action=f"go to {place.name}")
        if is_reached and not self._reads_actions:
            yield ExpertStep(thought=thought, action=f"examine {place.name}")
        self._here, self._location = place, place.location
        place.is_known |= not place.is_closed

    def _open(self, place: _Place, *, thought: str) -> _Steps:
        if place.is_closed:
            yield ExpertStep(thought=thought, action=f"open {place.name}")
            place.is_closed, place.is_known = False, True

    def _take(self, kind: str, *, target: _Place | None = None) -> Generator[ExpertStep, None, str]:
        name, place = yield from self._find(kind, target)
        thought = f"I look for {name} in {place.name}"
        yield from self._go(place, thought=thought)
        yield ExpertStep(thought=thought, action=f"take {name} from {place.name}")
        place.objects.remove(name)
        return name

    def _treat(self, name: str, verb: str, place: _Place) -> _Steps:
        thought = f"I {verb} {name} with {place.name}"
        yield from self._go(place, thought=thought)
        yield ExpertStep(thought=thought, action=f"{verb} {name} with {place.name}")

    def _put(self, name: str, place: _Place) -> _Steps:
        thought = f"I move {name} to {place.name}"
        yield from self._go(place, thought=thought)
        yield from self._open(place, thought=thought)
        yield ExpertStep(thought=thought, action=f"move {name} to {place.name}")
        place.objects.append(name)

    def _turn_on(self, kind: str) -> _Steps:
        name, place = yield from self._find(kind)
        yield from self._go(place, thought=f"I look for {name} in {place.name}")
        yield ExpertStep(thought=f"I turn on {name}", action=f"use {name}")


def _order_in_opening(place: _Place) -> tuple[str, int]:
    """The opening names the types by the alphabet, and the numbers of each from the last to the first."""
    return place.name.split()[0], -_number(place.name)


def _number(name: str) -> int:
    """The number in a name such as `drawer 2`."""
    return int(name.split()[1])


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
