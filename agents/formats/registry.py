"""The formats that plug-ins bring, each as a function that makes an `Agent` for the schemas of its tools.

`agents/formats/__init__.py` lists this project's own formats.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from agents.agent import Agent, FormatAgent, Schema
from agents.formats import FORMATS
from envs.errors import ConfigError
from envs.requirements.plugins import Registry

MakeAgent = Callable[[Sequence[Schema]], Agent]


def _make_builtin(format: str, schemas: Sequence[Schema]) -> Agent:
    return FormatAgent(format, schemas=schemas)


def _validate(name: str, value: Any) -> MakeAgent:
    if not callable(value):
        raise ConfigError(f"format {name!r} is a {type(value).__name__}; name a class of agents.agent.Agent")
    make: MakeAgent = value
    return make


AGENTS: Registry[MakeAgent] = Registry(
    "format",
    {name: partial(_make_builtin, name) for name in FORMATS},
    group="wingspan.formats",
    origin="agents/formats/__init__.py",
    validate=_validate,
)


def register_format(name: str, make: MakeAgent) -> None:
    """Make the format `name` known in this process: `make`, such as a class of `Agent`, takes the schemas
    of the tools. Entry points of the group `wingspan.formats` are known in every process. Raises
    `ConfigError` if another format has this name."""
    AGENTS.register(name, make)
