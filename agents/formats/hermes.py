"""`<tool_call>{"name": …, "arguments": {…}}</tool_call>`, any number of them; plain text is the answer."""

import re

from agents.formats.calls import ParsedTurn, ToolCall
from agents.formats.json_values import InvalidJson, call_of, decode_at, dumps, skip_space
from agents.formats.scan import Fragment, limit_text, marks, plain_answer, scan, turn_of, write_thinking

HINT = (
    'Write each call as <tool_call>{"name": "...", "arguments": {...}}</tool_call>, or answer in plain text.'
)

OPENING, CLOSING = "<tool_call>", "</tool_call>"
_MARKS = marks(r"</?tool_call>")


@limit_text
def hermes(text: str) -> ParsedTurn:
    """Calls of Hermes, Qwen2.5 and Qwen3; calls within thoughts are not calls.

    Source: the chat templates of NousResearch's Hermes 2 Pro and of Qwen2.5 and Qwen3. Unlike parsers that
    look for the first `</tool_call>`, this one reads on where an argument contains that text. The last call
    may lack its closing tag. One call that cannot be read makes the turn malformed.
    """
    result = scan(text, marks=_MARKS, read=_read)
    return turn_of(result.items, thought=result.thought, otherwise=plain_answer(result, hint=HINT))


def _read(text: str, match: re.Match[str]) -> tuple[Fragment, int]:
    if match[0] == CLOSING:
        return Fragment(problem=f"Your turn has a {CLOSING} without a {OPENING}. {HINT}"), match.end()
    return read_json(text, skip_space(text, match.end()), hint=HINT)


def read_json(text: str, position: int, *, hint: str) -> tuple[Fragment, int]:
    """The call in JSON that begins at `position`, up to and including the closing tag after it."""
    value = decode_at(text, position)
    if isinstance(value, InvalidJson):
        return Fragment(problem=f"A call cannot be read: its JSON {value.why}. {hint}"), value.position
    call = call_of(value.value)
    if not isinstance(call, ToolCall):
        why = call or '"name" and "arguments" are not both there'
        return Fragment(problem=f"A call cannot be read: its {why}. {hint}"), value.end
    return read_closing(text, value.end, calls=(call,), hint=hint)


def read_closing(text: str, position: int, *, calls: tuple[ToolCall, ...], hint: str) -> tuple[Fragment, int]:
    """`calls`, if the closing tag or the end of the text comes next."""
    end = skip_space(text, position)
    if text.startswith(CLOSING, end):
        end += len(CLOSING)
        return Fragment(calls=calls, first_end=end), end
    if end == len(text):
        return Fragment(calls=calls, first_end=position), end
    return Fragment(problem=f"A call is not followed by {CLOSING}. {hint}"), end


def write_hermes(turn: ParsedTurn) -> str:
    """Write calls as the chat template of Qwen2.5 does."""
    calls = [dumps({"name": call.name, "arguments": call.arguments}) for call in turn.calls]
    blocks = "\n".join(f"{OPENING}\n{call}\n{CLOSING}" for call in calls)
    return write_thinking(turn.thought, blocks or str(turn.answer))
