"""What `module:name` names: anything that Python can import, from the project's folder or installed."""

import importlib
import os
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from envs.errors import ConfigError, describe


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
