"""Tools for the files of the episode's sandbox. The work itself is `envs/sandbox/workspace.py`'s, inside."""

from typing import Annotated

from pydantic import Field

from agents.tools.sandboxed import get_workspace, read_reply
from agents.tools.tool import tool
from envs.base import Environment

MAX_LENGTH = 8192


@tool(stateful=True, keeps_time=True, max_length=MAX_LENGTH)
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
    return read_reply(
        await get_workspace(env).operate_on_files("read", path=path, first=first_line, last=last_line)
    )


@tool(stateful=True, keeps_time=True)
async def create_file(path: str, text: str, env: Environment, overwrite: bool = False) -> str:
    """Write a new file, and the folders that it needs.

    Args:
        path: Of the file; relative to /work.
        text: All that it is to hold.
        overwrite: Replace a file that exists.
    """
    return read_reply(
        await get_workspace(env).operate_on_files("create", path=path, text=text, overwrite=overwrite)
    )


@tool(stateful=True, keeps_time=True)
async def edit_file(path: str, old: str, new: str, env: Environment) -> str:
    """Replace a piece of text in a file.

    Args:
        path: Of the file; relative to /work.
        old: What is to be replaced, to the last space, without line numbers. The file must hold it only once.
        new: What stands there afterwards.
    """
    return read_reply(await get_workspace(env).operate_on_files("edit", path=path, old=old, new=new))


@tool(stateful=True, keeps_time=True)
async def undo_edit(path: str, env: Environment) -> str:
    """Take back the last edit or creation of a file; again, the one before.

    Args:
        path: Of the file; relative to /work.
    """
    return read_reply(await get_workspace(env).operate_on_files("undo", path=path))


@tool(stateful=True, keeps_time=True, max_length=MAX_LENGTH)
async def list_files(env: Environment, path: str = ".") -> str:
    """List a folder, two levels deep.

    Args:
        path: Of the folder; relative to /work.
    """
    return read_reply(await get_workspace(env).operate_on_files("list_folder", path=path))


@tool(stateful=True, keeps_time=True, max_length=MAX_LENGTH)
async def grep(pattern: str, env: Environment, path: str = ".") -> str:
    """Find lines in files by a regular expression.

    Args:
        pattern: As Python's re takes it.
        path: A file or folder; relative to /work.
    """
    return read_reply(await get_workspace(env).operate_on_files("grep", pattern=pattern, path=path))
