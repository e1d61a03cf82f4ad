"""A room's receptacles and objects, from its floor plan: where upstream has an Unity scene, a draw by a seed.

Receptacles are the room's own, the same in each of its games: those whose place the floor plan tells stand
there, the others (a toaster, the burners of a stove) somewhere within reach. Objects are drawn for each
game: of each type that the floor plan tells, one to three, each in a receptacle that may contain it.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from envs.builtin.alfworld.upstream import constants, floor_plan, standing_points

GRID_M = 0.25
"""Of upstream's locations."""
BASINS = {"Sink": "SinkBasin", "Bathtub": "BathtubBasin"}
"""What a floor plan places → what contains things there."""
BURNERS = 4
MAX_OF_A_TYPE = 3
"""As upstream's MAX_NUM_OF_OBJ_INSTANCES."""
LAMP = "DeskLamp"
"""The only lamp here: upstream's floor lamps stand on no receptacle, and such games have no solution."""
LAMP_STANDS = ("Desk", "SideTable", "Dresser", "Shelf", "DiningTable", "CoffeeTable", "TVStand")


@dataclass(frozen=True, slots=True)
class Thing:
    """A receptacle or an object."""

    type: str
    name: str
    """As upstream's simulator names it, e.g. `Mug|+01.84|+01.63|+00.54`."""
    location: str
    """Where one stands to reach it, e.g. `loc|4|1|1|-30`: x and z in steps of 25 cm, quarter turns, tilt in
    degrees."""


@dataclass(frozen=True, slots=True)
class Room:
    """What stands in a room in all of its games."""

    number: int
    """Of its floor plan."""
    receptacles: Sequence[Thing]
    types: Sequence[str]
    """Of objects that it has, sorted."""
    start: str
    """Where the player stands at first: at no receptacle."""

    @property
    def receptacle_types(self) -> list[str]:
        """Sorted."""
        return sorted({one.type for one in self.receptacles})


@dataclass(frozen=True, slots=True)
class Filled:
    """A room with objects."""

    room: Room
    objects: Sequence[Thing]
    inside: Mapping[str, str]
    """Name of an object → name of the receptacle that contains it; what stands on the floor is not here."""

    def of_type(self, kind: str) -> list[Thing]:
        """All objects of one type."""
        return [one for one in self.objects if one.type == kind]


def receptacle_types() -> set[str]:
    """Types of what stands still and contains things."""
    table = constants()
    return set(table.RECEPTACLES) - set(table.MOVABLE_RECEPTACLES)


def pickupable_types() -> set[str]:
    """Types of what some receptacle may contain."""
    holdable = set().union(*constants().VAL_RECEPTACLE_OBJECTS.values())
    return {kind for kind in holdable if not kind.endswith("Sliced")}


def room(number: int) -> Room:
    """The room of a floor plan."""
    chance = random.Random(f"alfworld-mini/room/{number}")
    types, places = floor_plan(number)
    points = standing_points(number)
    receptacle_kinds = receptacle_types()
    receptacles = []
    for name, (x, z, rotation, tilt) in sorted(places.items()):
        kind, *coordinates = name.split("|")[:4]
        kind = BASINS.get(kind, kind)
        if kind in receptacle_kinds:
            thing = Thing(kind, _spelt(kind, coordinates), _location(x, z, rotation, tilt))
            receptacles += [thing] if thing not in receptacles else []
    for kind in sorted(receptacle_kinds & set(types) - {one.type for one in receptacles}):
        for _ in range(BURNERS if kind == "StoveBurner" else 1):
            x, z = chance.choice(points)
            rotation = chance.choice((0, 90, 180, 270))
            ahead = {0: (0, 0.5), 90: (0.5, 0), 180: (0, -0.5), 270: (-0.5, 0)}[rotation]
            name = _make_name(kind, x + ahead[0], chance.uniform(0.1, 1.2), z + ahead[1], others=receptacles)
            receptacles.append(Thing(kind, name, _location(x, z, rotation, 45)))
    reachable = {one.location for one in receptacles}
    starts = [_location(x, z, rotation, 30) for x, z in points for rotation in (0, 90, 180, 270)]
    return Room(
        number, receptacles, sorted(types), chance.choice([one for one in starts if one not in reachable])
    )


def fill(room: Room, chance: random.Random) -> Filled:
    """Draw a game's objects."""
    table = constants()
    pickupable = pickupable_types()
    objects: list[Thing] = []
    inside: dict[str, str] = {}
    for kind in room.types:
        if kind in pickupable:
            fitting = [one for one in room.receptacles if kind in table.VAL_RECEPTACLE_OBJECTS[one.type]]
            count = chance.randint(1, MAX_OF_A_TYPE)
        elif kind == LAMP:
            fitting, count = [one for one in room.receptacles if one.type in LAMP_STANDS], 1
        elif kind in table.OBJECTS and kind not in receptacle_types():
            fitting, count = list(room.receptacles), 1  # stands on the floor beside one
        else:
            continue
        for _ in range(count if fitting else 0):
            receptacle = chance.choice(fitting)
            x, y, z = (float(part) for part in receptacle.name.split("|")[1:4])
            near = [value + chance.uniform(-0.2, 0.2) for value in (x, y, z)]
            thing = Thing(kind, _make_name(kind, *near, others=objects), receptacle.location)
            objects.append(thing)
            if kind in pickupable or kind == LAMP:
                inside[thing.name] = receptacle.name
    return Filled(room, objects, inside)


def _make_name(kind: str, x: float, y: float, z: float, *, others: Sequence[Thing]) -> str:
    name = _spelt(kind, [f"{value:+06.2f}" for value in (x, y, z)])
    if any(one.name == name for one in others):
        return _make_name(kind, x + 0.01, y, z, others=others)
    return name


def _spelt(kind: str, coordinates: Sequence[str]) -> str:
    """A basin is named after what it belongs to, which is how upstream's names in sentences know it."""
    whole = next((whole for whole, basin in BASINS.items() if basin == kind), None)
    return "|".join([kind, *coordinates] if whole is None else [whole, *coordinates, kind])


def _location(x: float, z: float, rotation: float, tilt: float) -> str:
    return f"loc|{round(x / GRID_M)}|{round(z / GRID_M)}|{round(rotation / 90) % 4}|{round(tilt)}"
