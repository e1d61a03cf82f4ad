"""The tools that an episode has, by name, and what became of their calls."""

import time
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from agents.tools.calling import Tool
from agents.tools.tool import collect_tools
from agents.tools.types import ToolResult, ToolStatus, ToolUsage
from envs.base import Environment
from envs.errors import ConfigError

_MAX_NAME_CHARS = 80
"""Characters of an unknown name that are told."""


class Toolbox:
    """Tools by name. An episode has one of its own, for the counts."""

    def __init__(self, tools: Iterable[object]) -> None:
        """`tools`, and objects whose tools are meant; see `collect_tools`.

        Raises `ConfigError` for two of one name.
        """
        self.tools: dict[str, Tool] = {}
        for found in (one for holder in tools for one in collect_tools(holder)):
            if found.name in self.tools:
                raise ConfigError(f"two tools are called {found.name!r}; give one of them another name=")
            self.tools[found.name] = found
        self._usage = {name: ToolUsage() for name in self.tools}
        self._unknown_calls = 0

    def fresh(self) -> "Toolbox":
        """The same tools, nothing counted yet: for one more episode."""
        return Toolbox(self.tools.values())

    @property
    def schemas(self) -> list[dict[str, Any]]:
        """Of all tools, as function calling takes them."""
        return [tool.schema for tool in self.tools.values()]

    @property
    def usage(self) -> dict[str, ToolUsage]:
        """Of each tool, by name."""
        return dict(self._usage)

    @property
    def unknown_calls(self) -> int:
        """Calls of names that no tool has."""
        return self._unknown_calls

    async def call(
        self, name: str, arguments: Mapping[str, Any], *, env: Environment | None = None
    ) -> ToolResult:
        """`Tool.call` of the tool `name`; an unknown name is answered with those that there are."""
        if name not in self.tools:
            self._unknown_calls += 1
            return ToolResult(observation=self._unknown(name), status=ToolStatus.UNKNOWN_TOOL)
        start = time.perf_counter()
        is_failure = True
        try:
            result = await self.tools[name].call(arguments, env=env)
            is_failure = result.status is not ToolStatus.OK
            sums = self._usage[name].metrics
            for key, value in result.metrics.items():
                sums[key] = sums.get(key, 0.0) + value
            return result
        finally:
            usage = self._usage[name]
            usage.calls += 1
            usage.failures += is_failure
            usage.seconds += time.perf_counter() - start

    def is_stateful(self, name: str) -> bool:
        """Whether a call works on the episode's environment, and so has its place among others."""
        return name in self.tools and self.tools[name].stateful

    def keeps_time(self, name: str) -> bool:
        """Whether a call ends by itself; the others are for the caller to end."""
        return name not in self.tools or self.tools[name].keeps_time

    def _unknown(self, name: str) -> str:
        quoted_name = repr(name if len(name) <= _MAX_NAME_CHARS else f"{name[:_MAX_NAME_CHARS]}...")
        near = get_close_matches(name.lower()[:_MAX_NAME_CHARS], self.tools, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        there = f"The tools are: {', '.join(self.tools)}" if self.tools else "There are no tools"
        return f"there is no tool {quoted_name}{hint} {there}"
