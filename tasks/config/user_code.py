"""The files of code that is not this project's: of a user's objects, named `module:name`, and of plug-ins.

`envs/requirements/plugins.py` loads it.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from agents.agent import AGENTS
from agents.rewards import REWARDS
from agents.tools.registry import TOOLS
from envs.registry import ENVIRONMENTS, FAMILIES, is_user_env
from envs.requirements.plugins import Registry, find_sources
from tasks.algorithms.algorithm import Algorithm, OnlineAlgorithm
from tasks.config.agent import AgentSettings

CODE = ("envs", "agents", "tasks", "flows")
"""The packages of this project: a dependency in one of them is code, not data."""


def agent_code(settings: AgentSettings) -> list[Path]:
    """The files and folders of the agent, tools and rewards of `settings` that are not this project's.

    Raises `ConfigError` for a module that is not there.
    """
    return find_sources(_agent_references(settings), key="agent")


def environment_code(envs: Iterable[str]) -> list[Path]:
    """The files and folders of those of the environments `envs` that are not this project's.

    Raises `ConfigError` for a module that is not there.
    """
    return find_sources(filter(None, map(_environment_reference, envs)), key="data.parts")


def algorithm_code(algorithm: Algorithm) -> list[Path]:
    """The files and folders of the algorithm's class, and of its loss's, that are not this project's."""
    parts = [algorithm, algorithm.loss] if isinstance(algorithm, OnlineAlgorithm) else [algorithm]
    modules = [type(part).__module__ for part in parts]
    # `__main__`, a script that registers one, is no module that others could import.
    names = [module for module in modules if module.partition(".")[0] not in (*CODE, "__main__")]
    return find_sources(names, key="train.algorithm")


def reward_names(settings: AgentSettings) -> list[str]:
    """The rewards that `settings` name."""
    if settings.reward is None:
        return []
    return [settings.reward] if isinstance(settings.reward, str) else list(settings.reward)


def _environment_reference(env: str) -> str | None:
    if is_user_env(env):
        return env
    family, colon, _ = env.partition(":")
    return FAMILIES.reference(family) if colon else ENVIRONMENTS.reference(env)


def _agent_references(settings: AgentSettings) -> Iterator[str]:
    if settings.program is not None:
        yield settings.program
    references: list[tuple[Registry[Any], Sequence[str]]] = [
        (AGENTS, [settings.format]),
        (TOOLS, settings.tools),
        (REWARDS, reward_names(settings)),
    ]
    for registry, names in references:
        for name in names:
            reference = name if ":" in name else registry.reference(name)
            if reference is not None:
                yield reference
