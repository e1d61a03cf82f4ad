"""Which environments there are: one visible dict. To add one, write its file and a line here."""

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Literal

from envs.base import Environment
from envs.errors import ConfigError
from envs.types import Item

Isolation = Literal["none", "own", "process"]
"""What an instance is: a plain object of this process, which shares its thread; one that runs a process of
its own (`envs/base.py`, `HasProcess`); or one to which a process must be given (`envs/processes.py`): what
blocks, leaks, crashes, or has state that instances would share."""


@dataclass(frozen=True, slots=True)
class Split:
    """The items of an environment, apart: no problem is in both."""

    train: Sequence[Item]
    test: Sequence[Item]


@dataclass(frozen=True, slots=True)
class ExpertStep:
    """What a scripted expert says in one turn."""

    thought: str
    """Empty where the expert acts without one."""
    action: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvSpec:
    """All that the rest of Wingspan knows of one environment."""

    name: str
    make: Callable[[], Environment]
    """A new instance; cheap, for `reset` does the work."""
    split: Callable[[int], Split]
    """`split(seed)`: train and test items, the same for the same seed on every machine."""
    expert: Callable[[Item], Sequence[ExpertStep]]
    """A solution of an item, for demonstrations and health checks; empty where none is known."""
    instructions: str
    """How to play, for a model that was not made for this environment."""
    packages: tuple[str, ...]
    """Distributions whose versions a run records."""
    isolation: Isolation = "none"
    max_episodes: int | None = None
    """Of one instance before it is replaced, where it leaks; None is for ever."""
    preload: tuple[str, ...] = ()
    """Modules that are imported once for all instances where each has a process."""


_MODULES = {"babyai": "envs.babyai", "sciworld": "envs.sciworld", "textcraft": "envs.textcraft"}
"""Environment name → module with a `SPEC`; imported on first use, so that an environment whose
package is missing does not stop the others."""


def env_names() -> list[str]:
    """All environments there are, whether or not they can be played here."""
    return list(_MODULES)


def get_env(name: str) -> EnvSpec:
    """The environment called `name`; raises `ConfigError` if there is none."""
    if name not in _MODULES:
        near = difflib.get_close_matches(name, _MODULES, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"unknown env {name!r}{hint or ';'} envs/registry.py has: {', '.join(_MODULES)}")
    spec: EnvSpec = import_module(_MODULES[name]).SPEC
    return spec
