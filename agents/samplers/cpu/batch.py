"""What one call of the compiled functions computes, as arrays.

`forward.py` describes the arrays; who decides what is in a batch is the engine.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from agents.samplers.cpu.forward import COUNT, FIRST


class Place(NamedTuple):
    """Where a sequence's keys and values lie; 0 for a block that it does not have."""

    address: int
    """Of the block that its tokens are written to."""
    columns: int
    prefix_address: int = 0
    """Of the block before it."""
    prefix_columns: int = 0
    prefix_length: int = 0
    """Tokens in the block before it."""


class Segment(NamedTuple):
    """Consecutive tokens of one sequence, computed in one forward."""

    tokens: Sequence[int]
    start: int
    """Position of the first token in the sequence."""
    place: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """How the next tokens of N sequences are drawn."""

    keys: np.ndarray  # [N]
    temperatures: np.ndarray  # [N]
    stops: np.ndarray  # [N, any]
    limits: np.ndarray  # [N]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Segments of S sequences, with N tokens in all."""

    tokens: np.ndarray  # [N]
    positions: np.ndarray  # [N]
    segments: np.ndarray  # [S, 7]
    draws: Draws | None = None
    """Of a batch with the last token of each sequence, from which others are to be drawn."""

    def split(self, parts: int) -> list["Batch"]:
        """Batches for `parts` threads, with about as many tokens each; fewer if there are fewer segments."""
        ends = np.cumsum(self.segments[:, COUNT])
        cuts = np.searchsorted(ends, ends[-1] * np.arange(1, parts) / parts) + 1
        limits = sorted({0, len(ends), *(int(cut) for cut in cuts if cut < len(ends))})
        return [self._part(first, end) for first, end in itertools.pairwise(limits)]

    def _part(self, first: int, end: int) -> "Batch":
        segments = self.segments[first:end].copy()
        start = segments[0, FIRST]
        rows = slice(start, segments[-1, FIRST] + segments[-1, COUNT])
        segments[:, FIRST] -= start
        draws = self.draws
        if draws is not None:
            draws = Draws(
                keys=draws.keys[first:end],
                temperatures=draws.temperatures[first:end],
                stops=draws.stops[first:end],
                limits=draws.limits[first:end],
            )
        return Batch(tokens=self.tokens[rows], positions=self.positions[rows], segments=segments, draws=draws)


def make_batch(segments: Iterable[Segment], draws: Draws | None = None) -> Batch:
    """The batch of `segments`, of which those with one prefix follow each other."""
    tokens: list[int] = []
    positions: list[int] = []
    table = []
    for new_tokens, start, place in segments:
        count = len(new_tokens)
        table.append((len(tokens), count, *place))
        tokens += new_tokens
        positions += (start,) if count == 1 else range(start, start + count)
    return Batch(
        tokens=np.array(tokens, dtype=np.int64),
        positions=np.array(positions, dtype=np.int64),
        segments=np.array(table, dtype=np.int64),
        draws=draws,
    )
