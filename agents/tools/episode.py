"""Tools for the episode itself: `act` in its environment, `answer` to end it, `summarize` to cut it."""

from agents.tools.tool import tool
from agents.tools.types import Summary
from envs.errors import ConfigError, EnvCrashed, boundary
from envs.types import Environment, StepResult, has_actions, step_env

ACT = "act"
"""The name of the tool `act`."""
_TOO_LONG = "Nothing was cut: your summary takes half of all the room. Write a shorter one."


def _check_actions(env: Environment | None) -> None:
    if env is not None and not has_actions(env):
        raise ConfigError(
            f"{type(env).__name__} has no actions: a step is the answer, which ends the episode; "
            f"replace {ACT!r} by 'answer'"
        )


# The caller keeps the time: a step that is cancelled leaves its environment broken.
@tool(stateful=True, timeout_s=None, max_length=None, check_env=_check_actions)
async def act(action: str, env: Environment) -> StepResult:
    """Act in the environment.

    Args:
        action: One action, in the environment's own words.
    """
    with boundary(EnvCrashed, "act: step"):
        return await step_env(env, action)


@tool(finish=True, max_length=None)
def answer(answer: str) -> str:
    """Give the final answer. Nothing can be done after it.

    Args:
        answer: The answer, and nothing besides.
    """
    return answer


@tool(max_length=None)
async def summarize(summary: str) -> Summary:
    """Cut the conversation, to have room to go on. Only the task and what you write here will be left of it.

    Args:
        summary: All that is needed to go on: what has been done, what was found out, what comes next.
    """
    return Summary(summary, too_long=_TOO_LONG)
