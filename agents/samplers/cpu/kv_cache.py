"""Where the keys and values of all live episodes lie, and the batches of one forward.

A sequence's cache has two parts. Its *prefix* (the first prompt) is stored once and shared by every
episode that begins with it; the rest belongs to the episode and lies in a *slot* of one fixed array.
Decoding is bound by memory bandwidth: a group of 8 reads its prompt once per step, not 8 times.

`forward.py` describes the blocks. Knows nothing of requests; the engine says which token goes where.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from agents.samplers.cpu.forward import COUNT, FIRST, block_size
from agents.samplers.cpu.llama import ModelShape
from agents.samplers.cpu.tiles import BYTES, LANES, round_up

_CACHE_LINE = 64  # bytes


def bytes_per_token(shape: ModelShape) -> int:
    """Memory of one token's keys and values in all layers."""
    return BYTES * block_size(shape.sizes, LANES) // LANES


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


class Prefix:
    """The keys and values of a prompt's tokens."""

    def __init__(self, tokens: tuple[int, ...], *, shape: ModelShape) -> None:
        self.tokens = tokens
        self.is_filled = not tokens
        """Whether a forward has written them."""
        self.users = 0
        self.last_used = 0
        columns = round_up(len(tokens), LANES)
        self._block = _aligned(block_size(shape.sizes, columns))
        self.place = Place(self._block.ctypes.data, columns)

    def __len__(self) -> int:
        return len(self.tokens)


class Segment(NamedTuple):
    """Consecutive tokens of one sequence, computed in one forward."""

    tokens: Sequence[int]
    start: int
    """Position of the first token in the sequence."""
    place: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What one forward computes; `forward.forward` describes the arrays."""

    tokens: np.ndarray  # [N]
    positions: np.ndarray  # [N]
    segments: np.ndarray  # [S, 7]

    @property
    def last_of_segment(self) -> np.ndarray:
        """[S], the row of each segment's last token."""
        last: np.ndarray = self.segments[:, FIRST] + self.segments[:, COUNT] - 1
        return last


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """How the next tokens of a batch's sequences are drawn; `forward.generate` describes the arrays."""

    keys: np.ndarray  # [N]
    temperatures: np.ndarray  # [N]
    stops: np.ndarray  # [N, any]
    limits: np.ndarray  # [N]

    def part(self, first: int, end: int) -> "Draws":
        """That of some sequences alone."""
        rows = slice(first, end)
        return Draws(
            keys=self.keys[rows],
            temperatures=self.temperatures[rows],
            stops=self.stops[rows],
            limits=self.limits[rows],
        )


def make_batch(segments: Iterable[Segment]) -> Batch:
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
    )


class Slots:
    """The episodes' blocks: one array of fixed size. A page takes memory once it is written."""

    def __init__(self, shape: ModelShape, *, count: int, columns: int) -> None:
        self.columns = round_up(columns, LANES)
        """Of each slot."""
        size = block_size(shape.sizes, self.columns)
        self._blocks = _aligned(count * size)
        self._size = BYTES * size
        self._start = self._blocks.ctypes.data

    def place(self, slot: int, prefix: Prefix) -> Place:
        """That of a sequence in `slot`, after `prefix`."""
        address = self._start + slot * self._size
        return Place(address, self.columns, *prefix.place[:2], len(prefix))


def _aligned(size: int) -> np.ndarray:
    """`size` float32 numbers, 0, that begin with a cache line."""
    numbers = np.zeros(size + _CACHE_LINE // BYTES, dtype=np.float32)  # lazy pages
    start = -numbers.ctypes.data % _CACHE_LINE // BYTES
    return numbers[start : start + size]


def share_out(batch: Batch, parts: int) -> list[tuple[int, int]]:
    """Ranges of segments for `parts` threads, with about as many tokens each; fewer if need be."""
    ends = np.cumsum(batch.segments[:, COUNT])
    cuts = np.searchsorted(ends, ends[-1] * np.arange(1, parts) / parts) + 1
    limits = sorted({0, len(ends), *(int(cut) for cut in cuts if cut < len(ends))})
    return list(itertools.pairwise(limits))


def part_of(batch: Batch, first: int, end: int) -> Batch:
    """The batch of the segments `first` to `end` alone."""
    segments = batch.segments[first:end].copy()
    start = segments[0, FIRST]
    rows = slice(start, segments[-1, FIRST] + segments[-1, COUNT])
    segments[:, FIRST] -= start
    return Batch(tokens=batch.tokens[rows], positions=batch.positions[rows], segments=segments)
