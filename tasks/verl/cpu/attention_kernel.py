"""Attention over a packed row and its gradients, compiled by numba.

A segment is a prompt, or a response that sees the prompt before it, too. The scores of a few queries with all
keys that they see are computed at once, and fit into the processor's cache: only the logarithm of their sums
is kept for the backward pass, which computes them again (FlashAttention, Dao et al. 2022, arXiv:2205.14135,
Algorithm 4). All five products are those of `agents/samplers/tiles.py`.

Shapes: `T` tokens of the row, `H` query heads, `K` heads of keys and values, `D` numbers per head, `E` is `D`
rounded up to `LANES`. Everything is float32.
"""

import zlib
from pathlib import Path

import numpy as np
from numba import float32, int64, njit
from numba.core.dispatcher import Dispatcher

from agents.samplers import kernels, tiles
from agents.samplers.kernels import dot, exponential_of, exponentiate_scores, highest_of
from agents.samplers.tiles import BYTES, LANES, ROWS, add_rows, add_transposed, round_up

FIRST, COUNT, COLUMN, PROMPT = range(4)
"""The columns of `segments`: the first of a segment's tokens, and how many there are; the first of its
columns among the packed keys, a multiple of `LANES`; the number of its prompt's segment, or -1."""
_BLOCK = 24
"""Queries whose scores are kept at once in the backward pass: those of 1,280 keys are 123 kB."""

_HEADS = float32[:, :, ::1]
_SEGMENTS = int64[:, ::1]


@njit(nogil=True)
def _copy(numbers, head, factor, rows):  # type: ignore[no-untyped-def]
    """Write a head of `numbers` [T, H, D] times `factor` to `rows` [T, E]."""
    for t in range(numbers.shape[0]):
        for d in range(numbers.shape[2]):
            rows[t, d] = numbers[t, head, d] * factor


@njit(nogil=True)
def _pack(numbers, head, segments, panels):  # type: ignore[no-untyped-def]
    """Write a head of `numbers` [T, K, D] to `panels` [columns / LANES, E, LANES], which are 0 elsewhere."""
    for s in range(segments.shape[0]):
        first, column = segments[s, FIRST], segments[s, COLUMN]
        for t in range(segments[s, COUNT]):
            panel, lane = (column + t) // LANES, (column + t) % LANES
            for d in range(numbers.shape[2]):
                panels[panel, d, lane] = numbers[first + t, head, d]


@njit(nogil=True)
def _prompt_of(segments, s):  # type: ignore[no-untyped-def]
    """The first token, the number of tokens and the first column of what a segment sees before itself."""
    prompt = segments[s, PROMPT]
    if prompt < 0:
        return 0, 0, 0
    return segments[prompt, FIRST], segments[prompt, COUNT], segments[prompt, COLUMN]


@njit(nogil=True)
def _row_length(segments):  # type: ignore[no-untyped-def]
    """Numbers that a row of scores has room for: an odd number of vectors, so that rows do not compete for
    the same lines of the cache."""
    longest = 0
    for s in range(segments.shape[0]):
        longest = max(
            longest, round_up(segments[s, COUNT], LANES) + round_up(_prompt_of(segments, s)[1], LANES)
        )
    return (longest + 2 * LANES) | LANES


@njit(nogil=True)
def _make_panels(segments, e):  # type: ignore[no-untyped-def]
    last = segments.shape[0] - 1
    columns = segments[last, COLUMN] + round_up(segments[last, COUNT], LANES)
    return np.zeros((columns // LANES, e, LANES), np.float32)


@njit(nogil=True)
def _add_scores(rows, a, e, panels, segments, s, end, own, scores, stride):  # type: ignore[no-untyped-def]
    """Add the products of `rows` rows at `a` with the packed keys, or values, that segment `s` sees: with
    those of its prompt from column 0 on, with its own before `end` from `own` on. What the last panel of each
    has beyond them is 0, so it adds nothing."""
    _, before, column = _prompt_of(segments, s)
    if before > 0:
        b = panels + BYTES * column * e
        add_rows(rows, a, e, b, LANES, LANES * e, e, round_up(before, LANES), scores, stride)
    b, c = panels + BYTES * segments[s, COLUMN] * e, scores + BYTES * own
    add_rows(rows, a, e, b, LANES, LANES * e, e, round_up(end, LANES), c, stride)


@njit(nogil=True)
def _add_weighted(rows, weights, stride, b, e, segments, s, end, own, sums):  # type: ignore[no-untyped-def]
    """Add `weights`, laid out as `_add_scores` does, times the rows of `b` [T, E] to `sums` [rows, E]."""
    first, before, _ = _prompt_of(segments, s)
    if before > 0:
        add_rows(rows, weights, stride, b + BYTES * first * e, e, LANES, before, e, sums, e)
    b_own = b + BYTES * segments[s, FIRST] * e
    add_rows(rows, weights + BYTES * own, stride, b_own, e, LANES, end, e, sums, e)


@njit(nogil=True)
def _add_to_keys(weights, stride, b, rows, e, segments, s, end, own, sums):  # type: ignore[no-untyped-def]
    """Add the transpose of the `weights` of `rows` queries times `b` [rows, E] to `sums` [T, E], for the keys
    that the last of these sees."""
    first, before, _ = _prompt_of(segments, s)
    if before > 0:
        add_transposed(before, weights, stride, b, rows, e, sums + BYTES * first * e)
    of_own = sums + BYTES * segments[s, FIRST] * e
    add_transposed(end, weights + BYTES * own, stride, b, rows, e, of_own)


@njit(nogil=True)
def _weigh(scores, slopes, log_sum, mean):  # type: ignore[no-untyped-def]
    """Replace `scores` by their weights in the softmax, and `slopes`, the gradients of the weights, by those
    of the scores; `mean` is the weighted mean of the slopes."""
    for column in range(scores.shape[0]):
        weight = exponential_of(scores[column] - log_sum)
        scores[column] = weight
        slopes[column] = weight * (slopes[column] - mean)


def _compile_forward(digest: int) -> Dispatcher:
    """`attend`, for the contents of `_SOURCES`."""

    @njit(
        int64(_HEADS, _HEADS, _HEADS, _SEGMENTS, float32, int64, int64, _HEADS, float32[:, ::1]),
        nogil=True,
        error_model="numpy",
        cache=True,
    )
    def attend(query, key, value, segments, scale, first, end, output, log_sums):  # type: ignore[no-untyped-def]
        """Write the output of the query heads from `first` to before `end`; returns the digest.

        `query`: [T, H, D]; `key`, `value`: [T, K, D]; `segments`: [S, 4]; `output`: [T, H, D]; `log_sums`:
        [H, T], the logarithms of the sums of the exponentials of the scores.
        """
        tokens, heads, dim = query.shape
        share, e, stride = heads // key.shape[1], round_up(dim, LANES), _row_length(segments)
        queries, values = np.zeros((tokens, e), np.float32), np.zeros((tokens, e), np.float32)
        panels, scores = _make_panels(segments, e), np.empty((ROWS, stride), np.float32)
        sums, shares = np.empty((ROWS, e), np.float32), np.empty(ROWS, np.float32)
        at_queries, at_values, at_panels = queries.ctypes.data, values.ctypes.data, panels.ctypes.data
        at_scores, at_sums = scores.ctypes.data, sums.ctypes.data
        for head in range(first, end):
            _copy(query, head, scale, queries)
            if head == first or head % share == 0:
                _pack(key, head // share, segments, panels)
                _copy(value, head // share, float32(1.0), values)
            for s in range(segments.shape[0]):
                count, (_, before, _) = segments[s, COUNT], _prompt_of(segments, s)
                parts = (count + ROWS - 1) // ROWS
                for part in range(parts):
                    low, high = count * part // parts, count * (part + 1) // parts
                    rows, row = high - low, segments[s, FIRST] + low
                    scores[:rows, : before + high + LANES] = float32(0.0)
                    a = at_queries + BYTES * row * e
                    _add_scores(rows, a, e, at_panels, segments, s, high, before, at_scores, stride)
                    for r in range(rows):
                        visible = before + low + r + 1
                        highest = highest_of(scores[r, :visible])
                        total = exponentiate_scores(scores[r, :visible], highest)
                        for column in range(visible, before + high):
                            scores[r, column] = float32(0.0)
                        log_sums[head, row + r] = highest + np.log(total)
                        shares[r] = float32(1.0) / total
                    sums[:rows] = float32(0.0)
                    _add_weighted(rows, at_scores, stride, at_values, e, segments, s, high, before, at_sums)
                    for r in range(rows):
                        for d in range(dim):
                            output[row + r, head, d] = sums[r, d] * shares[r]
        return digest

    return attend


def _compile_backward(digest: int) -> Dispatcher:
    """`differentiate`, for the contents of `_SOURCES`."""

    @njit(
        int64(*[_HEADS] * 4, float32[:, ::1], _HEADS, _SEGMENTS, float32, int64, int64, *[_HEADS] * 3),
        nogil=True,
        error_model="numpy",
        cache=True,
    )
    def differentiate(  # type: ignore[no-untyped-def]
        query, key, value, output, log_sums, upstream, segments, scale, first, end, d_query, d_key, d_value
    ):
        """Write the gradients of the heads of keys from `first` to before `end`; returns the digest.

        `upstream`: [T, H, D], the gradient of `output`; `d_query`, `d_key`, `d_value`: of the shapes of what
        they are gradients of; the other arguments as for `attend`.
        """
        tokens, heads, dim = query.shape
        share, e, stride = heads // key.shape[1], round_up(dim, LANES), _row_length(segments)
        queries, keys = np.zeros((tokens, e), np.float32), np.zeros((tokens, e), np.float32)
        upstreams, sums = np.zeros((tokens, e), np.float32), np.empty((ROWS, e), np.float32)
        key_panels, value_panels = _make_panels(segments, e), _make_panels(segments, e)
        key_sums = np.empty((tokens + ROWS, e), np.float32)
        value_sums = np.empty((tokens + ROWS, e), np.float32)
        weights, slopes = np.empty((_BLOCK, stride), np.float32), np.empty((_BLOCK, stride), np.float32)
        at_weights, at_slopes, at_sums = weights.ctypes.data, slopes.ctypes.data, sums.ctypes.data
        at_queries, at_keys, at_upstreams = queries.ctypes.data, keys.ctypes.data, upstreams.ctypes.data
        at_key_panels, at_value_panels = key_panels.ctypes.data, value_panels.ctypes.data
        at_key_sums, at_value_sums = key_sums.ctypes.data, value_sums.ctypes.data
        for k in range(first, end):
            _copy(key, k, float32(1.0), keys)
            _pack(key, k, segments, key_panels)
            _pack(value, k, segments, value_panels)
            key_sums[:], value_sums[:] = float32(0.0), float32(0.0)
            for head, s in np.ndindex((share, segments.shape[0])):
                head += k * share
                if s == 0:
                    _copy(query, head, scale, queries)
                    _copy(upstream, head, float32(1.0), upstreams)
                start, count, (_, before, _) = segments[s, FIRST], segments[s, COUNT], _prompt_of(segments, s)
                # Between the prompt's scores and the segment's own are zeros: a tile may go beyond the first.
                own = round_up(before, LANES) + LANES if before > 0 else 0
                for block in range(0, count, _BLOCK):
                    block_end = min(count, block + _BLOCK)
                    width = own + round_up(block_end, LANES) + LANES
                    weights[: block_end - block, :width] = float32(0.0)
                    slopes[: block_end - block, :width] = float32(0.0)
                    for low in range(block, block_end, ROWS):
                        high = min(block_end, low + ROWS)
                        rows, row, offset = high - low, start + low, BYTES * (low - block) * stride
                        a, u = at_queries + BYTES * row * e, at_upstreams + BYTES * row * e
                        of_weights, of_slopes = at_weights + offset, at_slopes + offset
                        _add_scores(rows, a, e, at_key_panels, segments, s, high, own, of_weights, stride)
                        _add_scores(rows, u, e, at_value_panels, segments, s, high, own, of_slopes, stride)
                        for r in range(rows):
                            w, g = weights[low - block + r], slopes[low - block + r]
                            visible = own + low + r + 1
                            mean = dot(output[row + r, head], upstream[row + r, head])
                            _weigh(w[:visible], g[:visible], log_sums[head, row + r], mean)
                            for column in range(before, own):
                                w[column] = g[column] = float32(0.0)
                            for column in range(visible, width):
                                w[column] = g[column] = float32(0.0)
                        sums[:rows] = float32(0.0)
                        _add_weighted(rows, of_slopes, stride, at_keys, e, segments, s, high, own, at_sums)
                        for r in range(rows):
                            for d in range(dim):
                                d_query[row + r, head, d] = sums[r, d] * scale
                    rows, row = block_end - block, start + block
                    a, u = at_queries + BYTES * row * e, at_upstreams + BYTES * row * e
                    _add_to_keys(at_slopes, stride, a, rows, e, segments, s, block_end, own, at_key_sums)
                    _add_to_keys(at_weights, stride, u, rows, e, segments, s, block_end, own, at_value_sums)
            for t in range(tokens):
                for d in range(dim):
                    d_key[t, k, d] = key_sums[t, d]
                    d_value[t, k, d] = value_sums[t, d]
        return digest

    return differentiate


# numba looks at this file alone, and keeps its functions until it changes (agents/samplers/cpu/forward.py).
_SOURCES = (tiles.__file__, kernels.__file__)
_DIGEST = zlib.crc32(b"".join(Path(file).read_bytes() for file in _SOURCES))
attend, differentiate = _compile_forward(_DIGEST), _compile_backward(_DIGEST)
