"""Walks over a completion outside its think-blocks, so that a thought is never read as a call.

A format says what opens something of its own (a pattern) and how that is read; what was read is
skipped as a whole, so that a `<think>` within an argument opens no thought either. This file knows no
format. Everything is one pass from left to right.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import wraps
from typing import Generic, TypeVar

from agents.formats.calls import ParsedTurn, ToolCall, TurnParser

MAX_CHARS = 1 << 19
"""Longer completions (some 130,000 tokens) are refused unread."""
MAX_MARKS = 1024
"""Openings of calls in one completion; an error of the JSON decoder costs as much as the text before it."""


class _TooManyMarks(Exception):
    """Caught by `bounded`."""


UNCLOSED = "Your thinking has no end: close it with </think> before you act."

_OPEN, _CLOSE = "<think>", "</think>"
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What was read at one place."""

    calls: tuple[ToolCall, ...] = ()
    answer: str | None = None
    problem: str | None = None
    first_end: int = 0
    """Where the first of `calls` ends; see `ParsedTurn`."""


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Scan(Generic[T]):
    """A completion taken apart."""

    thinking: str
    """The text of the think-blocks."""
    parts: list[str | T]
    """The rest in order: what was read, and the prose around it."""
    closed: bool
    """False where the completion ends within a think-block."""

    @property
    def items(self) -> list[T]:
        """What was read."""
        return [part for part in self.parts if not isinstance(part, str)]

    @property
    def prose(self) -> str:
        """Everything outside think-blocks that was not read."""
        return "".join(part for part in self.parts if isinstance(part, str)).strip()

    @property
    def thought(self) -> str:
        """Think-blocks, then prose."""
        return "\n".join(filter(None, (self.thinking, self.prose)))


def marks(pattern: str, flags: re.RegexFlag = re.NOFLAG) -> re.Pattern[str]:
    """The pattern for `scan` of what opens something of a format's own."""
    return re.compile(f"(?P<think></?think>)|{pattern}", flags)


def scan(
    text: str, *, marks: re.Pattern[str], read: Callable[[str, re.Match[str]], tuple[T | str, int]]
) -> Scan[T]:
    """Take `text` apart. `read` gets each mark outside think-blocks, and says what that is (text: prose
    after all) and where reading goes on.

    Blocks do not nest: the first `</think>` ends one. A `</think>` that closes nothing makes a thought
    of all that stands before it: templates of reasoning models open the block in the prompt, and in a
    nested block that is where the outer one ends. An unclosed `<think>` reaches to the end.
    """
    thoughts: list[str] = []
    pieces: list[tuple[str, str | T | None]] = []  # what stands there, and as what; None is a thought
    closed, at, marks_read = True, 0, 0
    while match := marks.search(text, at):
        if match.start() > at:
            prose = text[at : match.start()]
            pieces.append((prose, prose))
        if match["think"] == _CLOSE:
            thoughts += [raw for raw, _ in pieces]
            pieces.clear()
            at = match.end()
        elif match["think"] == _OPEN:
            end = text.find(_CLOSE, match.end())
            closed = end >= 0
            end = end if closed else len(text)
            pieces.append((text[match.end() : end], None))
            at = min(end + len(_CLOSE), len(text))
        else:
            if marks_read == MAX_MARKS:
                raise _TooManyMarks
            marks_read += 1
            item, at = read(text, match)
            assert at >= match.end()
            pieces.append((text[match.start() : at], item))
    if at < len(text):
        pieces.append((text[at:], text[at:]))
    thoughts += [raw for raw, part in pieces if part is None]
    thinking = "\n".join(filter(None, (thought.strip() for thought in thoughts)))
    return Scan(thinking, [part for _, part in pieces if part is not None], closed)


def write_thinking(thought: str, rest: str) -> str:
    """`thought` as a think-block before `rest`; `rest` alone where there is no thought."""
    return f"{_OPEN}\n{thought}\n{_CLOSE}\n\n{rest}" if thought else rest


_NOTHING = marks(r"(?!)")


def split_thinking(text: str) -> tuple[str, str]:
    """(what stands within `<think>…</think>`, the rest), both stripped; the rules are `scan`'s.

    Source: the chat templates of Qwen3 and DeepSeek-R1.
    """
    split: Scan[Found] = scan(text, marks=_NOTHING, read=lambda _, match: (Found(), match.end()))
    return split.thinking, split.prose


class Ends:
    """Where a closing pattern occurs in a text; found once, lest many openers make the work quadratic."""

    def __init__(self, pattern: re.Pattern[str], text: str) -> None:
        self._matches = list(pattern.finditer(text))
        self._starts = [match.start() for match in self._matches]

    def after(self, position: int) -> re.Match[str] | None:
        """The first one that starts at `position` or later."""
        index = bisect_left(self._starts, position)
        return self._matches[index] if index < len(self._matches) else None


def give_up(text: str, position: int) -> int:
    """Where to read on after something without an end: nothing but the end of a thought matters then."""
    end = text.find(_CLOSE, position)
    return len(text) if end < 0 else end


def turn_of(found: Iterable[Found], *, thought: str, otherwise: ParsedTurn) -> ParsedTurn:
    """The turn that consists of `found`: the first problem, else the calls, else the first answer."""
    items = list(found)
    end = next((item.first_end for item in items if item.calls or item.problem is not None), 0)
    for item in items:
        if item.problem is not None:
            return ParsedTurn(thought=thought, problem=item.problem, first_call_end=end)
    if calls := tuple(call for item in items for call in item.calls):
        return ParsedTurn(thought=thought, calls=calls, first_call_end=end)
    for item in items:
        if item.answer is not None:
            return ParsedTurn(thought=thought, answer=item.answer)
    return otherwise


def plain_answer(scanned: Scan[Found], *, expected: str) -> ParsedTurn:
    """A turn without calls in a format where plain text is the answer."""
    if scanned.prose:
        return ParsedTurn(thought=scanned.thinking, answer=scanned.prose)
    why = "Your turn says nothing." if scanned.closed else UNCLOSED
    return ParsedTurn(thought=scanned.thinking, problem=f"{why} {expected}")


def bounded(parse: TurnParser) -> TurnParser:
    """`parse`, for any text: what is too long is refused, a lone surrogate becomes U+FFFD."""

    @wraps(parse)
    def read(text: str) -> ParsedTurn:
        if len(text) > MAX_CHARS:
            return ParsedTurn(
                thought="", problem=f"Your turn has {len(text)} characters; write at most {MAX_CHARS}."
            )
        try:
            return parse(text if text.isascii() else _SURROGATE.sub("\ufffd", text))
        except _TooManyMarks:
            problem = f"Your turn begins more than {MAX_MARKS} calls or blocks; write one at a time."
            return ParsedTurn(thought="", problem=problem)

    return read
