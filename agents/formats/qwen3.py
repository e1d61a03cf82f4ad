"""Qwen3-Coder's XML, `<tool_call><function=f><parameter=x>…</parameter></function></tool_call>`.

Values are text here; `agents/formats/fitting.py` gives them the types of the schema.
"""

import re

from agents.formats.calls import ParsedTurn, ToolCall
from agents.formats.hermes import CLOSING, OPENING, read_closing, read_json
from agents.formats.json_values import MAX_NAME, dumps, skip_space
from agents.formats.scan import Ends, Fragment, limit_text, marks, plain_answer, scan, turn_of, write_thinking

HINT = (
    "Write each call as <tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n</function>\n"
    "</tool_call>, or answer in plain text."
)

_MARKS = marks(r"</?tool_call>|</?(?:function|parameter)(?=[=>])")
_MARK = "<function"
_FUNCTION = re.compile(rf"<function=([^<>\s]{{1,{MAX_NAME}}})>\s*")
_FUNCTION_CLOSING = "</function>"
_FUNCTION_END = re.compile(rf"{_FUNCTION_CLOSING}\s*")
_PARAMETER = re.compile(rf"<parameter=([^<>\s]{{1,{MAX_NAME}}})>")
# A value may itself hold the closing tag: the one that ends it is followed by more of the call.
_VALUE_END = re.compile(r"</parameter>\s*(?=<parameter=|</function>)")


@limit_text
def qwen3(text: str) -> ParsedTurn:
    """Calls of Qwen3-Coder and Qwen3.5; a call in Hermes' JSON, as Qwen3 writes it, is read as well.

    Source: the chat template of Qwen3-Coder. It puts one line end on either side of a value, and these
    are removed. `<tool_call>`, which these models often forget, may be missing, and so may the last closing
    tag. The format has no escapes: a value that holds `</parameter>` and then `</function>` or
    `<parameter=` ends there, and the rest then makes the turn malformed.
    """
    ends = Ends(_VALUE_END, text)

    def read(text: str, match: re.Match[str]) -> tuple[Fragment, int]:
        position = match.end()
        if match[0] == OPENING:
            position = skip_space(text, position)
            if text.startswith("{", position):
                return read_json(text, position, hint=HINT)
        elif match[0] == _MARK:
            position = match.start()
        else:
            return Fragment(problem=f"Your turn has {match[0]} outside of a call. {HINT}"), position
        return _read_functions(text, position, ends)

    result = scan(text, marks=_MARKS, read=read)
    return turn_of(result.items, thought=result.thought, otherwise=plain_answer(result, hint=HINT))


def _read_functions(text: str, position: int, ends: Ends) -> tuple[Fragment, int]:
    calls: list[ToolCall] = []
    first_end = 0
    while function := _FUNCTION.match(text, position):
        position = function.end()
        arguments: dict[str, str] = {}
        while parameter := _PARAMETER.match(text, position):
            end = ends.after(parameter.end())
            if end is None:  # whatever follows may be part of the value
                why = f"a <parameter=…> is not followed by </parameter> and then </function>. {HINT}"
                return Fragment(problem=f"A call cannot be read: {why}"), len(text)
            value = text[parameter.end() : end.start()]
            arguments[parameter[1]] = value.removeprefix("\n").removesuffix("\n")
            position = end.end()
        function_end = _FUNCTION_END.match(text, position)
        if not function_end:
            problem = f"A call cannot be read: <function=…> is not followed by </function>. {HINT}"
            return Fragment(problem=problem), position
        position = function_end.end()
        calls.append(ToolCall(function[1], arguments))
        first_end = first_end or function_end.start() + len(_FUNCTION_CLOSING)
    if not calls:
        # Past a mark that begins no function, so that the scan goes on.
        position += len(_MARK) if text.startswith(_MARK, position) else 0
        return Fragment(problem=f"{OPENING} is not followed by <function=NAME>. {HINT}"), position
    fragment = Fragment(calls=tuple(calls), first_end=first_end)
    if text.startswith(OPENING, position):
        return fragment, position  # its closing tag is missing, and the next call begins
    if not text.startswith(CLOSING, position) and position < len(text):
        return fragment, position  # nor is it there within prose
    whole, position = read_closing(text, position, calls=fragment.calls, hint=HINT)
    return (whole if len(calls) == 1 else fragment), position


def write_qwen3(turn: ParsedTurn) -> str:
    """Write calls as the chat template of Qwen3-Coder does; values that are no text are JSON."""
    blocks = []
    for call in turn.calls:
        lines = [OPENING, f"<function={call.name}>"]
        for key, value in call.arguments.items():
            lines += [f"<parameter={key}>", value if isinstance(value, str) else dumps(value), "</parameter>"]
        blocks.append("\n".join([*lines, _FUNCTION_CLOSING, CLOSING]))
    return write_thinking(turn.thought, "\n".join(blocks) or str(turn.answer))
