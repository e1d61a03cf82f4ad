"""Where the keys and values of all live episodes lie.

A sequence's cache has two parts. Its *prefix* (the first prompt) is stored once and shared by every
episode that begins with it; the rest belongs to the episode and lies in a *slot* of one fixed array.
Decoding is bound by memory bandwidth: a group of 8 reads its prompt once per step, not 8 times.

`forward.py` describes the blocks. Knows nothing of requests; the engine says which token goes where.
"""

import numpy as np

from agents.samplers.cpu.batch import Place
from agents.samplers.cpu.forward import block_size
from agents.samplers.cpu.llama import ModelShape
from agents.samplers.cpu.tiles import BYTES, LANES, round_up

_CACHE_LINE = 64  # bytes


def bytes_per_token(shape: ModelShape) -> int:
    """Memory of one token's keys and values in all layers."""
    return BYTES * block_size(shape.sizes, LANES) // LANES


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
        """Where the keys and values of a sequence in `slot` lie that begins with `prefix`."""
        address = self._start + slot * self._size
        return Place(address, self.columns, *prefix.place[:2], len(prefix))


def _aligned(size: int) -> np.ndarray:
    """`size` float32 numbers, 0, that begin with a cache line."""
    numbers = np.zeros(size + _CACHE_LINE // BYTES, dtype=np.float32)  # lazy pages
    start = -numbers.ctypes.data % _CACHE_LINE // BYTES
    return numbers[start : start + size]
