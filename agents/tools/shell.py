"""The tool that runs commands in the episode's sandbox."""

from agents.tools.sandboxed import get_workspace, read_reply
from agents.tools.tool import tool
from envs.base import Environment


@tool(stateful=True, keeps_time=True, max_length=8192)  # the sandbox keeps the time
async def shell(command: str, env: Environment) -> str:
    """Run a shell command in /work. There is no network. Files stay; variables and the folder do not.

    Args:
        command: For sh, e.g. "python3 solve.py | head".
    """
    return read_reply(await get_workspace(env).shell(command))
