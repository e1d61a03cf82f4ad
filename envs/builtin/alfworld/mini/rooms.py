"""Places a room's receptacles and objects by its floor plan and a seed, where upstream has a Unity scene.

Receptacles belong to the room and are the same in each of its games: at the place that the floor plan gives
or, if it gives none (a toaster, the burners of a stove), somewhere within reach. Objects are drawn for each
game: one to three of each type in the floor plan, each in a receptacle that may contain it.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from envs.builtin.alfworld.upstream import constants, floor_plan, standing_points

GRID_M = 0.25
"""The unit of upstream's locations."""
BASINS = {"Sink": "SinkBasin", "Bathtub": "BathtubBasin"}
"""Type in a floor plan → type of the receptacle there."""
BURNERS = 4
MAX_OF_A_TYPE = 3
"""The same as upstream's MAX_NUM_OF_OBJ_INSTANCES."""
LAMP = "DeskLamp"
"""The only lamp: upstream's floor lamps stand on no receptacle, so games with them have no solution."""
LAMP_STANDS = ("Desk", "SideTable", "Dresser", "Shelf", "DiningTable", "CoffeeTable", "TVStand")


@dataclass(frozen=True, slots=True)
class Entity:
    """A receptacle or an object."""

    type: str
    name: str
    """The name in upstream's simulator, e.g. `Mug|+01.84|+01.63|+00.54`."""
    location: str
    """Where the agent reaches it, e.g. `loc|4|1|1|-30`: x and z in steps of 25 cm, quarter turns, tilt in
    degrees."""


@dataclass(frozen=True, slots=True)
class Room:
    """What a room has in all of its games."""

    number: int
    """The number of its floor plan."""
    receptacles: Sequence[Entity]
    types: Sequence[str]
    """Types of its objects, sorted."""
    start: str
    """The agent's first location, which is at no receptacle."""

    @property
    def receptacle_types(self) -> list[str]:
        """Types of its receptacles, sorted."""
        return sorted({entity.type for entity in self.receptacles})


@dataclass(frozen=True, slots=True)
class RoomLayout:
    """A room with objects."""

    room: Room
    objects: Sequence[Entity]
    containers: Mapping[str, str]
    """Name of an object → name of its receptacle; objects on the floor are missing."""

    def find_objects(self, kind: str) -> list[Entity]:
        """All objects of one type."""
        return [entity for entity in self.objects if entity.type == kind]


def receptacle_types() -> set[str]:
    """Types of the receptacles that cannot be moved."""
    table = constants()
    return set(table.RECEPTACLES) - set(table.MOVABLE_RECEPTACLES)


def pickupable_types() -> set[str]:
    """Types of the objects that some receptacle may contain."""
    holdable = set().union(*constants().VAL_RECEPTACLE_OBJECTS.values())
    return {kind for kind in holdable if not kind.endswith("Sliced")}


@cache
def make_room(number: int) -> Room:
    """The room of a floor plan."""
    chance = random.Random(f"alfworld-mini/room/{number}")
    types, poses = floor_plan(number)
    points = standing_points(number)
    receptacle_kinds = receptacle_types()
    receptacles = []
    for name, (x, z, rotation, tilt) in sorted(poses.items()):
        kind, *coordinates = name.split("|")[:4]
        kind = BASINS.get(kind, kind)
        if kind in receptacle_kinds:
            entity = Entity(kind, _spell(kind, coordinates), _location(x, z, rotation, tilt))
            receptacles += [entity] if entity not in receptacles else []
    for kind in sorted(receptacle_kinds & set(types) - {entity.type for entity in receptacles}):
        for _ in range(BURNERS if kind == "StoveBurner" else 1):
            x, z = chance.choice(points)
            rotation = chance.choice((0, 90, 180, 270))
            ahead = {0: (0, 0.5), 90: (0.5, 0), 180: (0, -0.5), 270: (-0.5, 0)}[rotation]
            name = _make_name(
                kind, x + ahead[0], chance.uniform(0.1, 1.2), z + ahead[1], existing=receptacles
            )
            receptacles.append(Entity(kind, name, _location(x, z, rotation, 45)))
    reachable = {entity.location for entity in receptacles}
    starts = [_location(x, z, rotation, 30) for x, z in points for rotation in (0, 90, 180, 270)]
    return Room(
        number,
        receptacles,
        sorted(types),
        chance.choice([start for start in starts if start not in reachable]),
    )


def furnish(room: Room, chance: random.Random) -> RoomLayout:
    """Draw a game's objects."""
    table = constants()
    pickupable = pickupable_types()
    objects: list[Entity] = []
    containers: dict[str, str] = {}
    for kind in room.types:
        if kind in pickupable:
            fitting = [
                entity for entity in room.receptacles if kind in table.VAL_RECEPTACLE_OBJECTS[entity.type]
            ]
            count = chance.randint(1, MAX_OF_A_TYPE)
        elif kind == LAMP:
            fitting, count = [entity for entity in room.receptacles if entity.type in LAMP_STANDS], 1
        elif kind in table.OBJECTS and kind not in receptacle_types():
            fitting, count = list(room.receptacles), 1  # stands on the floor next to one
        else:
            continue
        for _ in range(count if fitting else 0):
            receptacle = chance.choice(fitting)
            x, y, z = (float(part) for part in receptacle.name.split("|")[1:4])
            near = [value + chance.uniform(-0.2, 0.2) for value in (x, y, z)]
            entity = Entity(kind, _make_name(kind, *near, existing=objects), receptacle.location)
            objects.append(entity)
            if kind in pickupable or kind == LAMP:
                containers[entity.name] = receptacle.name
    return RoomLayout(room, objects, containers)


def _make_name(kind: str, x: float, y: float, z: float, *, existing: Sequence[Entity]) -> str:
    name = _spell(kind, [f"{value:+06.2f}" for value in (x, y, z)])
    if any(entity.name == name for entity in existing):
        return _make_name(kind, x + 0.01, y, z, existing=existing)
    return name


def _spell(kind: str, coordinates: Sequence[str]) -> str:
    """A basin's name begins with the fixture it belongs to, as upstream's sentences require."""
    whole = next((whole for whole, basin in BASINS.items() if basin == kind), None)
    return "|".join([kind, *coordinates] if whole is None else [whole, *coordinates, kind])


def _location(x: float, z: float, rotation: float, tilt: float) -> str:
    return f"loc|{round(x / GRID_M)}|{round(z / GRID_M)}|{round(rotation / 90) % 4}|{round(tilt)}"
