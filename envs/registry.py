"""Which environments there are: one visible dict of this project's, those of plug-ins, families, whose
environments are named `family:argument`, and a user's own, named `module:SPEC` (docs/new-environment.md)."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import import_module
from itertools import islice
from typing import Any, Literal

from envs.base import Environment
from envs.errors import ConfigError, suggest
from envs.plugins import Registry, is_module, load_object
from envs.requirements.detection import Package, Requirement, require
from envs.types import Item

MAX_EXPERT_TURNS = 1000
"""An expert that needs more turns for an item counts as one that knows no solution of it."""

Isolation = Literal["none", "own", "process"]
"""What an instance is: a plain object of this process, which shares its thread; one that runs a process of
its own (`envs/base.py`, `HasProcess`); or one to which a process must be given
(`envs/runtime/processes.py`): what
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
    action: str | Callable[[str], str]
    """The action, or a function of the last observation that gives it: for what is only known once it is
    seen, such as an element's number. The function raises `LookupError` where it finds nothing to act on."""

    def resolve(self, observation: str) -> str:
        """The action that follows `observation`, the text of the opening or of the last result."""
        return self.action if isinstance(self.action, str) else self.action(observation)


def no_expert(item: Item) -> Sequence[ExpertStep]:
    """For an environment of which no solutions are known."""
    return ()


def accept_any_fields(fields: Mapping[str, Any]) -> None:
    """For an environment that is given no more of a row than its text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvSpec:
    """All that the rest of Wingspan knows of one environment. Its module can be imported, and its spec
    had, without anything that it needs."""

    name: str
    make: Callable[[], Environment]
    """A new instance; cheap, for `reset` does the work."""
    split: Callable[[int], Split]
    """`split(seed)`: train and test items, the same for the same seed on every machine. Raises `ConfigError`
    where there are none (`has_items`)."""
    expert: Callable[[Item], Iterable[ExpertStep]]
    """A solution of an item, for demonstrations and health checks; empty where none is known, `no_expert`
    where none ever is. Callers take `solve`, which is never without an end."""
    instructions: str
    """How to play, for a model that was not made for this environment."""
    packages: tuple[str, ...]
    """Distributions that it needs and whose versions a run records."""
    action_hint: str = "your next action"
    """What stands for an action where an agent states the form of a turn; empty where `instructions`
    themselves say what a turn looks like."""
    make_item: Callable[[int], Item] | None = None
    """The item of a number, as AgentGym numbers them, be it in the split or not; two numbers are never the
    same problem. Raises `ConfigError`, naming the range, where there is none. None: only those of the split
    are known."""
    requirements: tuple[Requirement, ...] = ()
    """What it needs beside its packages: programs, data."""
    source: str = ""
    """One line: where its items and their data come from."""
    isolation: Isolation = "none"
    max_episodes: int | None = None
    """Of one instance before it is replaced, where it leaks; None is for ever."""
    preload: tuple[str, ...] = ()
    """Modules that are imported once for all instances where each has a process."""
    has_items: bool = True
    """Whether it brings its items; else they are a user's data (docs/data.md), in `Item.fields`."""
    has_rewards: bool = True
    """Whether its steps are rewarded; else a pipeline must name a reward."""
    check_fields: Callable[[Mapping[str, Any]], object] = accept_any_fields
    """Held against a row of a user's data before anything starts; raises `ConfigError` for what `reset` would
    refuse."""

    @property
    def needs(self) -> tuple[Requirement, ...]:
        """Packages and all else."""
        return (*map(Package, self.packages), *self.requirements)

    @property
    def has_expert(self) -> bool:
        """Whether solutions of its items may be known."""
        return self.expert is not no_expert

    def solve(self, item: Item) -> Sequence[ExpertStep]:
        """What the expert does in `item`; empty where it knows no solution of at most `MAX_EXPERT_TURNS`."""
        steps = tuple(islice(self.expert(item), MAX_EXPERT_TURNS + 1))
        return steps if len(steps) <= MAX_EXPERT_TURNS else ()

    def check(self) -> None:
        """Raise `MissingDependency`, naming the command, if something that it needs is not here."""
        require(f"environment {self.name!r}", self.needs)

    @contextmanager
    def explain_missing(self) -> Iterator[None]:
        """Within, what fails because something is missing is a `MissingDependency`; costs microseconds."""
        try:
            yield
        except Exception:
            self.check()
            raise


_BUILTIN = {
    "alfworld": "envs.builtin.alfworld.spec",
    "alfworld-mini": "envs.builtin.alfworld.mini.spec",
    "babyai": "envs.builtin.babyai.env",
    "miniwob": "envs.builtin.miniwob.spec",
    "question": "envs.builtin.question.env",
    "sciworld": "envs.builtin.sciworld",
    "searchqa": "envs.builtin.searchqa.spec",
    "searchqa-mini": "envs.builtin.searchqa.mini.spec",
    "textcraft": "envs.builtin.textcraft.env",
    "webarena": "envs.builtin.webarena.spec",
    "webarena-local": "envs.builtin.webarena_local.env",
    "webshop": "envs.builtin.webshop.spec",
    "webshop-mini": "envs.builtin.webshop.mini.spec",
    "workspace": "envs.builtin.question.workspace",
}
"""Name → module with a `SPEC`, imported on first use: a missing package stops its own environment alone."""


_FAMILIES = {
    "gymnasium": "envs.adapters.gymnasium",
    "openenv": "envs.adapters.openenv",
    "reasoning-gym": "envs.adapters.reasoning_gym",
    "textarena": "envs.adapters.textarena",
    "textcraft": "envs.builtin.textcraft.env",
    "webshop": "envs.builtin.webshop.spec",
    "webshop-mini": "envs.builtin.webshop.mini.spec",
}
"""Name before the colon → module with `spec(argument) -> EnvSpec`, for packages of many environments."""


def get_item(spec: EnvSpec, number: int) -> Item:
    """The item `<spec.name>_<number>`; raises `ConfigError`, naming the range, where there is none."""
    if spec.make_item is not None:
        return spec.make_item(number)
    items = _items_of(spec)
    if number not in items:
        raise ConfigError(
            f"{spec.name} has {len(items)} items, {spec.name}_{min(items)} to {spec.name}_{max(items)}; "
            f"there is no '{spec.name}_{number}'"
        )
    return items[number]


@lru_cache(maxsize=16)
def _items_of(spec: EnvSpec) -> Mapping[int, Item]:
    split = spec.split(0)
    return {item.index: item for item in (*split.train, *split.test)}


def _load_builtin(module: str) -> EnvSpec:
    spec: EnvSpec = import_module(module).SPEC
    return spec


def _validate(name: str, value: Any) -> EnvSpec:
    if not isinstance(value, EnvSpec):
        raise ConfigError(
            f"env {name!r} is a {type(value).__name__}; name an EnvSpec (docs/new-environment.md)"
        )
    if value.name != name:
        raise ConfigError(
            f"env {name!r} calls itself {value.name!r}; give its EnvSpec and its entry point the same name"
        )
    return value


_ENVIRONMENTS: Registry[EnvSpec] = Registry(
    "env",
    _BUILTIN,
    group="wingspan.environments",
    origin="envs/registry.py",
    validate=_validate,
    load=_load_builtin,
)


def register_env(spec: EnvSpec) -> None:
    """Make `spec` known by its name in this process; entry points of the group `wingspan.environments` are
    known in every process. Raises `ConfigError` if another environment has this name."""
    _ENVIRONMENTS.register(spec.name, spec)


def env_scope() -> AbstractContextManager[None]:
    """Forget on exit the environments that were registered within; for tests."""
    return _ENVIRONMENTS.scope()


def env_reference(name: str) -> str | None:
    """`module:name` of a plug-in's environment; None for all others."""
    return _ENVIRONMENTS.reference(name)


def list_env_names() -> list[str]:
    """All environments with a name of their own, plug-ins included, whether or not they can be played."""
    return list(_ENVIRONMENTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Environments of one package, each named `family:argument`."""

    name: str
    example: str
    source: str
    """One line: what it has, and where its items come from."""
    packages: tuple[str, ...]


def list_families() -> list[Family]:
    """All families, whether or not their packages are installed."""
    modules = {name: import_module(module) for name, module in _FAMILIES.items()}
    return [
        Family(name=name, example=module.EXAMPLE, source=module.SOURCE, packages=module.PACKAGES)
        for name, module in modules.items()
    ]


def get_env(name: str) -> EnvSpec:
    """The environment called `name`; raises `ConfigError` if there is none, `MissingDependency` if its
    package is not installed."""
    if is_user_env(name):
        return _own_env(name)
    family, colon, argument = name.partition(":")
    if not colon:
        return _ENVIRONMENTS.find(name)
    if family not in _FAMILIES:
        raise ConfigError(
            f"unknown env {name!r}; {suggest(name, (f'{other}:{argument}' for other in _FAMILIES))}"
            f"envs/registry.py has the families {', '.join(_FAMILIES)}; your own is named MODULE:SPEC"
        )
    spec: EnvSpec = import_module(_FAMILIES[family]).spec(argument)
    return spec


def is_user_env(name: str) -> bool:
    """Whether `name` is a user's own environment, `module:SPEC`, of a module that is there."""
    module, colon, _ = name.partition(":")
    return bool(colon) and module not in _FAMILIES and is_module(module.partition(".")[0])


def _own_env(name: str) -> EnvSpec:
    """The `EnvSpec` that `name` names, called `name`, and so are its items: whoever has an item finds its
    environment by it, in any process."""
    spec = load_object(name, key="env")
    if not isinstance(spec, EnvSpec):
        raise ConfigError(
            f"env {name!r} is a {type(spec).__name__}; name an EnvSpec (docs/new-environment.md)"
        )

    def rename(item: Item) -> Item:
        return replace(item, item_id=f"{name}_{item.index}", env=name)

    def split(seed: int) -> Split:
        items = spec.split(seed)
        return Split(train=[*map(rename, items.train)], test=[*map(rename, items.test)])

    def make_item(index: int) -> Item:
        assert spec.make_item is not None
        return rename(spec.make_item(index))

    return replace(spec, name=name, split=split, make_item=spec.make_item and make_item)
