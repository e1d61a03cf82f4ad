"""Keys and values of all live episodes on the CPU, and attention over them.

A sequence's cache has two parts. Its *prefix* (the first prompt) is stored once and shared by every
episode that begins with it; the rest belongs to the episode and lies in a *slot* of one fixed array.
Decoding is bound by memory bandwidth: a group of 8 reads its prompt once per step, not 8 times.

Slots are best sorted by length, longest first: they are read in runs of about equal length, each as
far as its longest, so that a few long episodes do not make all others as expensive as themselves.

Attention over both parts is exact: each yields an output and the log of its total weight, by which they are
merged. It is also the same to the last bit whatever else is computed at the same time, and however a
sequence was cut into segments (`docs/decisions/0013-same-bits.md`): the queries of a prefix are filled up to
a multiple of `ROWS`, every token attends to its slot as a row of its own, and as far as a multiple of
`COLUMNS`, where what is beyond it is masked.

Knows nothing of requests; the engine says which token goes where.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import torch

from agents.samplers.cpu.llama import ROWS, ModelShape, round_up
from envs.errors import ConfigError

BYTES_PER_NUMBER = 4
COLUMNS = 16
"""Slots are read as far as a multiple of this, a vector of the CPU: zeros at the end of a sum do not change
it, but part of a vector is summed in another order."""
_CACHE_LINE = 64  # bytes
RUN_COLUMNS = 128
"""Slots whose lengths differ by less are read together; a run costs as much as reading 20,000 numbers."""

try:
    # The public function does not return the log-sum-exp that merging two parts of a cache needs.
    _flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
except AttributeError as error:
    raise ConfigError(
        f"torch {torch.__version__} has no operator _scaled_dot_product_flash_attention_for_cpu, "
        "which the CPU engine needs; install the torch of constraints.txt, or sample with rollout: vllm"
    ) from error


def bytes_per_token(shape: ModelShape) -> int:
    """Memory of one token's keys and values in all layers."""
    return 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim * BYTES_PER_NUMBER


@dataclass(slots=True, eq=False)
class Prefix:
    """Keys and values of a prompt's tokens, filled layer by layer."""

    tokens: tuple[int, ...]
    number: int
    """How many were created before it. Batches are laid out in this order, the same in every run."""
    keys: list[torch.Tensor] = field(default_factory=list)  # per layer [1, K, P, D]
    values: list[torch.Tensor] = field(default_factory=list)
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


def runs(columns: Sequence[int]) -> list[tuple[int, int, int]]:
    """Split slots 0.. with these numbers of `columns` into runs (first slot, end, columns to read).

    A slot is read as far as the longest one after it, or a little further.
    """
    reach = list(itertools.accumulate(reversed(columns), max))[::-1]
    groups = itertools.groupby(range(len(reach)), key=lambda slot: reach[slot] // RUN_COLUMNS)
    spans = [(next(group), sum(1 for _ in group)) for _, group in groups]
    return [(first, first + 1 + more, reach[first]) for first, more in spans]


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
        shape = self._shape
        heads, kv_heads = shape.num_heads, shape.num_kv_heads
        *parts, padding = qkv.split([*self._lengths, self._padding])
        outputs = []
        for prefix, part in zip(self._prefixes, parts, strict=True):
            q, k, v = part.transpose(0, 1)[None].split([heads, kv_heads, kv_heads], dim=1)
            prefix.keys.append(k.contiguous())
            prefix.values.append(v.contiguous())
            share = heads // kv_heads
            k, v = (y if share == 1 else y.repeat_interleave(share, dim=1) for y in (k, v))
            output, _ = _flash(q, k, v, is_causal=True, scale=1.0)
            outputs.append(output[0].transpose(0, 1).flatten(1))
        return torch.cat([*outputs, padding[:, :heads].flatten(1)])


class Slots:
    """The episodes' parts of the cache: one array of fixed size. A page takes memory once it is written."""

    def __init__(self, shape: ModelShape, *, count: int, columns: int) -> None:
        self.count = count
        self._shape = shape
        size = (shape.num_layers, 2, count, shape.num_kv_heads, round_up(columns, COLUMNS), shape.head_dim)
        # numpy's zeros are lazy pages; uninitialised memory will not do, since 0 * nan is nan
        zeros = np.zeros(math.prod(size) + COLUMNS, dtype=np.float32)
        start = -zeros.ctypes.data % _CACHE_LINE // BYTES_PER_NUMBER  # else where it starts is left to chance
        self._cache = torch.from_numpy(zeros[start : start + math.prod(size)]).view(size)

    def move(self, sources: list[int], targets: list[int], *, columns: int) -> None:
        """Copy slots `sources` to `targets` at the same time, so that slots can be swapped."""
        view = self._cache[..., :columns, :]
        for layer in view:
            layer[:, targets] = layer[:, sources]

    def layer(self, index: int) -> torch.Tensor:
        """[2, count, K, columns, D]: keys, values."""
        return self._cache[index]


@dataclass(frozen=True, slots=True)
class _Rows:
    """Tokens as rows in the order in which a kernel takes them, some perhaps repeated; None: in their own."""

    tokens: torch.Tensor | None  # [rows], of each row
    row_of_token: torch.Tensor | None  # [N]

    @classmethod
    def of(cls, tokens: list[int], row_of_token: list[int]) -> Self:
        if tokens == list(range(len(row_of_token))):
            return cls(None, None)
        return cls(torch.tensor(tokens), torch.tensor(row_of_token))

    def put(self, values: torch.Tensor) -> torch.Tensor:
        """[N, ..] -> [rows, ..]"""
        return values if self.tokens is None else values[self.tokens]

    def take(self, rows: torch.Tensor) -> torch.Tensor:
        """[rows, ..] -> [N, ..]"""
        return rows if self.row_of_token is None else rows[self.row_of_token]


def _join(parts: Sequence[torch.Tensor], *, dim: int) -> torch.Tensor:
    """`torch.cat` without a copy of a single part."""
    return torch.cat(list(parts), dim=dim) if len(parts) > 1 else parts[0]


@dataclass(frozen=True, slots=True)
class _Reading:
    """Rows of queries that read consecutive slots, one each, or all the same slot."""

    rows: slice
    slots: slice
    columns: int
    mask: torch.Tensor  # [rows, 1, 1, columns], -inf beyond what a row may read

    @classmethod
    def of(cls, rows: slice, slots: slice, reach: Sequence[int]) -> Self:
        """`reach`: how many columns each row may read."""
        columns = round_up(max(reach), COLUMNS)
        beyond = torch.arange(columns) >= torch.tensor(reach)[:, None]
        return cls(
            rows, slots, columns, torch.zeros(beyond.shape).masked_fill_(beyond, -torch.inf)[:, None, None]
        )


class SlotAttention:
    """Attention of segments of any length over their prefix and their slot; writes the slots.

    Tokens read their slots in `runs`, from slot 0 to the highest in use, a token of each slot at a time. If
    few slots have more than one, these read theirs by themselves.
    """

    def __init__(self, segments: Sequence[Segment], *, slots: Slots, shape: ModelShape) -> None:
        self._slots, self._shape = slots, shape
        # by prefix, so that the queries of one prefix are adjacent
        segments = sorted(segments, key=lambda segment: segment.prefix.number)
        self.segments = segments
        ends = list(itertools.accumulate(len(segment.tokens) for segment in segments))
        self.last_of_segment = [end - 1 for end in ends]
        tokens: list[int] = []
        positions: list[int] = []
        at_slot: list[int] = []
        at_column: list[int] = []
        runs_of_prefix: list[tuple[Prefix, int, int]] = []  # prefix, first token, end
        for segment, end in zip(segments, ends, strict=True):
            count = len(segment.tokens)
            tokens += segment.tokens
            positions += range(segment.start, segment.start + count)
            at_slot += [segment.slot] * count
            column = segment.start - len(segment.prefix)
            at_column += range(column, column + count)
            if runs_of_prefix and runs_of_prefix[-1][0] is segment.prefix:
                runs_of_prefix[-1] = (segment.prefix, runs_of_prefix[-1][1], end)
            else:
                runs_of_prefix.append((segment.prefix, end - count, end))
        self._at_slot, self._at_column = torch.tensor(at_slot), torch.tensor(at_column)
        padding = [0] * (round_up(len(tokens), ROWS) - len(tokens))
        self.tokens, self.positions = torch.tensor(tokens + padding), torch.tensor(positions + padding)
        self._plan_prefixes(runs_of_prefix)
        self._plan_slots(segments, ends, at_slot, at_column)

    def _plan_prefixes(self, runs_of_prefix: Sequence[tuple[Prefix, int, int]]) -> None:
        """Rows of queries by prefix, each filled up with its last token."""
        row_tokens: list[int] = []
        row_of_token = [0] * len(self.tokens)
        self._prefixes: list[tuple[Prefix, int, int]] = []  # prefix, first row, end
        for prefix, first, end in runs_of_prefix:
            rows = round_up(end - first, ROWS)
            row_of_token[first:end] = range(len(row_tokens), len(row_tokens) + end - first)
            self._prefixes.append((prefix, len(row_tokens), len(row_tokens) + rows))
            row_tokens += [*range(first, end), *[end - 1] * (rows - end + first)]
        self._prefix_rows = _Rows.of(row_tokens, row_of_token)

    def _plan_slots(
        self, segments: Sequence[Segment], ends: Sequence[int], at_slot: list[int], at_column: list[int]
    ) -> None:
        """Rows of queries by slot: the first token of each segment, the second of each, and so on, as long as
        most slots have one; then what is left, segment by segment."""
        left = [range(end - len(segment.tokens), end) for segment, end in zip(segments, ends, strict=True)]
        row_tokens: list[int] = []
        row_of_token = [0] * len(self.tokens)
        self._readings: list[_Reading] = []
        while left:
            reach = max(at_slot[tokens[0]] for tokens in left) + 1
            if row_tokens and 2 * len(left) < reach:
                break
            first_row = len(row_tokens)
            # a slot in between that is not advanced reads its first column, for nothing
            row_tokens += [0] * reach
            columns = [1] * reach
            for tokens in left:
                slot = at_slot[tokens[0]]
                row_tokens[first_row + slot], columns[slot] = tokens[0], at_column[tokens[0]] + 1
                row_of_token[tokens[0]] = first_row + slot
            for first, end, _ in runs(columns):
                rows = slice(first_row + first, first_row + end)
                self._readings.append(_Reading.of(rows, slice(first, end), columns[first:end]))
            left = [tokens[1:] for tokens in left if len(tokens) > 1]
        for tokens in left:
            slot, columns = at_slot[tokens[0]], [at_column[token] + 1 for token in tokens]
            rows = slice(len(row_tokens), len(row_tokens) + len(tokens))
            row_of_token[tokens.start : tokens.stop] = range(rows.start, rows.stop)
            row_tokens += tokens
            self._readings.append(_Reading.of(rows, slice(slot, slot + 1), columns))
        self._slot_rows = _Rows.of(row_tokens, row_of_token)

    def __call__(self, layer: int, qkv: torch.Tensor) -> torch.Tensor:
        shape, cache = self._shape, self._slots.layer(layer)
        heads = shape.num_heads
        new = qkv[: len(self._at_slot), heads:].unflatten(1, (2, shape.num_kv_heads))
        cache[:, self._at_slot, :, self._at_column] = new
        q = qkv[:, :heads]
        of_prefix, prefix_weight = self._over_prefixes(layer, q)
        of_slot, slot_weight = self._over_slots(cache, q)
        # by the softmax of two, for it is the same wherever a row lies; a sigmoid is not
        shares = torch.softmax(torch.stack([slot_weight, prefix_weight], dim=-1), dim=-1)[..., None]
        return (of_slot * shares[:, :, 0]).add_(of_prefix * shares[:, :, 1]).flatten(1)

    def _over_prefixes(self, layer: int, q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Output [N, H, D] and log weight [N, H] of each token over its prefix."""
        kv_heads = self._shape.num_kv_heads
        share = q.shape[1] // kv_heads
        # query heads that share a KV head are more queries of it
        queries = self._prefix_rows.put(q).unflatten(1, (kv_heads, share)).transpose(0, 1).flatten(1, 2)[None]
        outputs, weights = [], []
        for prefix, first, end in self._prefixes:
            part = queries[:, :, first * share : end * share]
            if len(prefix):
                output, weight = _flash(part, prefix.keys[layer], prefix.values[layer], scale=1.0)
            else:
                output, weight = torch.zeros_like(part), part.new_full(part.shape[:-1], -torch.inf)
            outputs.append(output.transpose(1, 2))
            weights.append(weight.transpose(1, 2))

        def by_head(parts: Sequence[torch.Tensor]) -> torch.Tensor:  # [1, n * share, K, ..] -> [n, H, ..]
            rows: torch.Tensor = _join(parts, dim=1)[0].unflatten(0, (-1, share))
            return rows.transpose(1, 2).flatten(1, 2)

        return self._prefix_rows.take(by_head(outputs)), self._prefix_rows.take(by_head(weights))

    def _over_slots(self, cache: torch.Tensor, q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Output [N, H, D] and log weight [N, H] of each token over its slot, up to itself."""
        share = q.shape[1] // self._shape.num_kv_heads
        queries = self._slot_rows.put(q)[:, :, None]
        outputs, weights = [], []
        for reading in self._readings:
            part = queries[reading.rows]
            keys, values = cache[:, reading.slots, :, : reading.columns].expand(-1, part.shape[0], -1, -1, -1)
            # One query of a KV head at a time: sums for several differ in their last bits.
            of_heads = [
                _flash(part[:, first::share], keys, values, attn_mask=reading.mask, scale=1.0)
                for first in range(share)
            ]
            outputs.append(_join([output for output, _ in of_heads], dim=2).flatten(1, 2))
            weights.append(_join([weight for _, weight in of_heads], dim=2).flatten(1, 2))
        return self._slot_rows.take(_join(outputs, dim=0)), self._slot_rows.take(_join(weights, dim=0))
