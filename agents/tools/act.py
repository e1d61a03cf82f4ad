"""The tool by which an agent acts in the environment of its episode."""

from agents.tools.calling import Tool
from agents.tools.tool import tool
from envs.base import Environment
from envs.errors import EnvCrashed, boundary
from envs.types import StepResult

ACT = "act"
"""The tool's name."""


def act(*, description: str | None = None) -> Tool:
    """A tool `act` that steps the environment and answers its `StepResult`.

    `description` tells which actions there are. The observation is whole, and the time is whoever's calls it:
    a step that is ended leaves its environment broken. An environment that raises is no play: `EnvCrashed`.
    """

    async def act(action: str, env: Environment) -> StepResult:
        """Act in the environment.

        Args:
            action: One action, in the environment's own words.
        """
        with boundary(EnvCrashed, "act: step"):
            return await env.step(action)

    act_tool = tool(stateful=True, timeout_s=None, max_length=None)(act)
    if description is not None:
        act_tool.description = description
    return act_tool
