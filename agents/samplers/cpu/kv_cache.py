"""Keys and values of all live episodes on the CPU, and attention over them.

A sequence's cache has two parts. Its *prefix* (the first prompt) is stored once and shared by every
episode that begins with it; the rest belongs to the episode and lies in a *slot* of one fixed array.
Decoding is bound by memory bandwidth: a group of 8 reads its prompt once per step, not 8 times.

Slots are best sorted by length, longest first: they are read in runs of about equal length, each as
far as its longest, so that a few long episodes do not make all others as expensive as themselves.

Attention over both parts is exact. The prefix yields an output and the log of its total weight,
which enter the softmax over the slot as one more key: column 0 of a slot stands for the prefix, and
token j after the prefix lies in column j + 1.

Knows nothing of requests; the engine says which token goes where.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from agents.samplers.cpu.llama import ModelShape
from envs.errors import ConfigError

BYTES_PER_NUMBER = 4
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
        self.tokens = torch.tensor([token for prefix in prefixes for token in prefix.tokens])
        self.positions = torch.cat([torch.arange(len(prefix)) for prefix in prefixes])

    def __call__(self, layer: int, qkv: torch.Tensor) -> torch.Tensor:
        shape = self._shape
        heads, kv_heads = shape.num_heads, shape.num_kv_heads
        lengths = [len(prefix) for prefix in self._prefixes]
        outputs = []
        for prefix, part in zip(self._prefixes, qkv.split(lengths), strict=True):
            q, k, v = part.transpose(0, 1)[None].split([heads, kv_heads, kv_heads], dim=1)
            prefix.keys.append(k.contiguous())
            prefix.values.append(v.contiguous())
            share = heads // kv_heads
            k, v = (y if share == 1 else y.repeat_interleave(share, dim=1) for y in (k, v))
            output, _ = _flash(q, k, v, is_causal=True, scale=1.0)
            outputs.append(output[0].transpose(0, 1).flatten(1))
        return torch.cat(outputs)


class Slots:
    """The episodes' parts of the cache: one array of fixed size. A page takes memory once it is written."""

    def __init__(self, shape: ModelShape, *, count: int, columns: int) -> None:
        self.count = count
        self._shape = shape
        size = (shape.num_layers, 2, count, shape.num_kv_heads, columns, shape.head_dim)
        # numpy's zeros are lazy pages; uninitialised memory will not do, since 0 * nan is nan
        self._cache = torch.from_numpy(np.zeros(size, dtype=np.float32))

    def move(self, sources: list[int], targets: list[int], *, columns: int) -> None:
        """Copy slots `sources` to `targets` at the same time, so that slots can be swapped."""
        view = self._cache[..., :columns, :]
        for layer in view:
            layer[:, targets] = layer[:, sources]

    def layer(self, index: int) -> torch.Tensor:
        """[2, count, K, columns, D]: keys, values."""
        return self._cache[index]


class SlotAttention:
    """Attention of segments of any length over their prefix and their slot; writes the slots.

    Segments of one token (decoding) go through a batched product for each of the `runs` of slots 0 to
    the highest in use; longer segments are few and are gathered.
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
        self._runs: list[tuple[Prefix, int, int]] = []  # prefix, first token, end
        for segment, end in zip(segments, ends, strict=True):
            count = len(segment.tokens)
            tokens += segment.tokens
            positions += range(segment.start, segment.start + count)
            at_slot += [segment.slot] * count
            column = segment.start - len(segment.prefix) + 1
            at_column += range(column, column + count)
            if self._runs and self._runs[-1][0] is segment.prefix:
                self._runs[-1] = (segment.prefix, self._runs[-1][1], end)
            else:
                self._runs.append((segment.prefix, end - count, end))
        self.tokens, self.positions = torch.tensor(tokens), torch.tensor(positions)
        self._at_slot, self._at_column = torch.tensor(at_slot), torch.tensor(at_column)
        single = [i for i, segment in enumerate(segments) if len(segment.tokens) == 1]
        several = [i for i, segment in enumerate(segments) if len(segment.tokens) > 1]
        self._plan_decoding([ends[i] - 1 for i in single], at_slot, at_column)
        self._plan_chunks([(ends[i] - len(segments[i].tokens), ends[i]) for i in several])

    def _plan_decoding(self, indices: list[int], at_slot: list[int], at_column: list[int]) -> None:
        slots = [at_slot[i] for i in indices]
        self._reach = max(slots, default=-1) + 1  # slots to read
        token_of_slot, column_of_slot = [0] * self._reach, [0] * self._reach
        slot_of_token = [0] * len(at_slot)
        for index, slot in zip(indices, slots, strict=True):
            token_of_slot[slot], column_of_slot[slot], slot_of_token[index] = index, at_column[index], slot
        self._in_order = token_of_slot == list(range(len(at_slot)))
        self._token_of_slot, self._slot_of_token = torch.tensor(token_of_slot), torch.tensor(slot_of_token)
        self._decode_runs = []
        for first, end, columns in runs([column + 1 for column in column_of_slot]):
            beyond = torch.arange(columns) > torch.tensor(column_of_slot[first:end])[:, None]
            mask = torch.zeros(beyond.shape).masked_fill_(beyond, -torch.inf)[:, None]
            self._decode_runs.append((slice(first, end), columns, mask))

    def _plan_chunks(self, spans: list[tuple[int, int]]) -> None:
        self._chunks = bool(spans)
        if not spans:
            return
        share = self._shape.num_heads // self._shape.num_kv_heads
        width = max(end - first for first, end in spans)
        steps = torch.arange(width)
        firsts, ends = torch.tensor(spans).t()[..., None]
        grid = torch.minimum(firsts + steps, ends - 1)  # [R, width]: padding repeats the last token
        self._chunk_grid = grid
        real = firsts + steps < ends
        self._chunk_tokens, self._chunk_cells = grid[real], real.flatten().nonzero()[:, 0]
        self._chunk_slots = self._at_slot[firsts[:, 0]].tolist()
        columns = self._at_column[grid]
        self._chunk_columns = int(columns.max()) + 1
        keys = torch.arange(self._chunk_columns)
        is_masked = (keys > columns[..., None]) | (keys == 0)
        mask = torch.zeros(is_masked.shape).masked_fill_(is_masked, -torch.inf)
        self._chunk_mask = mask.repeat_interleave(share, dim=1)[:, None]  # [R, 1, width * share, keys]

    def __call__(self, layer: int, qkv: torch.Tensor) -> torch.Tensor:
        shape, cache = self._shape, self._slots.layer(layer)
        heads, kv_heads = shape.num_heads, shape.num_kv_heads
        cache[:, self._at_slot, :, self._at_column] = qkv[:, heads:].unflatten(1, (2, kv_heads))
        q = qkv[:, :heads]
        output, weight = self._over_prefixes(layer, q)
        if not self._reach:
            return self._with_chunks(
                cache, q, output, weight, q.new_empty(q.shape[0], heads * shape.head_dim)
            )
        if self._in_order:
            return self._decode(cache, q, output, weight)
        of_slot = self._token_of_slot
        outputs = self._decode(cache, q[of_slot], output[of_slot], weight[of_slot])[self._slot_of_token]
        return self._with_chunks(cache, q, output, weight, outputs) if self._chunks else outputs

    def _over_prefixes(self, layer: int, q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Output [N, H, D] and log weight [N, H] of each token over its prefix."""
        n, heads, dim = q.shape
        kv_heads = self._shape.num_kv_heads
        share = heads // kv_heads
        # query heads that share a KV head are more queries of it
        queries = q.unflatten(1, (kv_heads, share)).transpose(0, 1).reshape(1, kv_heads, n * share, dim)
        outputs, weights = [], []
        for prefix, first, end in self._runs:
            part = queries[:, :, first * share : end * share]
            if len(prefix):
                output, weight = _flash(part, prefix.keys[layer], prefix.values[layer], scale=1.0)
            else:
                output, weight = torch.zeros_like(part), part.new_full(part.shape[:-1], -torch.inf)
            outputs.append(output)
            weights.append(weight)
        output = torch.cat(outputs, dim=2).view(kv_heads, n, share, dim).transpose(0, 1)
        weight = torch.cat(weights, dim=2).view(kv_heads, n, share).transpose(0, 1)
        return output.reshape(n, heads, dim), weight.reshape(n, heads)

    def _decode(
        self, cache: torch.Tensor, q: torch.Tensor, prefix: torch.Tensor, weight: torch.Tensor
    ) -> torch.Tensor:
        """[S, H * D] for the slots 0..S; `q`, `prefix`: [S, H, D]; `weight`: [S, H]."""
        outputs = []
        for run, columns, mask in self._decode_runs:
            keys, values = cache[:, run, :, :columns].flatten(1, 2)  # [R * K, columns, D]
            queries = q[run].reshape(keys.shape[0], -1, q.shape[2])
            scores = torch.bmm(queries, keys.transpose(1, 2)).view(-1, q.shape[1], columns)
            scores.add_(mask)
            scores[:, :, 0] = weight[run]
            shares = torch.softmax(scores, dim=-1).view(*queries.shape[:2], -1)
            # column 0 of the values stays zero: the part of the prefix is added here alone
            of_prefix = prefix[run].reshape(queries.shape) * shares[..., :1]
            outputs.append(torch.baddbmm(of_prefix, shares, values).view(mask.shape[0], -1))
        return torch.cat(outputs)

    def _with_chunks(
        self,
        cache: torch.Tensor,
        q: torch.Tensor,
        prefix: torch.Tensor,
        weight: torch.Tensor,
        outputs: torch.Tensor,
    ) -> torch.Tensor:
        """Write the tokens of longer segments into `outputs` [N, H * D], and return it."""
        heads, dim = q.shape[1:]
        kv_heads = self._shape.num_kv_heads
        rows, width = self._chunk_grid.shape
        # index_select would first copy the whole layer, because the columns are cut, to make it contiguous
        keys, values = torch.stack([cache[:, s, :, : self._chunk_columns] for s in self._chunk_slots], dim=1)
        queries = q[self._chunk_grid].unflatten(2, (kv_heads, -1)).transpose(1, 2)
        output, output_weight = _flash(
            queries.reshape(rows, kv_heads, -1, dim), keys, values, attn_mask=self._chunk_mask, scale=1.0
        )
        # [R, K, width * share, ..] -> [R * width, H, ..]
        output = output.unflatten(2, (width, -1)).transpose(1, 2).reshape(rows * width, heads, dim)
        output_weight = (
            output_weight.unflatten(2, (width, -1)).transpose(1, 2).reshape(rows * width, heads, 1)
        )
        output, output_weight = output[self._chunk_cells], output_weight[self._chunk_cells]
        tokens = self._chunk_tokens
        prefix_share = torch.sigmoid(weight[tokens][..., None] - output_weight)
        combination = torch.lerp(output, prefix[tokens], prefix_share)
        return outputs.index_copy_(0, tokens, combination.flatten(1))
