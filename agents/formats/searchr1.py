"""Search-R1: thoughts in `<think>`, then `<search>query</search>` or `<answer>…</answer>`."""

import re

from agents.formats.calls import ParsedTurn, ToolCall
from agents.formats.scan import UNCLOSED, Ends, Found, bounded, give_up, marks, scan, turn_of, write_thinking

TOOL, ARGUMENT = "search", "query"
"""The one tool that the format can call, and its one argument."""

EXPECTED = "Write <search>query</search> and stop, or <answer>...</answer> when you are done."

_MARKS = marks(r"<(?P<tag>search|answer)>")
_ENDS = {tag: re.compile(f"</{tag}>") for tag in ("search", "answer")}


@bounded
def searchr1(text: str) -> ParsedTurn:
    """One search or one answer.

    Source: Search-R1's inference script, which stops sampling at `</search>` and takes the first pair
    of tags. Here a turn with more than one is refused: what follows a search was written without its result.
    """
    ends = {tag: Ends(pattern, text) for tag, pattern in _ENDS.items()}

    def read(text: str, match: re.Match[str]) -> tuple[Found, int]:
        tag = match["tag"]
        end = ends[tag].after(match.end())
        thought_end = give_up(text, match.end())
        if end is None or thought_end < end.start():  # a thought may speak of the tags
            return Found(problem=f"<{tag}> is not closed by </{tag}>. {EXPECTED}"), thought_end
        content = text[match.end() : end.start()].strip()
        if not content:
            return Found(problem=f"<{tag}> is empty. {EXPECTED}"), end.end()
        if tag == "answer":
            return Found(answer=content), end.end()
        return Found(calls=(ToolCall(TOOL, {ARGUMENT: content}),)), end.end()

    scanned = scan(text, marks=_MARKS, read=read)
    items = scanned.items
    if len(items) > 1:
        items = [Found(problem=f"Your turn has {len(items)} searches or answers; one a turn. {EXPECTED}")]
    why = "Your turn has neither a search nor an answer." if scanned.closed else UNCLOSED
    otherwise = ParsedTurn(thought=scanned.thought, problem=f"{why} {EXPECTED}")
    return turn_of(items, thought=scanned.thought, otherwise=otherwise)


def write_searchr1(turn: ParsedTurn) -> str:
    """The search or the answer between its tags."""
    searches = [f"<search>{call.arguments[ARGUMENT]}</search>" for call in turn.calls]
    return write_thinking(turn.thought, "\n".join(searches) or f"<answer>{turn.answer}</answer>")
