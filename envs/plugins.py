"""Other people's code: registries that distributions extend by entry points, and objects named `module:name`.

An entry point makes a name known in every process, including Ray's workers; a call of `register_env`,
`register_tool`, `register_reward` or `register_format` makes it known in the calling process alone.
"""

import importlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Generic, TypeVar

from envs.errors import ConfigError, describe, suggest

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Entry(Generic[T]):
    load: Callable[[], T]
    origin: str
    """Where the name was defined, for the message that refuses a second one."""
    reference: str | None = None
    """`module:name` of an entry point."""
    value: Any = None
    """What was registered."""


class Registry(Mapping[str, T]):
    """Objects of one kind by name: the project's, those registered in this process, those of entry points.

    Entry points are read once, at the first lookup, which takes some 30 ms; their modules are imported when
    their names are looked up. Two definitions of one name raise `ConfigError`, which names both origins.
    """

    def __init__(
        self,
        kind: str,
        builtin: Mapping[str, Any],
        *,
        group: str,
        origin: str,
        validate: Callable[[str, Any], T],
        load: Callable[[Any], T] | None = None,
    ) -> None:
        """`builtin`: name → object, or what `load` makes it of; `origin`: the file that lists them;
        `validate(name, value)`: what a plug-in gave as a `T`, or `ConfigError`."""
        self._kind = kind
        self._group = group
        self._origin = origin
        self._validate = validate
        self._entries = {
            name: _Entry(partial(load or _identity, value), f"wingspan ({origin})")
            for name, value in builtin.items()
        }
        self._has_entry_points = False

    def __getitem__(self, name: str) -> T:
        return self._all()[name].load()

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def __contains__(self, name: object) -> bool:
        return name in self._all()

    def find(self, name: str) -> T:
        """The object called `name`. Raises `ConfigError` for an unknown name and for a plug-in that cannot be
        loaded."""
        if name not in self:
            raise ConfigError(
                f"unknown {self._kind} {name!r}; {suggest(name, self)}{self._origin} has: {', '.join(self)}"
            )
        return self[name]

    def register(self, name: str, value: Any) -> None:
        """Make `value` known as `name` in this process. Registering an equal value again does nothing."""
        checked = self._validate(name, value)
        entries = self._all()
        if name in entries and entries[name].value == value:
            return
        caller = sys._getframe(2).f_globals.get("__name__", "?")
        entry = _Entry(lambda: checked, f"registered by {caller}", value=value)
        self._entries = {**entries, name: self._only(name, entry, entries)}

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Forget on exit what was registered within; for tests."""
        before = self._all()
        try:
            yield
        finally:
            self._entries = before

    def reference(self, name: str) -> str | None:
        """`module:name` of what an entry point calls `name`; None for all other names."""
        entry = self._all().get(name)
        return None if entry is None else entry.reference

    def _all(self) -> dict[str, _Entry[T]]:
        if not self._has_entry_points:
            entries = dict(self._entries)
            for point in entry_points(group=self._group):
                distribution = "?" if point.dist is None else f"{point.dist.name} {point.dist.version}"
                origin = f"{distribution} ({point.value})"
                entry = _Entry(partial(self._load, point, origin), origin, point.value)
                entries[point.name] = self._only(point.name, entry, entries)
            self._entries, self._has_entry_points = entries, True
        return self._entries

    def _only(self, name: str, entry: _Entry[T], entries: Mapping[str, _Entry[T]]) -> _Entry[T]:
        if name in entries:
            raise ConfigError(
                f"two definitions of {self._kind} {name!r}: {entries[name].origin} and {entry.origin}; "
                "rename or remove one"
            )
        return entry

    def _load(self, point: EntryPoint, origin: str) -> T:
        try:
            value = point.load()
        except Exception as error:
            raise ConfigError(
                f"{self._kind} {point.name!r} of {origin} cannot be loaded: {describe(error)}; correct or "
                "uninstall it"
            ) from error
        return self._validate(point.name, value)


def _identity(value: Any) -> Any:
    return value


def load_object(name: str, *, key: str) -> Any:
    """What `module:attribute` names.

    `key` of pipelines.yaml is named in the `ConfigError` for a module that cannot be imported or has no such
    attribute.
    """
    module_name, _, attribute = name.partition(":")
    _search_working_directory()
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ConfigError(f"{key}: {name!r} cannot be imported: {describe(error)}{_remedy(error)}") from error
    except Exception as error:
        raise ConfigError(f"{key}: {name!r} cannot be imported: {describe(error)}") from error
    if not hasattr(module, attribute):
        raise ConfigError(f"{key}: {module.__file__} has no {attribute!r}; write MODULE:NAME")
    return getattr(module, attribute)


def is_module(name: str) -> bool:
    """Whether Python finds the top-level module `name`; nothing is imported."""
    _search_working_directory()
    try:
        return find_spec(name) is not None
    except ValueError:  # no name, or a module that could not be imported again
        return False


def find_sources(names: Iterable[str], *, key: str) -> list[Path]:
    """The files and folders of what `names` name as `module:attribute`: the whole of a package, because its
    modules import each other. Below the project's folder they are relative. Raises `ConfigError`, naming
    `key`, for a module that is not there."""
    return list(dict.fromkeys(_source(name, key=key) for name in names))


def _source(name: str, *, key: str) -> Path:
    package = name.partition(":")[0].partition(".")[0]
    if not is_module(package):
        raise ConfigError(f"{key}: {name!r}: there is no module {package!r}; write MODULE:NAME")
    spec = find_spec(package)
    assert spec is not None
    path = Path(next(iter(spec.submodule_search_locations or [spec.origin or ""])))
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def _remedy(error: ModuleNotFoundError) -> str:
    """How to get a package that the module imports; nothing where a file of the project is not there."""
    package = (error.name or "").partition(".")[0]
    return (
        f"; if {package!r} is a package, install it: pip install -c constraints.txt {package}"
        if not is_module(package)
        else ""
    )


def _search_working_directory() -> None:
    # A program that is installed does not look into the folder it is called in.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
