"""A user's own code, which a pipeline names as `module:name`: which files it is.

`envs/plugins.py` loads it.
"""

from collections.abc import Iterator
from pathlib import Path

from envs.plugins import find_sources
from envs.registry import is_user_env
from tasks.config.agent import AgentSettings
from tasks.config.data import DataSettings


def agent_code(settings: AgentSettings) -> list[Path]:
    """The files and folders of the agent, tools and rewards that `settings` name as `module:name`.

    Raises `ConfigError` for a module that is not there.
    """
    return find_sources((name for name in _names(settings) if ":" in name), key="agent")


def environment_code(settings: DataSettings) -> list[Path]:
    """The files and folders of the environments that `settings` name as `module:name`.

    Raises `ConfigError` for a module that is not there.
    """
    return find_sources((env for env in settings.envs if is_user_env(env)), key="data.parts")


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
