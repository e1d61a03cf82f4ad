"""Fences of blocks of code: a block ends at the first fence as long as its own, or longer (CommonMark)."""

import re
from bisect import bisect_left
from itertools import accumulate


class ClosingFences:
    """The fences of a text that may close a block; time linear in the text if blocks do not overlap."""

    def __init__(self, pattern: re.Pattern[str], text: str) -> None:
        """`pattern` matches a fence; its group `fence` holds the backquotes."""
        self._matches = list(pattern.finditer(text))
        self._starts = [match.start() for match in self._matches]
        lengths = [len(match["fence"]) for match in self._matches]
        self._longest_after = list(accumulate(reversed(lengths), max))[::-1]

    def after(self, opening: re.Match[str]) -> re.Match[str] | None:
        """The fence that closes the block which `opening`, with a group `fence`, opens; None without one."""
        index = bisect_left(self._starts, opening.end())
        length = len(opening["fence"])
        if index == len(self._matches) or self._longest_after[index] < length:
            return None
        while len(self._matches[index]["fence"]) < length:
            index += 1
        return self._matches[index]


def write_block(code: str, *, language: str) -> str:
    """`code` as a block whose fences are longer than all in it."""
    longest = max(map(len, re.findall("`+", code)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{code}\n{fence}"
