"""The tool by which an agent cuts its own conversation (context folding, when the agent sees fit)."""

from agents.tools.tool import tool
from agents.tools.types import Summary

_TOO_LONG = "Nothing was cut: your summary takes half of all the room. Write a shorter one."


@tool(max_length=None)
async def summarize(summary: str) -> Summary:
    """Cut the conversation, to have room to go on. Only the task and what you write here will be left of it.

    Args:
        summary: All that is needed to go on: what has been done, what was found out, what comes next.
    """
    return Summary(summary, too_long=_TOO_LONG)
