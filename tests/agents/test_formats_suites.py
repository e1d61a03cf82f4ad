"""Hundreds of turns a family (`format_cases.py`): what is written is read, what is broken is no call, what is
quoted is none either, and nothing raises."""

import json

import pytest

from agents.formats import FORMATS, turn_parser
from agents.formats.calls import ParsedTurn, ToolCall
from tests.support.format_cases import FAMILIES, adversarial, make_malformed, well_formed
from tests.support.format_writers import schemas_of

LEAST = 200
each_family = pytest.mark.parametrize("family", FAMILIES)


def parse_text(family: str, text: str, calls: list[ToolCall]) -> ParsedTurn:
    return turn_parser(family, schemas_of(calls))(text)


def is_plain(turn: ParsedTurn) -> None:
    """What comes of a turn fits a file and a wire, whatever was in it."""
    json.dumps([dict(call.arguments) for call in turn.calls], allow_nan=False).encode()
    (turn.thought + (turn.answer or "") + (turn.problem or "")).encode()


@each_family
def test_what_was_written_is_read(family: str) -> None:
    cases = well_formed(family)
    assert len({text for text, _ in cases}) >= LEAST
    for text, calls in cases:
        turn = parse_text(family, text, calls)
        assert (list(turn.calls), turn.problem, turn.answer) == (calls, None, None), text
        is_plain(turn)


@each_family
def test_what_is_broken_is_no_call(family: str) -> None:
    cases = make_malformed(family)
    assert len(set(cases)) >= LEAST
    for text in cases:
        turn = FORMATS[family].parse(text)
        assert turn.calls == (), text
        # Where plain text is the answer, a mark that is broken itself leaves plain text.
        explanation = turn.problem or (turn.answer if family in ("qwen3", "llama3") else None)
        assert explanation, text
        is_plain(turn)


@each_family
def test_what_is_quoted_is_no_call(family: str) -> None:
    cases = adversarial(family)
    assert len({text for text, _ in cases}) >= LEAST
    for text, calls in cases:
        turn = parse_text(family, text, calls)
        assert list(turn.calls) == calls, text
        is_plain(turn)
