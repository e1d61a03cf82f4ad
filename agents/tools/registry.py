"""Every prebuilt tool, by the name that a pipeline gives."""

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from functools import partial

from agents.tools import files
from agents.tools.act import act
from agents.tools.answer import answer
from agents.tools.calculator.tool import calculator
from agents.tools.calling import Tool
from agents.tools.code_interpreter import code_interpreter, code_session
from agents.tools.sandboxed import walled
from agents.tools.search import search, web_search
from agents.tools.shell import shell
from agents.tools.summarize import summarize
from agents.tools.toolbox import Toolbox
from envs.errors import ConfigError

TOOLS: dict[str, Callable[[], Tool]] = {
    "act": act,
    "answer": lambda: answer,
    "calculator": lambda: calculator,
    "summarize": lambda: summarize,
    "search": search,
    "web_search": web_search,
    "code_interpreter": code_interpreter,
    "code_session": partial(walled, code_session),
    "shell": partial(walled, shell),
    "read_file": partial(walled, files.read_file),
    "create_file": partial(walled, files.create_file),
    "edit_file": partial(walled, files.edit_file),
    "undo_edit": partial(walled, files.undo_edit),
    "list_files": partial(walled, files.list_files),
    "grep": partial(walled, files.grep),
}


def get_tool(name: str) -> Tool:
    """The prebuilt tool of this name.

    Raises `ConfigError` for an unknown one, and for settings that one lacks; `MissingDependency` where it
    needs a sandbox and this machine has none, or a corpus that is not there.
    """
    if name not in TOOLS:
        near = get_close_matches(name, TOOLS, n=1)
        meant = f"; did you mean {near[0]!r}?" if near else "; there are: " + ", ".join(TOOLS)
        raise ConfigError(f"unknown tool {name!r}{meant} See agents/tools/registry.py")
    return TOOLS[name]()


def toolbox(names: Iterable[str]) -> Toolbox:
    """The prebuilt tools of these names; raises as `get_tool`, and `ConfigError` for a name given twice."""
    return Toolbox(get_tool(name) for name in names)
