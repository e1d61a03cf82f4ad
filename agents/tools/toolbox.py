"""The tools of an episode by name, and counts of their calls."""

import time
from collections.abc import Iterable, Mapping
from itertools import chain

from agents.formats.calls import Schema
from agents.tools.tool import Tool, collect_tools
from agents.tools.types import ToolResult, ToolStatus, ToolUsage
from envs.errors import ConfigError, suggest
from envs.types import EnvCheck, Environment

_MAX_NAME_CHARS = 80
"""Characters of an unknown name that are shown."""


class Toolbox:
    """Tools by name. Each episode has a fresh one, for the counts."""

    usage: dict[str, ToolUsage]
    """The usage of each tool, by name."""
    unknown_calls: int
    """Calls of names that no tool has."""

    def __init__(self, tools: Iterable[object]) -> None:
        """`tools`: tools, and objects that have tools (`collect_tools`).

        Raises `ConfigError` for two of one name.
        """
        self.tools: dict[str, Tool] = {}
        for tool in chain.from_iterable(map(collect_tools, tools)):
            if tool.name in self.tools:
                raise ConfigError(f"two tools are called {tool.name!r}; give one of them another name=")
            self.tools[tool.name] = tool
        self.usage = {name: ToolUsage() for name in self.tools}
        self.unknown_calls = 0

    def fresh(self) -> "Toolbox":
        """The same tools with new counts, for another episode."""
        return Toolbox(self.tools.values())

    @property
    def env_checks(self) -> dict[str, EnvCheck]:
        """The option `check_env` of each tool that has it, by name."""
        return {tool.name: tool.check_env for tool in self.tools.values() if tool.check_env is not None}

    @property
    def schemas(self) -> list[Schema]:
        """The schemas of all tools, as function calling takes them."""
        return [tool.schema for tool in self.tools.values()]

    async def call(
        self, name: str, arguments: Mapping[str, object], *, env: Environment | None = None
    ) -> ToolResult:
        """Call the tool `name`; the answer to an unknown name lists the tools."""
        if name not in self.tools:
            self.unknown_calls += 1
            return ToolResult(observation=self._unknown(name), status=ToolStatus.UNKNOWN_TOOL)
        usage, start = self.usage[name], time.perf_counter()
        usage.calls += 1
        try:
            result = await self.tools[name].call(arguments, env=env)
        except BaseException:
            usage.failures += 1
            raise
        finally:
            usage.seconds += time.perf_counter() - start
        usage.failures += result.status is not ToolStatus.OK
        for key, value in result.metrics.items():
            usage.metrics[key] = usage.metrics.get(key, 0.0) + value
        return result

    def is_stateful(self, name: str) -> bool:
        """Whether a call works on the episode's environment, so that the order of calls matters."""
        return name in self.tools and self.tools[name].stateful

    def keeps_time(self, name: str) -> bool:
        """Whether a call ends by itself; the caller must end all others."""
        return name not in self.tools or self.tools[name].keeps_time

    def _unknown(self, name: str) -> str:
        quoted_name = repr(name if len(name) <= _MAX_NAME_CHARS else f"{name[:_MAX_NAME_CHARS]}...")
        hint = suggest(name.lower()[:_MAX_NAME_CHARS], self.tools)
        listing = f"The tools are: {', '.join(self.tools)}" if self.tools else "There are no tools"
        return f"there is no tool {quoted_name}{f'; {hint}' if hint else '. '}{listing}"
