"""What the `alfworld` package ships, read where it lies: its logic, its tables, its floor plans.

The package itself is not imported, for that makes a folder in the user's home and brings the learning
agents' code into reach; its tables are plain modules without imports.
"""

import json
from functools import cache
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from envs.errors import MissingDependency
from envs.requirements.detection import pip_install

PACKAGES = ("alfworld", "textworld", "fast-downward-textworld")


@cache
def package_folder() -> Path:
    """Where `alfworld` is installed; raises `MissingDependency`."""
    module_spec = find_spec("alfworld")
    if module_spec is None or not module_spec.submodule_search_locations:
        raise MissingDependency(f"the package alfworld is not installed; {pip_install('alfworld')}")
    return Path(next(iter(module_spec.submodule_search_locations)))


@cache
def domain() -> str:
    """The world's rules, in PDDL."""
    return (package_folder() / "data" / "alfred.pddl").read_text()


@cache
def grammar() -> str:
    """What the world says, in TextWorld's grammar; `UNKNOWN GOAL` stands for the task."""
    return (package_folder() / "data" / "alfred.twl2").read_text()


@cache
def constants() -> Any:
    """`alfworld.gen.constants`: which objects there are, what holds what, which rooms are which."""
    return _module("constants")


@cache
def goal_library() -> Any:
    """`alfworld.gen.goal_library`: each task type's goal in PDDL, and how it is said."""
    return _module("goal_library").gdict


@cache
def floor_plan(number: int) -> tuple[list[str], dict[str, list[float]]]:
    """(types of objects in a room, receptacles with a known place → x, z, rotation and tilt of who stands
    there)"""
    layouts = package_folder() / "gen" / "layouts"
    objects = json.loads((layouts / f"FloorPlan{number}-objects.json").read_text())
    places = json.loads((layouts / f"FloorPlan{number}-openable.json").read_text())
    return objects, places


def standing_points(number: int) -> list[tuple[float, float]]:
    """Where one can stand in a room: x and z, in metres, in order."""
    import numpy

    points = numpy.load(package_folder() / "gen" / "layouts" / f"FloorPlan{number}-layout.npy")
    return sorted((float(x), float(z)) for x, z in points)


def _module(name: str) -> Any:
    spec = spec_from_file_location(f"_alfworld_{name}", package_folder() / "gen" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PRELOAD = ("envs.builtin.alfworld.textworld_light",)
MAX_EPISODES = 200
"""Of one process. It grows by some 6 MB over its first 60 games and by little after that; a process whose
library has translated many games is replaced all the same, which costs hundredths of a second."""
