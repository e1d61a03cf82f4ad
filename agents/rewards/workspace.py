"""A reward for work on files: tests that are run in the episode's own workspace when it has ended."""

from collections.abc import Mapping
from typing import Any

from agents.rewards.function import reward
from agents.rewards.text import verdict
from envs.base import Environment
from envs.errors import ConfigError
from envs.sandbox.sandbox import SANDBOX
from envs.sandbox.workspace import WithWorkspace, read_files


@reward(needs=(SANDBOX,), timeout_s=None)
async def workspace_tests(
    env: Environment, test_command: str, test_files: Mapping[str, Any] | None = None
) -> dict[str, float | bool]:
    """1 if `test_command` succeeds in the workspace, else 0.

    `test_files` (path in `/work` → text) are written first, over whatever is there: the agent has never seen
    them and cannot have changed them. It may have changed all else, the programs that run them included, as
    far as the sandbox lets it. Raises `ConfigError` for an environment that has no workspace.
    """
    if not isinstance(env, WithWorkspace):
        raise ConfigError(f"{type(env).__name__} has no workspace to run tests in; ask in env: workspace")
    reply = await env.workspace.put(read_files({"test_files": test_files}, name="test_files"))
    return verdict(not reply.is_error and await env.workspace.succeeds(test_command))
