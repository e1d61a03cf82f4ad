"""The tools by the names that pipelines use: one visible dict, and those of plug-ins."""

from collections.abc import Callable
from functools import partial
from typing import Any

from agents.tools import files
from agents.tools.act import act
from agents.tools.answer import answer
from agents.tools.calculator.tool import calculator
from agents.tools.calling import Tool
from agents.tools.code_interpreter import code_interpreter, code_session
from agents.tools.sandboxed import require_sandbox
from agents.tools.search import search, web_search
from agents.tools.shell import shell
from agents.tools.summarize import summarize
from envs.errors import ConfigError
from envs.plugins import Registry

_BUILTIN: dict[str, Callable[[], Tool]] = {
    "act": act,
    "answer": lambda: answer,
    "calculator": lambda: calculator,
    "summarize": lambda: summarize,
    "search": search,
    "web_search": web_search,
    "code_interpreter": code_interpreter,
    "code_session": partial(require_sandbox, code_session),
    "shell": partial(require_sandbox, shell),
    "read_file": partial(require_sandbox, files.read_file),
    "create_file": partial(require_sandbox, files.create_file),
    "edit_file": partial(require_sandbox, files.edit_file),
    "undo_edit": partial(require_sandbox, files.undo_edit),
    "list_files": partial(require_sandbox, files.list_files),
    "grep": partial(require_sandbox, files.grep),
}


def _validate(name: str, value: Any) -> Callable[[], Tool]:
    if isinstance(value, Tool):
        return lambda: value
    if not callable(value):
        raise ConfigError(f"tool {name!r} is a {type(value).__name__}; decorate a function with @tool")
    make: Callable[[], Tool] = value
    return make


TOOLS: Registry[Callable[[], Tool]] = Registry(
    "tool",
    _BUILTIN,
    group="wingspan.tools",
    origin="agents/tools/registry.py",
    validate=_validate,
)
"""Name → a function that makes the tool."""


def register_tool(tool: Tool | Callable[[], Tool], *, name: str | None = None) -> None:
    """Make `tool`, or what a function makes, known in this process by `name`, or else by the tool's own name.

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
