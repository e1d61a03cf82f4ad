"""A user's own code, which a pipeline names as `module:name`: how it is loaded, and which files it is."""

import importlib
import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from envs.errors import ConfigError, described
from tasks.settings import AgentSettings


def load(name: str, *, key: str) -> Any:
    """What `module:attribute` names, from the folder of the project or whatever is installed.

    `key` of pipelines.yaml is named in the `ConfigError` for a module that cannot be imported or has no such
    attribute.
    """
    module_name, _, attribute = name.partition(":")
    _look_here()
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise ConfigError(f"{key}: {name!r} cannot be imported: {described(error)}") from error
    if not hasattr(module, attribute):
        raise ConfigError(f"{key}: {module.__file__} has no {attribute!r}; write MODULE:NAME")
    return getattr(module, attribute)


def own_code(settings: AgentSettings) -> list[Path]:
    """The files and folders of what `settings` name as `module:name`: of a package the whole, for its modules
    import each other. Below the project's folder they are relative. Raises `ConfigError` for a module that is
    not there."""
    _look_here()
    return list(dict.fromkeys(_source(name) for name in _names(settings) if ":" in name))


def reward_names(settings: AgentSettings) -> list[str]:
    """The rewards that `settings` name."""
    if settings.reward is None:
        return []
    return [settings.reward] if isinstance(settings.reward, str) else list(settings.reward)


def _names(settings: AgentSettings) -> Iterator[str]:
    if settings.program is not None:
        yield settings.program
    yield settings.format
    yield from settings.tools
    yield from reward_names(settings)


def _source(name: str) -> Path:
    package = name.partition(":")[0].partition(".")[0]
    try:
        spec = find_spec(package)
    except ValueError:  # it has no name, or none that could be imported again
        spec = None
    if spec is None:
        raise ConfigError(f"agent: {name!r}: there is no module {package!r}; write MODULE:NAME")
    path = Path(next(iter(spec.submodule_search_locations or [spec.origin or ""])))
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def _look_here() -> None:
    # A program that is installed does not look into the folder it is called in.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
