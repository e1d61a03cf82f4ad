"""Keys and values of all live episodes on the CPU, and attention over them.

A sequence's cache has two parts. Its *prefix* (the first prompt) is stored once and shared by every
episode that begins with it; the rest belongs to the episode and lies in a *slot* of one fixed array.
Decoding is bound by memory bandwidth: a group of 8 reads its prompt once per step, not 8 times.

Keys and values lie with a row for each number of a head and a column for each token, as the kernel
(`attention.py`) reads them. Knows nothing of requests; the engine says which token goes where.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from agents.samplers.cpu.attention import attend
from agents.samplers.cpu.llama import ROWS, ModelShape, round_up

BYTES_PER_NUMBER = 4
_CACHE_LINE = 64  # bytes


def bytes_per_token(shape: ModelShape) -> int:
    """Memory of one token's keys and values in all layers."""
    return 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim * BYTES_PER_NUMBER


@dataclass(slots=True, eq=False)
class Prefix:
    """Keys and values of a prompt's tokens, filled layer by layer."""

    tokens: tuple[int, ...]
    layers: list[np.ndarray] = field(default_factory=list)  # [2, K, D, P] each
    users: int = 0
    last_used: int = 0

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Consecutive tokens of one episode, computed in one forward."""

    slot: int
    prefix: Prefix
    start: int
    """Position of the first token in the sequence."""
    tokens: Sequence[int]


class PromptAttention:
    """Attention of whole prefixes that start at position 0; fills their keys and values."""

    def __init__(self, prefixes: Sequence[Prefix], *, shape: ModelShape) -> None:
        self._prefixes = prefixes
        self._shape = shape
        self._lengths = [len(prefix) for prefix in prefixes]
        tokens = [token for prefix in prefixes for token in prefix.tokens]
        positions = [position for length in self._lengths for position in range(length)]
        self._padding = round_up(len(tokens), ROWS) - len(tokens)
        self.tokens = torch.tensor(tokens + [0] * self._padding)
        self.positions = torch.tensor(positions + [0] * self._padding)

    def __call__(self, layer: int, qkv: torch.Tensor) -> torch.Tensor:
        heads, kv_heads = self._shape.num_heads, self._shape.num_kv_heads
        *parts, padding = qkv.split([*self._lengths, self._padding])
        outputs = []
        for prefix, part in zip(self._prefixes, parts, strict=True):
            q, k, v = part.transpose(0, 1)[None].split([heads, kv_heads, kv_heads], dim=1)
            prefix.layers.append(torch.cat([k, v]).transpose(2, 3).contiguous().numpy())
            output = torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=True, scale=1.0, enable_gqa=kv_heads != heads
            )
            outputs.append(output[0].transpose(0, 1).flatten(1))
        return torch.cat([*outputs, padding[:, :heads].flatten(1)])


class Slots:
    """The episodes' parts of the cache: one array of fixed size. A page takes memory once it is written."""

    def __init__(self, shape: ModelShape, *, count: int, columns: int) -> None:
        line = _CACHE_LINE // BYTES_PER_NUMBER
        # A row begins with a cache line, and rows are not a power of two apart, which would share few sets.
        columns = round_up(columns, line) + line
        size = (shape.num_layers, 2, count, shape.num_kv_heads, shape.head_dim, columns)
        numbers = np.zeros(math.prod(size) + line, dtype=np.float32)  # lazy pages
        start = -numbers.ctypes.data % _CACHE_LINE // BYTES_PER_NUMBER
        self._cache = numbers[start : start + math.prod(size)].reshape(size)

    def layer(self, index: int) -> np.ndarray:
        """[2, count, K, D, columns]: keys, values."""
        part: np.ndarray = self._cache[index]
        return part


class SlotAttention:
    """Attention of segments of any length over their prefix and their slot; writes the slots."""

    def __init__(self, segments: Sequence[Segment], *, slots: Slots, shape: ModelShape) -> None:
        self._slots, self._shape = slots, shape
        by_prefix: dict[Prefix, list[Segment]] = {}
        for segment in segments:
            by_prefix.setdefault(segment.prefix, []).append(segment)
        self.segments = list(itertools.chain.from_iterable(by_prefix.values()))
        lengths = [len(segment.tokens) for segment in self.segments]
        self.last_of_segment = [end - 1 for end in itertools.accumulate(lengths)]
        self._count = sum(lengths)
        self._at_slot = np.repeat([segment.slot for segment in self.segments], lengths)
        positions = np.concatenate([np.arange(s.start, s.start + len(s.tokens)) for s in self.segments])
        self._at_column = positions - np.repeat([len(s.prefix) for s in self.segments], lengths)
        ends = itertools.accumulate(sum(len(s.tokens) for s in group) for group in by_prefix.values())
        self._runs = list(zip(by_prefix, itertools.pairwise([0, *ends]), strict=True))
        padding = [0] * (round_up(self._count, ROWS) - self._count)
        tokens = itertools.chain.from_iterable(segment.tokens for segment in self.segments)
        self.tokens = torch.tensor([*tokens, *padding])
        self.positions = torch.tensor([*positions.tolist(), *padding])

    def __call__(self, layer: int, qkv: torch.Tensor) -> torch.Tensor:
        shape = self._shape
        output = torch.zeros(len(qkv), shape.num_heads, shape.head_dim)
        queries, results, slots = qkv.numpy(), output.numpy(), self._slots.layer(layer)
        for prefix, (first, end) in self._runs:
            rows = slice(first, end)
            of_prefix = prefix.layers[layer] if prefix.layers else _nothing(shape)
            attend(queries[rows], of_prefix, slots, self._at_slot[rows], self._at_column[rows], results[rows])
        return output.flatten(1)


def _nothing(shape: ModelShape) -> np.ndarray:
    """A prefix's keys and values if it has no tokens."""
    return np.zeros((2, shape.num_kv_heads, shape.head_dim, 0), dtype=np.float32)
