"""Names of environments in families, and the packages behind them.

`gymnasium:FrozenLake-v1?is_slippery=false&map_name=8x8` is the target `FrozenLake-v1` with two options. The
target is the package's name of the environment; options are keyword arguments of its constructor, parsed as
JSON if possible (`false`, `5`, `[1, 2]`), else texts.
"""

import json
from collections.abc import Iterable
from importlib import import_module
from types import ModuleType
from urllib.parse import unquote

from envs.errors import ConfigError, MissingDependency, list_names, suggest
from envs.requirements.detection import pip_install

MAX_LISTED = 12
"""Names in an error message; a package may have hundreds."""


def parse_name(name: str) -> tuple[str, dict[str, object]]:
    """Parse `family:target?options` into (target, options).

    Raises `ConfigError` if it is malformed or has an option twice.
    """
    target, _, query = name.partition(":")[2].partition("?")
    if not target:
        raise ConfigError(f"env {name!r} names no environment after the colon")
    options = {}
    for option in query.split("&") if query else ():
        key, equals, value = option.partition("=")
        if not key or not equals:
            raise ConfigError(f"env {name!r}: option {option!r} is not key=value")
        if (key := unquote(key)) in options:
            raise ConfigError(f"env {name!r}: option {key!r} is given twice; give it once")
        options[key] = _parse_value(unquote(value))
    return target, options


def _parse_value(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text


def unknown_target(target: str, *, family: str, targets: Iterable[str]) -> ConfigError:
    """The error for a target that the package does not have; suggests the nearest ones that it has."""
    names = sorted(targets)
    hint = suggest(target, names, limit=3, prefix=f"{family}:")
    hint = hint.rstrip() or f"it has {list_names(names, limit=MAX_LISTED)}"
    return ConfigError(f"unknown env {f'{family}:{target}'!r}; {hint}")


def import_package(module: str, *, family: str) -> ModuleType:
    """Import `module`; raises `MissingDependency` with the command that installs the package `family`."""
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingDependency(
            f"environments of {family!r} need {error.name}; {pip_install(family)}"
        ) from None
