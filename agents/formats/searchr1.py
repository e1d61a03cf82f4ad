"""Search-R1: thoughts in `<think>`, then `<search>query</search>` or `<answer>…</answer>`."""

import re

from agents.formats.calls import ParsedTurn, ToolCall
from agents.formats.scan import (
    UNCLOSED_THOUGHT,
    Ends,
    Fragment,
    give_up,
    limit_text,
    marks,
    scan,
    turn_of,
    write_thinking,
)

TOOL, ARGUMENT = "search", "query"
"""The one tool that the format can call, and its one argument."""

HINT = "Write <search>query</search> and stop, or <answer>...</answer> when you are done."

_MARKS = marks(r"<(?P<tag>search|answer)>")
_ENDS = {tag: re.compile(f"</{tag}>") for tag in ("search", "answer")}


@limit_text
def searchr1(text: str) -> ParsedTurn:
    """One search or one answer.

    Source: Search-R1's inference script, which stops sampling at `</search>` and takes the first pair
    of tags. Here a turn with more than one is refused: what follows a search was written without its result.
    """
    ends = {tag: Ends(pattern, text) for tag, pattern in _ENDS.items()}

    def read(text: str, match: re.Match[str]) -> tuple[Fragment, int]:
        tag = match["tag"]
        end = ends[tag].after(match.end())
        thought_end = give_up(text, match.end())
        if end is None or thought_end < end.start():  # a thought may mention the tags
            return Fragment(problem=f"<{tag}> is not closed by </{tag}>. {HINT}"), thought_end
        content = text[match.end() : end.start()].strip()
        if not content:
            return Fragment(problem=f"<{tag}> is empty. {HINT}"), end.end()
        if tag == "answer":
            return Fragment(answer=content), end.end()
        return Fragment(calls=(ToolCall(TOOL, {ARGUMENT: content}),)), end.end()

    result = scan(text, marks=_MARKS, read=read)
    items = result.items
    if len(items) > 1:
        items = [Fragment(problem=f"Your turn has {len(items)} searches or answers; one a turn. {HINT}")]
    why = "Your turn has neither a search nor an answer." if result.is_closed else UNCLOSED_THOUGHT
    otherwise = ParsedTurn(thought=result.thought, problem=f"{why} {HINT}")
    return turn_of(items, thought=result.thought, otherwise=otherwise)


def write_searchr1(turn: ParsedTurn) -> str:
    """The search or the answer between its tags."""
    searches = [f"<search>{call.arguments[ARGUMENT]}</search>" for call in turn.calls]
    return write_thinking(turn.thought, "\n".join(searches) or f"<answer>{turn.answer}</answer>")
