"""The tool by which an agent gives its answer, and so ends the episode."""

from agents.tools.tool import tool


@tool(finish=True, max_length=None)
def answer(answer: str) -> str:
    """Give the final answer. Nothing can be done after it.

    Args:
        answer: The answer, and nothing besides.
    """
    return answer
