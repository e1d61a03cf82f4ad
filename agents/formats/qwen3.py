"""Qwen3-Coder's XML, `<tool_call><function=f><parameter=x>…</parameter></function></tool_call>`.

Values are text here; `agents/formats/fitting.py` gives them their types, which only a schema knows.
"""

import re

from agents.formats.calls import ParsedTurn, ToolCall
from agents.formats.hermes import CLOSED, OPENED, closed, read_json
from agents.formats.json_values import MAX_NAME, dumps, skip_space
from agents.formats.scan import Ends, Found, bounded, marks, plain_answer, scan, turn_of, write_thinking

EXPECTED = (
    "Write each call as <tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n</function>\n"
    "</tool_call>, or answer in plain text."
)

_MARKS = marks(r"</?tool_call>|</?(?:function|parameter)(?=[=>])")
_MARK = "<function"
_FUNCTION = re.compile(rf"<function=([^<>\s]{{1,{MAX_NAME}}})>\s*")
_FUNCTION_CLOSED = "</function>"
_FUNCTION_END = re.compile(rf"{_FUNCTION_CLOSED}\s*")
_PARAMETER = re.compile(rf"<parameter=([^<>\s]{{1,{MAX_NAME}}})>")
# A value may itself hold the closing tag: the one that ends it is followed by more of the call.
_VALUE_END = re.compile(r"</parameter>\s*(?=<parameter=|</function>)")


@bounded
def qwen3(text: str) -> ParsedTurn:
    """Calls of Qwen3-Coder and Qwen3.5; a call in Hermes' JSON is read, too, as Qwen3 writes it.

    Source: the chat template of Qwen3-Coder. It puts one line end on either side of a value, and these
    are taken off. `<tool_call>` may be missing, which these models often forget, and so may the last
    closing one. The format has no escapes: a value that holds `</parameter>` and then `</function>` or
    `<parameter=` ends there; what is left over then spoils the turn.
    """
    ends = Ends(_VALUE_END, text)

    def read(text: str, match: re.Match[str]) -> tuple[Found, int]:
        position = match.end()
        if match[0] == OPENED:
            position = skip_space(text, position)
            if text.startswith("{", position):
                return read_json(text, position, expected=EXPECTED)
        elif match[0] == _MARK:
            position = match.start()
        else:
            return Found(problem=f"Your turn has {match[0]} outside of a call. {EXPECTED}"), position
        return _read_functions(text, position, ends)

    scanned = scan(text, marks=_MARKS, read=read)
    return turn_of(scanned.items, thought=scanned.thought, otherwise=plain_answer(scanned, expected=EXPECTED))


def _read_functions(text: str, position: int, ends: Ends) -> tuple[Found, int]:
    calls: list[ToolCall] = []
    first_end = 0
    while function := _FUNCTION.match(text, position):
        position = function.end()
        arguments: dict[str, str] = {}
        while parameter := _PARAMETER.match(text, position):
            end = ends.after(parameter.end())
            if end is None:  # whatever follows may be part of the value
                why = f"a <parameter=…> is not followed by </parameter> and then </function>. {EXPECTED}"
                return Found(problem=f"A call cannot be read: {why}"), len(text)
            value = text[parameter.end() : end.start()]
            arguments[parameter[1]] = value.removeprefix("\n").removesuffix("\n")
            position = end.end()
        function_end = _FUNCTION_END.match(text, position)
        if not function_end:
            problem = f"A call cannot be read: <function=…> is not followed by </function>. {EXPECTED}"
            return Found(problem=problem), position
        position = function_end.end()
        calls.append(ToolCall(function[1], arguments))
        first_end = first_end or function_end.start() + len(_FUNCTION_CLOSED)
    if not calls:
        # Past a mark that begins no function, so that the walk goes on.
        position += len(_MARK) if text.startswith(_MARK, position) else 0
        return Found(problem=f"{OPENED} is not followed by <function=NAME>. {EXPECTED}"), position
    found = Found(calls=tuple(calls), first_end=first_end)
    if text.startswith(OPENED, position):
        return found, position  # its closing tag is missing, and the next call begins
    if not text.startswith(CLOSED, position) and position < len(text):
        return found, position  # nor is it there in the midst of prose
    whole, position = closed(text, position, calls=found.calls, expected=EXPECTED)
    return (whole if len(calls) == 1 else found), position


def write_qwen3(turn: ParsedTurn) -> str:
    """As the chat template of Qwen3-Coder writes calls; values that are no text are JSON."""
    blocks = []
    for call in turn.calls:
        lines = [OPENED, f"<function={call.name}>"]
        for key, value in call.arguments.items():
            lines += [f"<parameter={key}>", value if isinstance(value, str) else dumps(value), "</parameter>"]
        blocks.append("\n".join([*lines, _FUNCTION_CLOSED, CLOSED]))
    return write_thinking(turn.thought, "\n".join(blocks) or str(turn.answer))
