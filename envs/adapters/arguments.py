"""What stands after the colon of a family's name, and the package behind it.

`gymnasium:FrozenLake-v1?is_slippery=false&map_name=8x8` is the target `FrozenLake-v1` with two options. The
text before `?` is the package's own name of the environment; options are keyword arguments of its maker,
JSON values where they read as such (`false`, `5`, `[1, 2]`) and texts where not.
"""

import difflib
import json
from collections.abc import Iterable
from importlib import import_module
from typing import Any
from urllib.parse import unquote

from envs.errors import ConfigError, MissingDependency
from envs.requirements.detection import pip_install

MAX_LISTED = 12
"""Names in an error; a package may have hundreds."""


def parse(argument: str, *, family: str) -> tuple[str, dict[str, Any]]:
    """(target, options) of `argument`; raises `ConfigError` where it has not that form."""
    target, _, query = argument.partition("?")
    if not target:
        raise ConfigError(f"env {f'{family}:{argument}'!r} names no environment after the colon")
    options = {}
    for option in query.split("&") if query else ():
        key, equals, value = option.partition("=")
        if not key or not equals:
            raise ConfigError(f"env {f'{family}:{argument}'!r}: option {option!r} is not key=value")
        options[unquote(key)] = _value(unquote(value))
    return target, options


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def unknown(target: str, *, family: str, known: Iterable[str]) -> ConfigError:
    """The error for a target that the package does not have; names the nearest that it has."""
    names = sorted(known)
    near = difflib.get_close_matches(target, names, n=3, cutoff=0.5)
    if near:
        hint = f"did you mean {', '.join(repr(f'{family}:{name}') for name in near)}?"
    else:
        more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
        hint = f"it has {', '.join(names[:MAX_LISTED])}{more}"
    return ConfigError(f"unknown env {f'{family}:{target}'!r}; {hint}")


def load(module: str, *, family: str, package: str) -> Any:
    """Import `module` of the distribution `package`; raises `MissingDependency` with the command where it is
    not installed."""
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingDependency(
            f"environments of {family!r} need {error.name}; {pip_install(package)}"
        ) from None
