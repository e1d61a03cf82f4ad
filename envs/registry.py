"""The environments: built-in ones and plug-ins by name, families by `family:argument`, and a user's own by
`module:SPEC` (docs/new-environment.md)."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import import_module
from inspect import isclass
from itertools import islice
from typing import Any, Literal, Protocol, cast

from envs.errors import ConfigError, boundary, show, suggest
from envs.requirements.detection import Package, Requirement, require
from envs.requirements.plugins import Registry, is_module, load_object
from envs.types import Environment, Item

MAX_EXPERT_TURNS = 1000
"""An item for which an expert needs more turns counts as one without a known solution."""

Isolation = Literal["none", "own", "process"]
"""Where an instance lives. `none`: in this process and its thread. `own`: it starts its own process
(`envs/types.py`, `HasProcess`). `process`: the pool gives it a process (`envs/runtime/processes.py`), because
it blocks, leaks, crashes, or keeps state that instances would share."""


@dataclass(frozen=True, slots=True)
class Split:
    """The items of an environment; no problem is in both halves, and none is twice in one."""

    train: Sequence[Item]
    test: Sequence[Item]


@dataclass(frozen=True, slots=True)
class ExpertStep:
    """One turn of a scripted expert."""

    thought: str
    """May be empty."""
    action: str | Callable[[str], str]
    """The action, or a function that computes it from the last observation, e.g. an element's number. The
    function raises `LookupError` if the observation offers nothing to act on."""

    def resolve(self, observation: str) -> str:
        """Return the action that follows `observation`, the text of the last observation.

        Raises `LookupError`, `WingspanError`, and `ConfigError` for anything else that the function raises.
        """
        if isinstance(self.action, str):
            return self.action
        with boundary(ConfigError, "the expert's action", passes=(LookupError,)):
            return self.action(observation)


def no_expert(item: Item) -> Sequence[ExpertStep]:
    """The expert of an environment without known solutions."""
    return ()


def accept_any_fields(fields: Mapping[str, object]) -> None:
    """The `check_fields` of an environment that reads no field of a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvSpec:
    """Everything that Wingspan knows about one environment.

    Importing an environment's module and reading its spec needs none of its packages.
    """

    name: str
    make: Callable[[], Environment]
    """Makes an instance; cheap, because `reset` does the work."""
    split: Callable[[int], Split]
    """`split(seed)` returns train and test items, the same on every machine. Raises `ConfigError` if the
    environment has no items (`has_items`). Call `make_split`, which checks it."""
    expert: Callable[[Item], Iterable[ExpertStep]]
    """A solution of an item, for demonstrations and health checks; empty if none is known, `no_expert` if the
    environment never has one. Call `solve`, which bounds its length."""
    instructions: str
    """How to act, for a model that was not trained on this environment."""
    packages: tuple[str, ...]
    """Required distributions; a run records their versions."""
    action_hint: str = "your next action"
    """Stands for an action where an agent's format describes a turn; empty if `instructions` describe it."""
    make_item: Callable[[int], Item] | None = None
    """Makes the item with a number of AgentGym's numbering, whether or not it is in the split; no two numbers
    are the same problem. Raises `ConfigError`, which names the range. None: only the split's items exist."""
    requirements: tuple[Requirement, ...] = ()
    """Required programs and data, besides the packages."""
    source: str = ""
    """One line: where the items and their data come from."""
    isolation: Isolation = "none"
    max_episodes: int | None = None
    """Episodes after which an instance that leaks is replaced; None: never."""
    preload: tuple[str, ...] = ()
    """Modules imported once for all instances if each has its own process."""
    is_shared: bool = False
    """Whether instances act on servers outside of the run, which serve a limited number (docs/prefect.md)."""
    has_items: bool = True
    """False if the items are a user's data (docs/data.md), in `Item.fields`."""
    has_rewards: bool = True
    """False if steps carry no reward, so that a pipeline must name one."""
    has_states: bool = False
    """Whether instances have `state_key` (`envs/types.py`, `HasState`)."""
    check_fields: Callable[[Mapping[str, object]], object] = accept_any_fields
    """Checks a row of a user's data before the run starts; raises `ConfigError` for what `reset` would
    refuse."""

    def __post_init__(self) -> None:
        for key, remedy in (
            ("make", "give the environment's class"),
            ("split", "give a function of the seed"),
            ("expert", "give a function of the item, or no_expert"),
        ):
            if not callable(value := getattr(self, key)):
                raise ConfigError(f"environment {self.name!r}: {key} is {show(value)}; {remedy}")
        if isinstance(self.packages, str):
            raise ConfigError(
                f"environment {self.name!r}: packages is {show(self.packages)}; give a tuple of names"
            )
        methods = ("reset", "step", "state_key") if self.has_states else ("reset", "step")
        # What a function makes is not known yet; a failure to close is only logged.
        missing = [name for name in methods if isclass(self.make) and not hasattr(self.make, name)]
        if missing:
            raise ConfigError(
                f"environment {self.name!r}: {self.make.__name__} has no method {', '.join(missing)}; write "
                "it (docs/new-environment.md)"
            )

    @property
    def needs(self) -> tuple[Requirement, ...]:
        """All requirements, packages included."""
        return (*map(Package, self.packages), *self.requirements)

    @property
    def has_expert(self) -> bool:
        """Whether solutions may be known."""
        return self.expert is not no_expert

    def make_split(self, seed: int) -> Split:
        """Return the items of `seed`: training items at least, each item once.

        Raises `ConfigError` for others, for an item without a number, of another environment or without
        a mapping as metadata, and for what `split` raises.
        """
        where = f"environment {self.name!r}: split({seed})"
        with boundary(ConfigError, where):
            split: object = self.split(seed)
        if not isinstance(split, Split):
            raise ConfigError(f"{where} returned {show(split)}; return a Split")
        if not split.train:
            raise ConfigError(f"{where} has no training items; return at least one")
        sides: dict[int, str] = {}
        for side, items in (("training", split.train), ("test", split.test)):
            for item in items:
                self._check_item(item, where=where)
                index = item.index
                if (earlier := sides.get(index)) is not None:
                    cause = (
                        f"twice among the {side} items" if earlier == side else "for training and for test"
                    )
                    raise ConfigError(f"{where} has {item.item_id} {cause}; return each item once")
                sides[index] = side
        return split

    def _check_item(self, item: object, *, where: str) -> None:
        if not isinstance(item, Item):
            raise ConfigError(f"{where} has {show(item)}; return items")
        if item.env != self.name:
            raise ConfigError(
                f"{where} has {item.item_id} of env={item.env!r}; give env={self.name!r}, the spec's name"
            )
        if not isinstance(item.metadata, Mapping):
            raise ConfigError(f"{where}: metadata of {item.item_id} is {show(item.metadata)}; give a mapping")

    def solve(self, item: Item) -> Sequence[ExpertStep]:
        """Return the expert's turns; empty if it knows no solution within `MAX_EXPERT_TURNS`.

        Raises `ConfigError` if the expert raises, or returns anything but turns.
        """
        where = f"environment {self.name!r}: the expert's solution of {item.item_id}"
        with boundary(ConfigError, where):
            solution: object = self.expert(item)
            if not isinstance(solution, Iterable):
                raise ConfigError(
                    f"{where} is {show(solution)}; return a sequence of ExpertStep, maybe empty"
                )
            steps = tuple(islice(solution, MAX_EXPERT_TURNS + 1))
        for step in steps:
            if not isinstance(step, ExpertStep):
                raise ConfigError(f"{where} has {show(step)}; return a sequence of ExpertStep")
        return steps if len(steps) <= MAX_EXPERT_TURNS else ()

    def check(self) -> None:
        """Raise `MissingDependency`, which names the command to run, if a requirement is missing."""
        require(f"environment {self.name!r}", self.needs)

    @contextmanager
    def explain_missing(self) -> Iterator[None]:
        """Raise `MissingDependency` instead of an exception caused by a missing requirement.

        Costs microseconds unless the block fails.
        """
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
    "textcraft-invented": "envs.builtin.textcraft.invented_env",
    "textworld": "envs.builtin.textworld.env",
    "webarena": "envs.builtin.webarena.spec",
    "webarena-local": "envs.builtin.webarena_local.env",
    "webshop": "envs.builtin.webshop.spec",
    "webshop-mini": "envs.builtin.webshop.mini.spec",
    "workspace": "envs.builtin.question.workspace",
}
"""Name → module with a `SPEC`, imported on first use."""

_BUILTIN_FAMILIES = {
    "alfworld": "envs.builtin.alfworld.spec",
    "alfworld-mini": "envs.builtin.alfworld.mini.spec",
    "gymnasium": "envs.adapters.gymnasium",
    "openenv": "envs.adapters.openenv",
    "reasoning-gym": "envs.adapters.reasoning_gym",
    "textarena": "envs.adapters.textarena",
    "textcraft": "envs.builtin.textcraft.env",
    "textworld": "envs.builtin.textworld.env",
    "webshop": "envs.builtin.webshop.spec",
    "webshop-mini": "envs.builtin.webshop.mini.spec",
}
"""Family (the name before the colon) → module with `spec(argument) -> EnvSpec`."""


def get_item(spec: EnvSpec, number: int) -> Item:
    """Return the item `<spec.name>_<number>`; raise `ConfigError`, naming the range, if it does not exist."""
    if spec.make_item is not None:
        with boundary(ConfigError, f"environment {spec.name!r}: make_item({number})"):
            return spec.make_item(number)
    items = _items_by_number(spec)
    if number not in items:
        raise ConfigError(
            f"{spec.name} has {len(items)} items, {spec.name}_{min(items)} to {spec.name}_{max(items)}; "
            f"there is no '{spec.name}_{number}'"
        )
    return items[number]


def find_item(spec: EnvSpec, name: str, *, seed: int | None = None) -> Item:
    """The item of `spec` that `name`, its number or its id, names, with its seed replaced by `seed` if given.

    Raises `ConfigError`.
    """
    index = name.removeprefix(f"{spec.name}_")
    if not (index.isascii() and index.isdigit()):
        raise ConfigError(
            f"{name!r} is no item of {spec.name}; give its number, or its id, e.g. {spec.name}_0"
        )
    item = get_item(spec, int(index))
    return item if seed is None else replace(item, seed=seed)


@lru_cache(maxsize=16)
def _items_by_number(spec: EnvSpec) -> Mapping[int, Item]:
    split = spec.make_split(0)
    return {item.index: item for item in (*split.train, *split.test)}


def _check_type(name: str, value: object) -> EnvSpec:
    if isinstance(value, EnvSpec):
        return value
    raise ConfigError(f"env {name!r} is a {type(value).__name__}; name an EnvSpec (docs/new-environment.md)")


def _validate(name: str, value: object) -> EnvSpec:
    spec = _check_type(name, value)
    if spec.name != name:
        raise ConfigError(f"env {name!r} calls itself {spec.name!r}; give its EnvSpec this name")
    return spec


ENVIRONMENTS: Registry[EnvSpec] = Registry(
    "env",
    _BUILTIN,
    group="wingspan.environments",
    origin="envs/registry.py",
    validate=_validate,
    load=lambda module: import_module(module).SPEC,
)
"""All environments with a plain name, installed or not; `get_env` also resolves families and a user's own."""


class FamilyModule(Protocol):
    """A module that makes environments whose names have an argument, as `gymnasium:Taxi-v4` has."""

    EXAMPLE: str
    SOURCE: str
    """One line: what the package offers, and where the items come from."""
    PACKAGES: tuple[str, ...]

    def spec(self, argument: str, /) -> EnvSpec:
        """The environment `family:argument`. Raises `ConfigError` and `MissingDependency`."""


def _check_family(name: str, value: Any) -> FamilyModule:
    missing = [key for key in ("EXAMPLE", "SOURCE", "PACKAGES", "spec") if not hasattr(value, key)]
    if missing:
        raise ConfigError(f"family {name!r} has no {', '.join(missing)} (docs/new-environment.md)")
    family: FamilyModule = value
    return family


FAMILIES: Registry[FamilyModule] = Registry(
    "family",
    _BUILTIN_FAMILIES,
    group="wingspan.families",
    origin="envs/registry.py",
    validate=_check_family,
    load=cast(Callable[[str], FamilyModule], import_module),
)
"""All families, by the name before the colon, whether or not their packages are installed."""


def register_env(spec: EnvSpec) -> None:
    """Make `spec` known by its name in this process. Entry points of the group `wingspan.environments` are
    known in every process. Raises `ConfigError` if another environment has this name."""
    ENVIRONMENTS.register(spec.name, spec)


def register_family(name: str, family: FamilyModule) -> None:
    """Make the environments `name:argument` known in this process. Entry points of the group
    `wingspan.families`, which name a module, are known in every process. Raises `ConfigError` if another
    family has this name."""
    FAMILIES.register(name, family)


def get_env(name: str) -> EnvSpec:
    """Return the environment called `name`.

    Raises `ConfigError` for an unknown name, `MissingDependency` if a family's package is not installed.
    """
    if is_user_env(name):
        return _load_user_env(name)
    family, colon, argument = name.partition(":")
    if not colon:
        return ENVIRONMENTS.find(name)
    if family not in FAMILIES:
        raise ConfigError(
            f"unknown env {name!r}; {suggest(family, FAMILIES, suffix=f':{argument}')}"
            f"envs/registry.py has the families {', '.join(FAMILIES)}; your own is named MODULE:SPEC, and "
            f"there is no module {family!r}"
        )
    with boundary(ConfigError, f"env {name!r}: the family's spec({argument!r})"):
        return _validate(name, FAMILIES[family].spec(argument))


def is_user_env(name: str) -> bool:
    """Whether `name` is `module:SPEC`, and no environment of a family or a typing error in the name of one: a
    module without a package must exist."""
    module, colon, _ = name.partition(":")
    return bool(colon) and module not in FAMILIES and ("." in module or is_module(module))


def _load_user_env(name: str) -> EnvSpec:
    """Load the `EnvSpec` named `module:SPEC`; it and its items take that name, by which every process finds
    an item's environment."""
    spec = _check_type(name, load_object(name, key="env"))

    def rename(item: Item) -> Item:
        return replace(item, item_id=f"{name}_{item.index}", env=name) if isinstance(item, Item) else item

    def split(seed: int) -> Split:
        items = spec.split(seed)  # `make_split` of the renamed spec checks them
        if not isinstance(items, Split):
            return items
        return Split(train=[*map(rename, items.train)], test=[*map(rename, items.test)])

    def make_item(index: int) -> Item:
        assert spec.make_item is not None
        return rename(spec.make_item(index))

    return replace(spec, name=name, split=split, make_item=spec.make_item and make_item)
