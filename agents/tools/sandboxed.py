"""What the tools that work in an episode's sandbox share."""

from agents.tools.calling import Tool
from agents.tools.types import ToolError
from envs.base import Environment
from envs.errors import ConfigError
from envs.sandbox.sandbox import choose_backend
from envs.sandbox.workspace import Reply, WithWorkspace, Workspace


def require_sandbox(tool: Tool) -> Tool:
    """`tool`, if this machine has a sandbox for it; else raises `MissingDependency`, which says what to do.

    Called where tools are chosen, so that a run without a sandbox ends before it begins.
    """
    choose_backend()
    return tool


def get_workspace(env: Environment) -> Workspace:
    """The environment's. Raises `ConfigError` for one that has none."""
    if not isinstance(env, WithWorkspace):
        raise ConfigError(
            f"{type(env).__name__} has no workspace for tools; put envs.sandbox.workspace.WithWorkspace "
            "around it, or ask questions in env: workspace"
        )
    return env.workspace


def read_reply(reply: Reply) -> str:
    """Raises `ToolError` for what failed."""
    if reply.is_error:
        raise ToolError(reply.text)
    return reply.text or "(no output)"
