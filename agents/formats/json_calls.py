"""Calls as JSON values within prose: the generic format, and Llama 3's.

Values are read whole: text that looks like a call within another value or its strings is not a call.
"""

import re
from collections.abc import Callable
from dataclasses import replace

from agents.formats.calls import ParsedTurn, ToolCall
from agents.formats.json_values import Value, broken_end, call_of, decode_at, dumps
from agents.formats.scan import (
    THOUGHT_END,
    UNCLOSED_THOUGHT,
    Ends,
    Fragment,
    Scan,
    limit_text,
    marks,
    plain_answer,
    scan,
    turn_of,
    write_thinking,
)

JSON_HINT = (
    'Write one JSON object {"name": "...", "arguments": {...}}, or an array of such objects, '
    'or {"answer": "..."} when you are done.'
)
LLAMA3_HINT = (
    'Write a call as {"name": "...", "parameters": {...}}, several with ; between them, '
    "or answer in plain text."
)

_TAG = "<|python_tag|>"
_PYTHON_TAG = Fragment()
# Only what may hold a call: prose is full of other brackets.
_MARKS = marks(r'\{\s*+"|\[\s*+\{|<\|python_tag\|>')
_LIKE_A_CALL = re.compile(r'\[?\s*\{\s*"(?:name|function|type|arguments|parameters|answer)"')
_SEPARATOR = re.compile(r"\s*;\s*")
_END_OF_THOUGHT = re.compile(THOUGHT_END)


@limit_text
def json(text: str) -> ParsedTurn:
    """The first JSON value that is a call, an array of calls or `{"answer": …}`, fenced or not.

    Source: none; any instructed model can write it (`agents/prompting/prompts/json.md`). What follows that
    value is ignored.
    """
    result = _scan(text, _calls_or_answer, hint=JSON_HINT)
    first = [item for item in result.items if item != _PYTHON_TAG][:1]
    why = "Your turn holds no call." if result.is_closed else UNCLOSED_THOUGHT
    return turn_of(
        first,
        thought=result.thought,
        otherwise=ParsedTurn(thought=result.thought, problem=f"{why} {JSON_HINT}"),
    )


@limit_text
def llama3(text: str) -> ParsedTurn:
    """Calls of Llama 3.1 to 3.3, which write `parameters`, after a `<|python_tag|>` or without it.

    Source: the chat templates of Llama 3.1 and 3.2; that several calls are separated by `;` is vLLM's
    `llama3_json`. The tag is a control token, which decoding leaves out. Calls are found after prose
    as well; JSON that is not a call is part of an answer, unless the tag announces a call.
    """
    result = _scan(text, _call, hint=LLAMA3_HINT)
    otherwise = plain_answer(result, hint=LLAMA3_HINT)
    if _PYTHON_TAG in result.items:
        problem = f"Your turn announces a call and has none. {LLAMA3_HINT}"
        otherwise = ParsedTurn(thought=result.thought, problem=problem)
    return turn_of(result.items, thought=result.thought, otherwise=otherwise)


def _scan(text: str, interpret: Callable[[object], Fragment | str | None], *, hint: str) -> Scan[Fragment]:
    """`interpret` returns what a value is, why it is a bad call, or None for any other value."""
    ends_of_thoughts = Ends(_END_OF_THOUGHT, text)

    def read(text: str, match: re.Match[str]) -> tuple[Fragment | str, int]:
        start = match.start()
        if match[0] == _TAG:
            return _PYTHON_TAG, match.end()
        value = decode_at(text, start)
        if isinstance(value, Value):
            fragment = interpret(value.value)
            if fragment is None:
                return text[start : value.end], value.end
            if isinstance(fragment, str):
                return Fragment(problem=f"A call cannot be read: its {fragment}. {hint}"), value.end
            return replace(fragment, first_end=value.end), _past_separator(text, value.end)
        thought_end = ends_of_thoughts.after(start)
        end = broken_end(text, start, limit=thought_end.start() if thought_end else len(text))
        end = max(end, match.end())
        if _LIKE_A_CALL.match(text, start):
            return Fragment(problem=f"A call cannot be read: its JSON {value.why}. {hint}"), end
        return text[start:end], end

    return scan(text, marks=_MARKS, read=read)


def _past_separator(text: str, position: int) -> int:
    separator = _SEPARATOR.match(text, position)
    return separator.end() if separator else position


def _call(value: object) -> Fragment | str | None:
    call = call_of(value)
    return Fragment(calls=(call,)) if isinstance(call, ToolCall) else call


def _calls_or_answer(value: object) -> Fragment | str | None:
    if isinstance(value, list):
        calls = [call_of(element) for element in value]
        if not calls or None in calls:
            return None
        bad = next((call for call in calls if isinstance(call, str)), None)
        return bad or Fragment(calls=tuple(call for call in calls if isinstance(call, ToolCall)))
    if isinstance(value, dict) and value.keys() == {"answer"} and value["answer"] is not None:
        answer = value["answer"] if isinstance(value["answer"], str) else dumps(value["answer"])
        return Fragment(answer=answer) if answer.strip() else None
    return _call(value)


def write_json(turn: ParsedTurn) -> str:
    """One call, an array of several, or `{"answer": …}`."""
    calls = [{"name": call.name, "arguments": call.arguments} for call in turn.calls]
    value = {"answer": turn.answer} if turn.answer is not None else calls if len(calls) > 1 else calls[0]
    return write_thinking(turn.thought, dumps(value))


def write_llama3(turn: ParsedTurn) -> str:
    """Calls with `;` between them."""
    calls = [dumps({"name": call.name, "parameters": call.arguments}) for call in turn.calls]
    return write_thinking(turn.thought, "; ".join(calls) or str(turn.answer))
