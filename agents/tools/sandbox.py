"""Tools in a sandbox, which keeps their time: `code_interpreter` in its own, the others in the episode's."""

from typing import Annotated

from pydantic import Field

from agents.tools.tool import Tool, tool
from agents.tools.types import ToolError
from envs.sandbox.backend import Backend, SandboxLimits
from envs.sandbox.interpreter import Interpreter
from envs.sandbox.sandbox import choose_backend
from envs.sandbox.workspace import FileOperation, Reply, get_workspace
from envs.types import Environment

MAX_LENGTH = 8192
CODE_LENGTH = 4096
MAX_CONCURRENCY = 32
"""Sandboxes at once in this process, each of up to `SandboxLimits.memory_mb`."""


def code_interpreter(
    *, backend: Backend | None = None, limits: SandboxLimits | None = None, run_timeout_s: float = 10.0
) -> Tool:
    """A tool `code_interpreter`, which needs no environment.

    `backend`: by default this machine's. Raises `MissingDependency` if there is none.
    """
    sandbox = backend or choose_backend()

    # The sandbox keeps the time: it ends code that hangs, and its start does not count.
    @tool(keeps_time=True, max_length=CODE_LENGTH, max_concurrency=MAX_CONCURRENCY)
    async def code_interpreter(code: str) -> str:
        """Run Python code and see what it prints, and the value of its last expression.

        Each code starts afresh: nothing is left of earlier ones. There is no network.

        Args:
            code: Python, as in a file.
        """
        interpreter = Interpreter(
            sandbox, limits=limits or SandboxLimits(), run_timeout_s=run_timeout_s, output_chars=CODE_LENGTH
        )
        try:
            run = await interpreter.run(code)
        finally:
            await interpreter.close()
        if run.end_reason is not None:
            raise ToolError(run.output_with(f"[the code was ended: {run.end_reason}]"))
        return run.output or "(no output)"

    return code_interpreter


@tool(stateful=True, keeps_time=True, check_env=get_workspace, max_length=CODE_LENGTH)
async def code_session(code: str, env: Environment) -> str:
    """Run Python code and see what it prints, and the value of its last expression.

    Variables and files stay from code to code. There is no network.

    Args:
        code: Python, as at a prompt.
    """
    return read_reply(await get_workspace(env).python(code))


@tool(stateful=True, keeps_time=True, check_env=get_workspace, max_length=MAX_LENGTH)
async def shell(command: str, env: Environment) -> str:
    """Run a shell command in /work. There is no network. Files stay; variables and the folder do not.

    Args:
        command: For sh, e.g. "python3 solve.py | head".
    """
    return read_reply(await get_workspace(env).shell(command))


@tool(stateful=True, keeps_time=True, check_env=get_workspace, max_length=MAX_LENGTH)
async def read_file(
    path: str,
    env: Environment,
    first_line: Annotated[int, Field(ge=1)] = 1,
    last_line: Annotated[int, Field(ge=1)] | None = None,
) -> str:
    """Read a text file, with line numbers.

    Args:
        path: Of the file; relative to /work.
        first_line: Where to begin, from 1.
        last_line: Where to end, itself included; else at the end of the file.
    """
    return await _operate(env, "read", path=path, first=first_line, last=last_line)


@tool(stateful=True, keeps_time=True, check_env=get_workspace)
async def create_file(path: str, text: str, env: Environment, overwrite: bool = False) -> str:
    """Write a new file, and the folders that it needs.

    Args:
        path: Of the file; relative to /work.
        text: All that it is to hold.
        overwrite: Replace a file that exists.
    """
    return await _operate(env, "create", path=path, text=text, overwrite=overwrite)


@tool(stateful=True, keeps_time=True, check_env=get_workspace)
async def edit_file(path: str, old: str, new: str, env: Environment) -> str:
    """Replace a piece of text in a file.

    Args:
        path: Of the file; relative to /work.
        old: What is to be replaced, to the last space, without line numbers. The file must hold it only once.
        new: What stands there afterwards.
    """
    return await _operate(env, "edit", path=path, old=old, new=new)


@tool(stateful=True, keeps_time=True, check_env=get_workspace)
async def undo_edit(path: str, env: Environment) -> str:
    """Take back the last edit or creation of a file; again, the one before.

    Args:
        path: Of the file; relative to /work.
    """
    return await _operate(env, "undo", path=path)


@tool(stateful=True, keeps_time=True, check_env=get_workspace, max_length=MAX_LENGTH)
async def list_files(env: Environment, path: str = ".") -> str:
    """List a folder, two levels deep.

    Args:
        path: Of the folder; relative to /work.
    """
    return await _operate(env, "list_folder", path=path)


@tool(stateful=True, keeps_time=True, check_env=get_workspace, max_length=MAX_LENGTH)
async def grep(pattern: str, env: Environment, path: str = ".") -> str:
    """Find lines in files by a regular expression.

    Args:
        pattern: As Python's re takes it.
        path: A file or folder; relative to /work.
    """
    return await _operate(env, "grep", pattern=pattern, path=path)


WORKSPACE_TOOLS = (code_session, shell, read_file, create_file, edit_file, undo_edit, list_files, grep)
"""The tools that need a workspace."""


async def _operate(env: Environment, operation: FileOperation, **arguments: object) -> str:
    return read_reply(await get_workspace(env).operate_on_files(operation, **arguments))


def read_reply(reply: Reply) -> str:
    """The text of a reply. Raises `ToolError` for a call that failed."""
    if reply.is_error:
        raise ToolError(reply.text)
    return reply.text or "(no output)"
