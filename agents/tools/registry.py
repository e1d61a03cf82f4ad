"""The tools by the names that pipelines use: one visible dict, and those of plug-ins."""

from collections.abc import Callable
from functools import partial

from agents.tools import episode, sandbox
from agents.tools.calculator import calculator
from agents.tools.search import search, web_search
from agents.tools.tool import Tool
from envs.errors import ConfigError
from envs.requirements.plugins import Registry
from envs.sandbox.sandbox import choose_backend


def _require_sandbox(tool: Tool) -> Tool:
    choose_backend()  # raises `MissingDependency`: a run without a sandbox stops before it begins
    return tool


_BUILTIN: dict[str, Callable[[], Tool]] = {
    "act": lambda: episode.act,
    "answer": lambda: episode.answer,
    "calculator": lambda: calculator,
    "summarize": lambda: episode.summarize,
    "search": search,
    "web_search": web_search,
    "code_interpreter": sandbox.code_interpreter,
    **{tool.name: partial(_require_sandbox, tool) for tool in sandbox.WORKSPACE_TOOLS},
}


def _validate(name: str, value: object) -> Callable[[], Tool]:
    if isinstance(value, Tool):
        return lambda: value
    if not callable(value):
        raise ConfigError(f"tool {name!r} is a {type(value).__name__}; decorate a function with @tool")
    make: Callable[[], Tool] = value
    return make


TOOLS: Registry[Callable[[], Tool]] = Registry(
    "tool", _BUILTIN, group="wingspan.tools", origin="agents/tools/registry.py", validate=_validate
)
"""Name → a function that makes the tool."""


def register_tool(tool: Tool | Callable[[], Tool], *, name: str | None = None) -> None:
    """Make `tool`, or the tool that a function makes, known in this process by `name`, or by its own name.

    Entry points of the group `wingspan.tools` are known in every process. Raises `ConfigError` if another
    tool has this name.
    """
    TOOLS.register(name or (tool.name if isinstance(tool, Tool) else tool.__name__), tool)


def get_tool(name: str) -> Tool:
    """The tool called `name`.

    Raises `ConfigError` for an unknown name or a missing setting of the tool, and `MissingDependency` if the
    tool needs a sandbox or a corpus that this machine lacks.
    """
    return TOOLS.find(name)()
