"""Which environments there are: one visible dict. To add one, write its file and a line here."""

import difflib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module

from envs.base import Environment
from envs.errors import ConfigError
from envs.requirements import Package, Requirement, require
from envs.types import Item


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
    """All that the rest of Wingspan knows of one environment. Its module can be imported, and its spec
    had, without anything that it needs."""

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
    """Distributions that it needs and whose versions a run records."""
    requirements: tuple[Requirement, ...] = ()
    """What it needs beside its packages: programs, data."""
    source: str = ""
    """One line: where its items and their data come from."""

    @property
    def needs(self) -> tuple[Requirement, ...]:
        """Packages and all else."""
        return (*map(Package, self.packages), *self.requirements)

    def check(self) -> None:
        """Raise `MissingDependency`, naming the command, if something that it needs is not here."""
        require(f"environment {self.name!r}", self.needs)

    @contextmanager
    def using(self) -> Iterator[None]:
        """Within, what fails because something is missing is a `MissingDependency`; costs microseconds."""
        try:
            yield
        except Exception:
            self.check()
            raise


_MODULES = {"babyai": "envs.babyai", "sciworld": "envs.sciworld", "textcraft": "envs.textcraft"}
"""Environment name → module with a `SPEC`; imported on first use, so that an environment whose
package is missing does not stop the others."""


def env_names() -> list[str]:
    """All environments' names."""
    return list(_MODULES)


def get_env(name: str) -> EnvSpec:
    """The environment called `name`; raises `ConfigError` if there is none."""
    if name not in _MODULES:
        near = difflib.get_close_matches(name, _MODULES, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"unknown env {name!r}{hint or ';'} envs/registry.py has: {', '.join(_MODULES)}")
    spec: EnvSpec = import_module(_MODULES[name]).SPEC
    return spec
