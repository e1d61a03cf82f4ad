"""Reads the files of the `alfworld` package: its logic, tables and floor plans.

The package itself is not imported: that would create a folder in the user's home and load the code of its
learning agents. Its tables are plain modules without imports.
"""

import json
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from envs.errors import MissingDependency
from envs.requirements.detection import pip_install

PACKAGES = ("alfworld", "textworld", "fast-downward-textworld")


@cache
def package_folder() -> Path:
    """The folder of the installed `alfworld`; raises `MissingDependency`."""
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
    """The world's texts, in TextWorld's grammar; `UNKNOWN GOAL` stands for the task."""
    return (package_folder() / "data" / "alfred.twl2").read_text()


@cache
def constants() -> ModuleType:
    """`alfworld.gen.constants`: objects, the contents that receptacles may have, scenes of each split."""
    return _module("constants")


@cache
def goal_library() -> Mapping[str, Any]:
    """`alfworld.gen.goal_library`: the goal of each task type in PDDL, and templates of its sentence."""
    gdict: Mapping[str, Any] = _module("goal_library").gdict
    return gdict


@cache
def floor_plan(number: int) -> tuple[list[str], dict[str, list[float]]]:
    """(types of the objects in a room, receptacles with a known place → x and z in metres, rotation and tilt
    in degrees of an agent in front)"""
    layouts = package_folder() / "gen" / "layouts"
    objects = json.loads((layouts / f"FloorPlan{number}-objects.json").read_text())
    poses = json.loads((layouts / f"FloorPlan{number}-openable.json").read_text())
    return objects, poses


def standing_points(number: int) -> list[tuple[float, float]]:
    """The points of a room where the agent can stand: x and z in metres, sorted."""
    import numpy

    points = numpy.load(package_folder() / "gen" / "layouts" / f"FloorPlan{number}-layout.npy")
    return sorted((float(x), float(z)) for x, z in points)


def _module(name: str) -> ModuleType:
    spec = spec_from_file_location(f"_alfworld_{name}", package_folder() / "gen" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PRELOAD = ("envs.builtin.alfworld.textworld_light",)
MAX_EPISODES = 200
"""The most episodes of one process. A process grows by some 6 MB over its first 60 games and by little after
that. To be safe, a process whose library has translated many games is replaced, which costs hundredths of a
second."""
