"""Code as action: the turn's one ```python block is run, and a turn without one is the answer."""

import re

from agents.formats.calls import ParsedTurn, ToolCall
from agents.formats.fences import ClosingFences, write_block
from agents.formats.scan import (
    Fragment,
    give_up,
    limit_text,
    marks,
    plain_answer,
    scan,
    turn_of,
    write_thinking,
)

TOOL, ARGUMENT = "code_interpreter", "code"
"""The one tool that the format can call, and its one argument."""

HINT = "Write one ```python block, closed by ``` on a line of its own, or answer without code."

_FENCE = r"[ ]{0,3}(?P<fence>`{3,}+)[ \t]*+"
_MARKS = marks(rf"(?:^|(?<=</think>)){_FENCE}(?P<language>[\w+.-]*+)[^`\n]*+$", re.MULTILINE)
_END = re.compile(rf"^{_FENCE}$", re.MULTILINE)
_PYTHON = frozenset({"python", "py", "python3"})


@limit_text
def code(text: str) -> ParsedTurn:
    """The one ```python block of a turn, as `code_interpreter(code=…)`; blocks of other languages are prose.

    Source: AgentFly's code agent; fences are CommonMark's. Two python blocks are refused: the second was
    written without the output of the first.
    """
    ends = ClosingFences(_END, text)

    def read(text: str, match: re.Match[str]) -> tuple[Fragment | str, int]:
        is_python = match["language"].lower() in _PYTHON
        end = ends.after(match)
        if end is None:
            if is_python:
                return Fragment(problem=f"Your code has no end. {HINT}"), give_up(text, match.end())
            return match[0], match.end()
        if not is_python:
            return text[match.start() : end.end()], end.end()
        source = text[match.end() : end.start()].removeprefix("\n").removesuffix("\n")
        indentation = len(match[0]) - len(match[0].lstrip(" "))
        source = re.sub(rf"^[ ]{{0,{indentation}}}", "", source, flags=re.MULTILINE)
        if not source.strip():
            return Fragment(problem=f"Your block of code is empty. {HINT}"), end.end()
        return Fragment(calls=(ToolCall(TOOL, {ARGUMENT: source}),)), end.end()

    result = scan(text, marks=_MARKS, read=read)
    items = result.items
    if len(items) > 1:
        items = [Fragment(problem=f"Your turn has {len(items)} blocks of code; one a turn. {HINT}")]
    return turn_of(items, thought=result.thought, otherwise=plain_answer(result, hint=HINT))


def write_code(turn: ParsedTurn) -> str:
    """The call's code as a block, or the answer."""
    blocks = [write_block(str(call.arguments[ARGUMENT]), language="python") for call in turn.calls]
    return write_thinking(turn.thought, "\n\n".join(blocks) or str(turn.answer))
