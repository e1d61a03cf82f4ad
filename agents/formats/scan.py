"""Scans a completion outside its think-blocks, so that a thought is never read as a call.

A format provides the pattern that opens its constructs and a function that reads one; a construct is skipped
as a whole, so that a `<think>` within an argument opens no thought. This module knows no format. A scan is
one pass from left to right.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import wraps
from typing import Generic, TypeVar

from agents.formats.calls import ParsedTurn, ToolCall, TurnParser
from envs.types import replace_surrogates

MAX_CHARS = 1 << 19
"""Longer completions (about 130,000 tokens) are refused without being read."""
MAX_MARKS = 1024
"""The most openings of calls in a completion: a JSON error costs as much as the text before it."""


class _TooManyMarks(Exception):
    """Caught by `limit_text`."""


UNCLOSED_THOUGHT = "Your thinking has no end: close it with </think> before you act."

THOUGHT_START, THOUGHT_END = "<think>", "</think>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragment:
    """What a format read at one position."""

    calls: tuple[ToolCall, ...] = ()
    answer: str | None = None
    problem: str | None = None
    first_end: int = 0
    """Where the first of `calls` ends."""


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Scan(Generic[T]):
    """A completion, split into thoughts, constructs of the format, and prose."""

    thinking: str
    """The text of the think-blocks."""
    parts: list[str | T]
    """The rest in order: what the format read, and the prose around it."""
    is_closed: bool
    """False if the completion ends within a think-block."""

    @property
    def items(self) -> list[T]:
        """What the format read."""
        return [part for part in self.parts if not isinstance(part, str)]

    @property
    def prose(self) -> str:
        """Everything else outside think-blocks."""
        return "".join(part for part in self.parts if isinstance(part, str)).strip()

    @property
    def thought(self) -> str:
        """Think-blocks, then prose."""
        return "\n".join(filter(None, (self.thinking, self.prose)))


def marks(pattern: str, flags: re.RegexFlag = re.NOFLAG) -> re.Pattern[str]:
    """The pattern for `scan` of what opens a construct of a format."""
    return re.compile(f"(?P<think></?think>)|{pattern}", flags)


def scan(
    text: str, *, marks: re.Pattern[str], read: Callable[[str, re.Match[str]], tuple[T | str, int]]
) -> Scan[T]:
    """Split `text`. `read` is called for each mark outside think-blocks; it returns what it read there (a
    text counts as prose) and where the scan goes on.

    Blocks do not nest: the first `</think>` ends one. A `</think>` that closes nothing turns all text
    before it into a thought: templates of reasoning models open the block in the prompt, and in a nested
    block the outer one ends there. An unclosed `<think>` extends to the end.
    """
    thoughts: list[str] = []
    pieces: list[tuple[str, str | T | None]] = []  # the text, and what it is; None is a thought
    is_closed, position, marks_read = True, 0, 0
    while match := marks.search(text, position):
        if match.start() > position:
            prose = text[position : match.start()]
            pieces.append((prose, prose))
        if match["think"] == THOUGHT_END:
            thoughts += [raw for raw, _ in pieces]
            pieces.clear()
            position = match.end()
        elif match["think"] == THOUGHT_START:
            end = text.find(THOUGHT_END, match.end())
            is_closed = end >= 0
            end = end if is_closed else len(text)
            pieces.append((text[match.end() : end], None))
            position = min(end + len(THOUGHT_END), len(text))
        else:
            if marks_read == MAX_MARKS:
                raise _TooManyMarks
            marks_read += 1
            item, position = read(text, match)
            assert position >= match.end()
            pieces.append((text[match.start() : position], item))
    if position < len(text):
        pieces.append((text[position:], text[position:]))
    thoughts += [raw for raw, part in pieces if part is None]
    thinking = "\n".join(filter(None, (thought.strip() for thought in thoughts)))
    return Scan(thinking, [part for _, part in pieces if part is not None], is_closed)


def write_thinking(thought: str, rest: str) -> str:
    """`thought` as a think-block before `rest`; `rest` alone where there is no thought."""
    return f"{THOUGHT_START}\n{thought}\n{THOUGHT_END}\n\n{rest}" if thought else rest


_NOTHING = marks(r"(?!)")


def split_thinking(text: str) -> tuple[str, str]:
    """Split into (the text within `<think>…</think>`, the rest), both stripped, by the rules of `scan`.

    Source: the chat templates of Qwen3 and DeepSeek-R1.
    """
    split: Scan[Fragment] = scan(text, marks=_NOTHING, read=lambda _, match: (Fragment(), match.end()))
    return split.thinking, split.prose


class Ends:
    """Where a closing pattern occurs in a text; searched once, to keep many openings linear."""

    def __init__(self, pattern: re.Pattern[str], text: str) -> None:
        self._matches = list(pattern.finditer(text))
        self._starts = [match.start() for match in self._matches]

    def after(self, position: int) -> re.Match[str] | None:
        """The first match that starts at `position` or later."""
        index = bisect_left(self._starts, position)
        return self._matches[index] if index < len(self._matches) else None


def give_up(text: str, position: int) -> int:
    """Where the scan goes on after a construct without an end: at the end of a thought, or of the text."""
    end = text.find(THOUGHT_END, position)
    return len(text) if end < 0 else end


def turn_of(fragments: Iterable[Fragment], *, thought: str, otherwise: ParsedTurn) -> ParsedTurn:
    """The turn that consists of `fragments`: the first problem, else the calls, else the first answer."""
    items = list(fragments)
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


def plain_answer(result: Scan[Fragment], *, hint: str) -> ParsedTurn:
    """A turn without calls in a format where plain text is the answer."""
    if result.prose:
        return ParsedTurn(thought=result.thinking, answer=result.prose)
    why = "Your turn says nothing." if result.is_closed else UNCLOSED_THOUGHT
    return ParsedTurn(thought=result.thinking, problem=f"{why} {hint}")


def limit_text(parse: TurnParser) -> TurnParser:
    """Make `parse` accept any text: one that is too long is refused, a lone surrogate becomes U+FFFD."""

    @wraps(parse)
    def read(text: str) -> ParsedTurn:
        if len(text) > MAX_CHARS:
            return ParsedTurn(
                thought="", problem=f"Your turn has {len(text)} characters; write at most {MAX_CHARS}."
            )
        try:
            return parse(replace_surrogates(text))
        except _TooManyMarks:
            problem = f"Your turn begins more than {MAX_MARKS} calls or blocks; write one at a time."
            return ParsedTurn(thought="", problem=problem)

    return read
