"""The forward pass of the CPU engine: all layers over any number of sequences in one call, compiled by numba.

What is computed for a token depends on its sequence alone, to the last bit: the order of a sum depends
neither on the other tokens of the call nor on where the cache divides a sequence
(docs/decisions/0013-same-bits.md).

Keys and values lie in blocks, one for each sequence or shared prompt, of `C` columns, a multiple of `LANES`:
per layer the keys [K, C / LANES, D, LANES], then the values [K, C, V], where V is D rounded up to `LANES`.
A block is read in the order in which it lies in memory.

Shapes: `N` tokens, `E` hidden, `H` heads, `K` KV heads, `D` head dimension, `I` inner, `Q` outputs of the
query, key and value projections; `E`, `I` and `Q` are rounded up to `LANES` where they are widths of arrays.
"""

import zlib
from pathlib import Path
from typing import NamedTuple

import numba
import numpy as np
from llvmlite import ir
from numba import float32, float64, int64, njit, types, uint64
from numba.core.dispatcher import Dispatcher
from numba.core.typing.templates import Signature
from numba.extending import intrinsic

from agents.samplers import kernels, tiles
from agents.samplers.cpu import drafts as draft_tokens
from agents.samplers.cpu.drafts import DRAFTS, add_token, draft
from agents.samplers.kernels import (
    dot,
    draw,
    exponential_of,
    exponentiate_logits,
    exponentiate_scores,
    highest_of,
    uniform,
)
from agents.samplers.tiles import BYTES, LANES, ROWS, add_product, add_rows, round_up

_BLOCK = 48
"""Tokens that pass through a layer's inner matrices at once: their activations stay in the L2 cache."""

FIRST, COUNT, OWN, OWN_COLUMNS, PREFIX, PREFIX_COLUMNS, PREFIX_LENGTH = range(7)
"""The columns of `segments`: the first of a segment's rows, and how many there are; address and columns of
the block that they are written to; address, columns and tokens of the block before it (0 without one)."""
QKV, OUT, GATE_UP, DOWN = range(4)
"""The columns of `offsets`: where in `weights` a layer's packed matrices begin."""
HEAD = 0
"""The column of the output projection, in the last row of `offsets`."""


class Sizes(NamedTuple):
    """Dimensions of a model."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    inner_padded: int


def block_size(sizes: Sizes, columns: int) -> int:
    """The float32 numbers of a block of `columns` columns."""
    value_dim = round_up(sizes.head_dim, LANES)
    return sizes.layers * sizes.kv_heads * columns * (sizes.head_dim + value_dim)


@intrinsic
def _as_pointer(_, address):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.inttoptr(arguments[0], ir.FloatType().as_pointer())

    return types.CPointer(types.float32)(types.int64), generate


@njit(nogil=True)
def _array(address, size):  # type: ignore[no-untyped-def]
    return numba.carray(_as_pointer(address), size)  # type: ignore[attr-defined, call-arg]


@njit(nogil=True, error_model="numpy")
def _normalize(x, width, eps, output):  # type: ignore[no-untyped-def]
    """RMS norm of the first `width` columns of `x` [N, E], without its gain."""
    for n in range(x.shape[0]):
        row = x[n, :width]
        scale = float32(1.0) / np.sqrt(dot(row, row) / float32(width) + eps)
        for e in range(x.shape[1]):
            output[n, e] = x[n, e] * scale


@njit(nogil=True, error_model="numpy")
def _gate(gate_up, inner, output):  # type: ignore[no-untyped-def]
    """silu(gate) * up; `gate_up`: [N, 2 I], `output`: [N, I]."""
    for n in range(gate_up.shape[0]):
        gate, up, result = gate_up[n, :inner], gate_up[n, inner:], output[n]
        for i in range(inner):
            result[i] = gate[i] / (float32(1.0) + exponential_of(-gate[i])) * up[i]


@njit(nogil=True)
def _rotate(qkv, positions, heads, head_dim, cosine, sine):  # type: ignore[no-untyped-def]
    """Rotary embedding of the first `heads` heads, in place; `cosine`, `sine`: [T, D / 2]."""
    half = head_dim // 2
    for n in range(qkv.shape[0]):
        position = positions[n]
        for head in range(heads):
            low = qkv[n, head * head_dim : head * head_dim + half]
            high = qkv[n, head * head_dim + half : (head + 1) * head_dim]
            for d in range(half):
                a, b = low[d], high[d]
                low[d] = a * cosine[position, d] - b * sine[position, d]
                high[d] = b * cosine[position, d] + a * sine[position, d]


@njit(nogil=True)
def _locate(address, columns, layer, k, sizes, value_dim):  # type: ignore[no-untyped-def]
    """The addresses of a KV head's keys and values in a block."""
    per_column = sizes.head_dim + value_dim
    start = address + BYTES * layer * sizes.kv_heads * columns * per_column
    values = sizes.kv_heads * sizes.head_dim + k * value_dim
    return start + BYTES * k * sizes.head_dim * columns, start + BYTES * values * columns


@njit(nogil=True)
def _store(qkv, positions, segments, layer, sizes, value_dim):  # type: ignore[no-untyped-def]
    """Write the keys and values of all tokens to their segments' blocks."""
    head_dim = sizes.head_dim
    for s in range(segments.shape[0]):
        own, columns = segments[s, OWN], segments[s, OWN_COLUMNS]
        for k in range(sizes.kv_heads):
            at_keys, at_values = _locate(own, columns, layer, k, sizes, value_dim)
            keys = _array(at_keys, columns * head_dim)
            values = _array(at_values, columns * value_dim)
            key, value = (sizes.heads + k) * head_dim, (sizes.heads + sizes.kv_heads + k) * head_dim
            for n in range(segments[s, FIRST], segments[s, FIRST] + segments[s, COUNT]):
                column = positions[n] - segments[s, PREFIX_LENGTH]
                lane = column % LANES
                for d in range(head_dim):
                    keys[(column - lane) * head_dim + d * LANES + lane] = qkv[n, key + d]
                    values[column * value_dim + d] = qkv[n, value + d]


@njit(nogil=True, error_model="numpy")
def attend(qkv, positions, segments, layer, sizes, attended):  # type: ignore[no-untyped-def]
    """Attention of N tokens, each over the block before its segment and over its own up to itself.

    First writes the tokens' keys and values. `qkv`: [N, Q], queries scaled; `positions`: [N];
    `segments`: [S, 7], in the order of their rows, those of one prefix after each other; `attended`:
    [N, H * D], overwritten.
    """
    heads, head_dim = sizes.heads, sizes.head_dim
    value_dim, panel = round_up(head_dim, LANES), LANES * head_dim
    _store(qkv, positions, segments, layer, sizes, value_dim)
    longest = 0
    segment_of = np.empty(qkv.shape[0], np.int64)
    for s in range(segments.shape[0]):
        end = segments[s, FIRST] + segments[s, COUNT]
        segment_of[segments[s, FIRST] : end] = s
        longest = max(longest, positions[end - 1] + 1)
    stride = longest + 2 * LANES  # the last panel of keys may go beyond a sequence's end
    scores = np.empty((ROWS, stride), np.float32)
    sums, shares = np.empty((ROWS, value_dim), np.float32), np.empty(ROWS, np.float32)
    at_scores, at_sums, q = scores.ctypes.data, sums.ctypes.data, qkv.shape[1]
    first = 0
    while first < qkv.shape[0]:
        # the rows of one prefix, a tile's rows at a time
        s = segment_of[first]
        prefix, prefix_columns, length = (
            segments[s, PREFIX],
            segments[s, PREFIX_COLUMNS],
            segments[s, PREFIX_LENGTH],
        )
        end_of_prefix = first
        while end_of_prefix < qkv.shape[0] and segments[segment_of[end_of_prefix], PREFIX] == prefix:
            end_of_prefix += 1
        count = end_of_prefix - first
        parts = (count + ROWS - 1) // ROWS
        for head in range(heads):
            k = head // (heads // sizes.kv_heads)
            keys, values = _locate(prefix, prefix_columns, layer, k, sizes, value_dim)
            for part in range(parts):
                start, end = first + count * part // parts, first + count * (part + 1) // parts
                rows, queries = end - start, qkv.ctypes.data + BYTES * (start * q + head * head_dim)
                padded = round_up(length, LANES)
                scores[:rows, :padded] = float32(0.0)
                add_rows(rows, queries, q, keys, LANES, panel, head_dim, padded, at_scores, stride)
                r = 0
                # The rows of one segment, of which the last sees the most: to the others, the weights of what
                # comes after them are 0.
                while r < rows:
                    s = segment_of[start + r]
                    own, columns = segments[s, OWN], segments[s, OWN_COLUMNS]
                    own_keys, _ = _locate(own, columns, layer, k, sizes, value_dim)
                    end_of_run = min(rows, segments[s, FIRST] + segments[s, COUNT] - start)
                    visible = positions[start + end_of_run - 1] + 1
                    padded = round_up(visible - length, LANES)
                    scores[r:end_of_run, length : length + padded] = float32(0.0)
                    query, at_own = queries + BYTES * r * q, at_scores + BYTES * (r * stride + length)
                    in_run = end_of_run - r
                    add_rows(in_run, query, q, own_keys, LANES, panel, head_dim, padded, at_own, stride)
                    for row in range(r, end_of_run):
                        row_visible = positions[start + row] + 1
                        visible_scores = scores[row, :row_visible]
                        total = exponentiate_scores(visible_scores, highest_of(visible_scores))
                        shares[row] = float32(1.0) / total
                        scores[row, row_visible:visible] = float32(0.0)
                    r = end_of_run
                sums[:rows] = float32(0.0)
                add_rows(
                    rows, at_scores, stride, values, value_dim, LANES, length, value_dim, at_sums, value_dim
                )
                r = 0
                while r < rows:
                    s = segment_of[start + r]
                    own, columns = segments[s, OWN], segments[s, OWN_COLUMNS]
                    _, own_values = _locate(own, columns, layer, k, sizes, value_dim)
                    end_of_run = min(rows, segments[s, FIRST] + segments[s, COUNT] - start)
                    count_of_own = positions[start + end_of_run - 1] + 1 - length
                    at_own, target = (
                        at_scores + BYTES * (r * stride + length),
                        at_sums + BYTES * r * value_dim,
                    )
                    in_run = end_of_run - r
                    add_rows(
                        in_run,
                        at_own,
                        stride,
                        own_values,
                        value_dim,
                        LANES,
                        count_of_own,
                        value_dim,
                        target,
                        value_dim,
                    )
                    r = end_of_run
                for r in range(rows):
                    for d in range(head_dim):
                        attended[start + r, head * head_dim + d] = sums[r, d] * shares[r]
        first = end_of_prefix


class Model(NamedTuple):
    """Dimensions and weights of a model. The matrices include the norms' gains and the softmax scale."""

    sizes: Sizes
    eps: np.float32
    """The epsilon of the norms."""
    embedding: np.ndarray  # [vocabulary, E]
    cosine: np.ndarray  # [T, D / 2]
    sine: np.ndarray  # [T, D / 2]
    biases: np.ndarray  # [layers, Q]
    weights: np.ndarray
    """All matrices, packed."""
    offsets: np.ndarray  # [layers + 1, 4], where they begin


_MATRIX, _SIZES = float32[:, ::1], types.NamedUniTuple(int64, len(Sizes._fields), Sizes)
_MODEL = types.NamedTuple(
    [_SIZES, float32, _MATRIX, _MATRIX, _MATRIX, _MATRIX, float32[::1], int64[:, ::1]], Model
)
_FORWARD: Signature = int64(int64[::1], int64[::1], int64[:, ::1], _MODEL, int64[::1], _MATRIX)
_GENERATE: Signature = numba.boolean(
    int64[::1],
    int64[::1],
    int64[:, ::1],
    _MODEL,
    DRAFTS,
    int64,
    int64[::1],
    uint64[::1],
    uint64[::1],
    float32[::1],
    int64[:, ::1],
    int64[::1],
    _MATRIX,
    int64[:, ::1],
    float64[:, ::1],
    int64[::1],
)


# numba keeps compiled functions on disk, and takes them from there if their own file and their closure are
# what they were: so the digest of the other files whose functions they call is a value in the closure. It is
# the only one: a compiled function there would be another value in every process.
_SOURCES = (tiles.__file__, kernels.__file__, draft_tokens.__file__)
_DIGEST = zlib.crc32(b"".join(Path(file).read_bytes() for file in _SOURCES))


def _compile_forward(digest: int) -> Dispatcher:
    """`forward`, for the contents of `_SOURCES`."""

    # NaN in weights that have diverged reaches the logits, where `generate` and its callers look for it.
    @njit(_FORWARD, nogil=True, error_model="numpy", cache=True)
    def forward(tokens, positions, segments, model, logits_of, logits):  # type: ignore[no-untyped-def]
        """Write the keys and values of N tokens, and the logits of some of them; returns the digest.

        `tokens`, `positions`: [N]; `segments`: [S, 7], as `attend` takes them; `logits_of`: [W], rows;
        `logits`: [W, vocabulary, rounded up], overwritten.
        """
        sizes, eps, weights, offsets = model.sizes, model.eps, model.weights.ctypes.data, model.offsets
        n, width, inner, inputs = (
            tokens.shape[0],
            sizes.width,
            sizes.inner_padded,
            sizes.heads * sizes.head_dim,
        )
        e, q = model.embedding.shape[1], model.biases.shape[1]
        x, normal = np.empty((n, e), np.float32), np.empty((n, e), np.float32)
        qkv, attended = np.empty((n, q), np.float32), np.empty((n, inputs), np.float32)
        gate_up, gated = np.empty((_BLOCK, 2 * inner), np.float32), np.empty((_BLOCK, inner), np.float32)
        for i in range(n):
            x[i] = model.embedding[tokens[i]]
        for layer in range(sizes.layers):
            _normalize(x, width, eps, normal)
            for i in range(n):
                qkv[i] = model.biases[layer]
            matrix = weights + BYTES * offsets[layer, QKV]
            add_product(n, normal.ctypes.data, e, matrix, width, q, qkv.ctypes.data, q)
            _rotate(qkv, positions, sizes.heads + sizes.kv_heads, sizes.head_dim, model.cosine, model.sine)
            attend(qkv, positions, segments, layer, sizes, attended)
            for first in range(0, n, _BLOCK):
                end = min(n, first + _BLOCK)
                rows, hidden = end - first, x[first:end]
                matrix = weights + BYTES * offsets[layer, OUT]
                add_product(
                    rows, attended[first:].ctypes.data, inputs, matrix, inputs, e, hidden.ctypes.data, e
                )
                _normalize(hidden, width, eps, normal[first:end])
                gate_up[:rows] = float32(0.0)
                matrix, at_normal = weights + BYTES * offsets[layer, GATE_UP], normal[first:].ctypes.data
                add_product(rows, at_normal, e, matrix, width, 2 * inner, gate_up.ctypes.data, 2 * inner)
                _gate(gate_up[:rows], inner, gated)
                matrix = weights + BYTES * offsets[layer, DOWN]
                add_product(rows, gated.ctypes.data, inner, matrix, sizes.inner, e, hidden.ctypes.data, e)
        count, columns = logits_of.shape[0], logits.shape[1]
        last = np.empty((count, e), np.float32)
        for i in range(count):
            last[i] = x[logits_of[i]]
        _normalize(last, width, eps, last)
        matrix = weights + BYTES * offsets[sizes.layers, HEAD]
        for first in range(0, count, _BLOCK):
            end = min(count, first + _BLOCK)
            logits[first:end] = float32(0.0)
            a, c = last[first:end].ctypes.data, logits[first:end].ctypes.data
            add_product(end - first, a, e, matrix, width, columns, c, columns)
        return digest

    return forward


forward = _compile_forward(_DIGEST)


def _compile_generate(digest: int) -> Dispatcher:
    """`generate`, for the contents of `_SOURCES`."""

    @njit(_GENERATE, nogil=True, cache=True)
    def generate(  # type: ignore[no-untyped-def]
        tokens,
        positions,
        segments,
        model,
        drafts,
        max_draft,
        slots,
        salts,
        keys,
        temperatures,
        stops,
        limits,
        logits,
        sampled,
        logprobs,
        counts,
    ):
        """Sample up to M tokens for each of N sequences; whether all logits were numbers.

        `tokens`, `positions`: [N], each sequence's last token, which has no keys and values yet; `segments`:
        [N, 7], one for each; `max_draft`: of tokens for a sequence; `slots`, `salts`: [N], where `drafts` has
        the sequences; `keys`: [N], of the
        random numbers; `temperatures`: [N], 0 for the most probable token; `stops`: [N, any], ids that end a
        sequence, filled up with -1; `limits`: [N], of tokens to sample; `logits`: [R, vocabulary, rounded
        up], to work in, R at least N: the most rows of a forward, drafts included; `sampled`: [N, M], filled
        up with -1; `logprobs`: [N, M]; `counts`: [3], overwritten with the numbers of forwards, of drafted
        tokens and of accepted ones. The first three are overwritten, too.
        """
        vocab_size, live, most_rows = model.embedding.shape[0], tokens.shape[0], logits.shape[0]
        masses = np.empty(vocab_size, np.float32)
        batch, places = np.empty(most_rows, np.int64), np.empty(most_rows, np.int64)
        sequences, lengths = np.arange(live), np.zeros(live, np.int64)  # those that go on; tokens of each
        sampled[:], counts[:] = -1, 0
        while live > 0:
            most, end = min(max_draft, most_rows // live - 1), 0
            for i in range(live):
                n = sequences[i]
                room = min(most, limits[n] - lengths[n] - 1, sampled.shape[1] - lengths[n] - 1)
                batch[end] = tokens[i]
                drafted = draft(drafts, slots[n], positions[i] + 1, salts[n], batch[end + 1 : end + 1 + room])
                segments[i, FIRST], segments[i, COUNT] = end, 1 + drafted
                for r in range(1 + drafted):
                    places[end + r] = positions[i] + r
                end += 1 + drafted
            if forward(batch[:end], places[:end], segments[:live], model, np.arange(end), logits) != digest:
                return False
            counts[0], counts[1], staying = counts[0] + 1, counts[1] + end - live, 0
            for i in range(live):
                n, temperature = sequences[i], temperatures[sequences[i]]
                is_greedy = temperature == float32(0.0)
                scale = float32(1.0) if is_greedy else temperature
                first, is_over = segments[i, FIRST], False
                for r in range(first, first + segments[i, COUNT]):
                    row = logits[r, :vocab_size]
                    total, log_sum = exponentiate_logits(row, scale, masses)
                    if not np.isfinite(total):
                        return False
                    if is_greedy:
                        token = np.argmax(row)
                    else:
                        token = draw(masses, total, uniform(keys[n], np.uint64(places[r] + 1)))
                    sampled[n, lengths[n]] = token
                    logprobs[n, lengths[n]] = float64(row[token]) * float64(float32(1.0) / scale) - log_sum
                    lengths[n] += 1
                    add_token(drafts, slots[n], places[r] + 1, token, salts[n])
                    is_over = lengths[n] >= min(limits[n], sampled.shape[1])
                    for stop in stops[n]:
                        is_over = is_over or token == stop
                    if is_over or r + 1 == first + segments[i, COUNT] or batch[r + 1] != token:
                        break
                    counts[2] += 1
                if not is_over:
                    sequences[staying], tokens[staying], positions[staying] = n, token, places[r] + 1
                    segments[staying] = segments[i]
                    staying += 1
            live = staying
        return True

    return generate


generate = _compile_generate(_DIGEST)
