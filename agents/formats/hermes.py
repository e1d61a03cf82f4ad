"""`<tool_call>{"name": …, "arguments": {…}}</tool_call>`, any number of them; plain text is the answer."""

import re

from agents.formats.calls import ParsedTurn, ToolCall
from agents.formats.json_values import InvalidJson, call_of, decode_at, dumps, skip_space
from agents.formats.scan import Found, bounded, marks, plain_answer, scan, turn_of, write_thinking

EXPECTED = (
    'Write each call as <tool_call>{"name": "...", "arguments": {...}}</tool_call>, or answer in plain text.'
)

OPENED, CLOSED = "<tool_call>", "</tool_call>"
_MARKS = marks(r"</?tool_call>")


@bounded
def hermes(text: str) -> ParsedTurn:
    """Calls of Hermes, Qwen2.5 and Qwen3 (thoughts before or between them are none).

    Source: the chat templates of NousResearch's Hermes 2 Pro and of Qwen2.5 and Qwen3. Other than
    parsers which look for the first `</tool_call>`, this one reads on where an argument holds that text.
    The last call may lack its closing tag. One that cannot be read spoils the turn.
    """
    scanned = scan(text, marks=_MARKS, read=_read)
    return turn_of(scanned.items, thought=scanned.thought, otherwise=plain_answer(scanned, expected=EXPECTED))


def _read(text: str, match: re.Match[str]) -> tuple[Found, int]:
    if match[0] == CLOSED:
        return Found(problem=f"Your turn has a {CLOSED} without a {OPENED}. {EXPECTED}"), match.end()
    return read_json(text, skip_space(text, match.end()), expected=EXPECTED)


def read_json(text: str, position: int, *, expected: str) -> tuple[Found, int]:
    """The call in JSON that begins at `position`, up to and with the closing tag after it."""
    decoded = decode_at(text, position)
    if isinstance(decoded, InvalidJson):
        return Found(problem=f"A call cannot be read: its JSON {decoded.why}. {expected}"), decoded.position
    call = call_of(decoded.value)
    if not isinstance(call, ToolCall):
        why = call or '"name" and "arguments" are not both there'
        return Found(problem=f"A call cannot be read: its {why}. {expected}"), decoded.end
    return closed(text, decoded.end, calls=(call,), expected=expected)


def closed(text: str, position: int, *, calls: tuple[ToolCall, ...], expected: str) -> tuple[Found, int]:
    """`calls`, if the closing tag or the end of the text follows them."""
    end = skip_space(text, position)
    if text.startswith(CLOSED, end):
        end += len(CLOSED)
        return Found(calls=calls, first_end=end), end
    if end == len(text):
        return Found(calls=calls, first_end=position), end
    return Found(problem=f"A call is not followed by {CLOSED}. {expected}"), end


def write_hermes(turn: ParsedTurn) -> str:
    """As the chat template of Qwen2.5 writes calls."""
    calls = [dumps({"name": call.name, "arguments": call.arguments}) for call in turn.calls]
    blocks = "\n".join(f"{OPENED}\n{call}\n{CLOSED}" for call in calls)
    return write_thinking(turn.thought, blocks or str(turn.answer))
