"""Code from outside the project: registries extended by entry points, and objects named `module:name`.

An entry point makes a name known in every process, including Ray's workers; a call of `register_env`,
`register_tool`, `register_reward`, `register_format` or `register_data_set` only in the calling process.
"""

import importlib
import inspect
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

from envs.errors import ConfigError, boundary, describe_with_place, suggest

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Entry(Generic[T]):
    load: Callable[[], T]
    origin: str
    """Where the name is defined, for the error about a second definition."""
    reference: str | None = None
    """`module:name` of an entry point."""
    value: object = None
    """The registered object."""


class Registry(Mapping[str, T]):
    """Objects of one kind by name: built-in, registered in this process, and from entry points.

    Entry points are read at the first lookup, which takes about 30 ms; an entry point's module is imported
    when its name is looked up. Two definitions of one name raise `ConfigError`, which names both origins.
    """

    def __init__(
        self,
        kind: str,
        builtin: Mapping[str, object],
        *,
        group: str,
        origin: str,
        validate: Callable[[str, object], T],
        load: Callable[[Any], T] | None = None,
    ) -> None:
        """`builtin` maps names to objects, or to the argument from which `load` makes them; `origin` is the
        file that lists them. `validate(name, value)` returns a plug-in's value as a `T` or raises
        `ConfigError`."""
        self._kind = kind
        self._group = group
        self._origin = origin
        self._validate = validate
        self._entries = {
            name: _Entry(partial(load or (lambda builtin: builtin), value), f"wingspan ({origin})")
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
        """Return the object called `name`; raise `ConfigError` for an unknown name or a plug-in that does not
        load."""
        if name not in self:
            raise ConfigError(
                f"unknown {self._kind} {name!r}; {suggest(name, self)}{self._origin} has: {', '.join(self)}"
            )
        return self[name]

    def register(self, name: str, value: object) -> None:
        """Make `value` known as `name` in this process. Registering an equal value again does nothing."""
        result = self._validate(name, value)
        entries = self._all()
        if name not in entries or entries[name].value != value:
            entry = _Entry(lambda: result, f"registered by {_caller_of_caller()}", value=value)
            self._entries = self._add(entries, name, entry)

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Undo on exit all registrations made inside the block; for tests."""
        before = self._all()
        try:
            yield
        finally:
            self._entries = before

    def reference(self, name: str) -> str | None:
        """Return `module:name` if `name` comes from an entry point, else None."""
        entry = self._all().get(name)
        return None if entry is None else entry.reference

    def _all(self) -> dict[str, _Entry[T]]:
        if not self._has_entry_points:
            entries = self._entries
            for point in entry_points(group=self._group):
                distribution = "?" if point.dist is None else f"{point.dist.name} {point.dist.version}"
                origin = f"{distribution} ({point.value})"
                entry = _Entry(partial(self._load, point, origin), origin, point.value)
                entries = self._add(entries, point.name, entry)
            self._entries, self._has_entry_points = entries, True
        return self._entries

    def _add(self, entries: dict[str, _Entry[T]], name: str, entry: _Entry[T]) -> dict[str, _Entry[T]]:
        if name in entries:
            raise ConfigError(
                f"two definitions of {self._kind} {name!r}: {entries[name].origin} and {entry.origin}; "
                "rename or remove one"
            )
        return {**entries, name: entry}

    def _load(self, point: EntryPoint, origin: str) -> T:
        subject = f"loading {self._kind} {point.name!r} of {origin}"
        with boundary(ConfigError, subject, remedy="correct or uninstall it"):
            value = point.load()
        return self._validate(point.name, value)


def load_object(name: str, *, key: str) -> Any:
    """Import the object named `module:attribute`.

    Raises `ConfigError`, which names `key`, where the user gave `name`, if the module cannot be imported or
    lacks the attribute.
    """
    module_name, _, attribute = name.partition(":")
    _search_working_directory()
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        package = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
        # Else a file of the project is missing, or the name is wrong.
        is_installable = package and not is_module(package) and package != module_name.partition(".")[0]
        remedy = ""
        if is_installable:
            from envs.requirements.detection import pip_install

            remedy = f"; if {package!r} is a package, install it: {pip_install(package)}"
        raise ConfigError(
            f"{key}: {name!r} cannot be imported: {describe_with_place(error)}{remedy}"
        ) from error
    if not hasattr(module, attribute):
        raise ConfigError(f"{key}: {module.__file__} has no {attribute!r}; write MODULE:NAME")
    return getattr(module, attribute)


def is_module(name: str) -> bool:
    """Whether Python finds the top-level module `name`; imports nothing."""
    _search_working_directory()
    try:
        return find_spec(name) is not None
    except ValueError:  # an empty name, or a module without a spec
        return False


def find_sources(names: Iterable[str], *, key: str) -> list[Path]:
    """Return the files and folders that define the objects `module:attribute`.

    Of a package it is the whole folder, because its modules import each other. Paths below the working
    directory are relative. Raises `ConfigError`, which names `key`, if a module does not exist.
    """
    sources: dict[Path, None] = {}
    for name in names:
        package = name.partition(":")[0].partition(".")[0]
        if not is_module(package):
            raise ConfigError(f"{key}: {name!r}: there is no module {package!r}; write MODULE:NAME")
        spec = find_spec(package)
        assert spec is not None
        path = Path(next(iter(spec.submodule_search_locations or [spec.origin or ""])))
        sources[path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path] = None
    return list(sources)


@contextmanager
def replace_attribute(owner: object, name: str, value: object) -> Iterator[None]:
    """Give the attribute `name` of a foreign module or class another value while inside."""
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


def _search_working_directory() -> None:
    # Python does not search the working directory when it runs an installed program.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())


def _caller_of_caller() -> str:
    """The module that called the function that called this one's caller, e.g. that of `register_env(…)`."""
    frame = inspect.currentframe()
    for _ in range(3):
        frame = frame and frame.f_back
    return "?" if frame is None else str(frame.f_globals.get("__name__", "?"))
