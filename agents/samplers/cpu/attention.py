"""The attention kernel of the CPU engine: single queries over two ranges of keys, compiled by numba.

The result for a query depends on its own keys and values alone: nothing else in the same call takes part in
one of its sums, or changes their order (`docs/decisions/0013-same-bits.md`). Inner loops run over columns or
over the head dimension with the columns unrolled, which the compiler turns into vector instructions.
"""

import math

import numba
import numpy as np
from numba import float32, int32, int64, njit

_LOG2_E = np.float32(1 / math.log(2))
_LEAST_EXPONENT = np.float32(-126.0)
# Taylor coefficients of 2^x: the error is below 2e-7 for |x| <= 1/2.
_C1, _C2, _C3, _C4, _C5, _C6 = (np.float32(math.log(2) ** n / math.factorial(n)) for n in range(1, 7))


@njit(fastmath=True, inline="always")
def _add_scores(query, keys, scores):  # type: ignore[no-untyped-def]
    """Scores of one query [D] and keys [D, columns], for as many columns as `scores` has."""
    scores[:] = np.float32(0.0)
    for d in range(0, query.shape[0], 8):
        q0, q1, q2, q3 = query[d], query[d + 1], query[d + 2], query[d + 3]
        q4, q5, q6, q7 = query[d + 4], query[d + 5], query[d + 6], query[d + 7]
        for c in range(scores.shape[0]):
            scores[c] += (
                q0 * keys[d, c]
                + q1 * keys[d + 1, c]
                + q2 * keys[d + 2, c]
                + q3 * keys[d + 3, c]
                + q4 * keys[d + 4, c]
                + q5 * keys[d + 5, c]
                + q6 * keys[d + 6, c]
                + q7 * keys[d + 7, c]
            )


@njit(fastmath=True, inline="always")
def _exponentiate(scores, powers):  # type: ignore[no-untyped-def]
    """Replace `scores` by exp(score - highest score) and return their sum; `powers`: int32, as long."""
    highest = scores[0]
    for c in range(scores.shape[0]):
        highest = max(highest, scores[c])
    for c in range(scores.shape[0]):
        x = max((scores[c] - highest) * _LOG2_E, _LEAST_EXPONENT)
        whole = int32(x - float32(0.5))  # towards 0, so the nearest
        part = x - float32(whole)
        powers[c] = (whole + int32(127)) << int32(23)  # the bits of 2^whole
        scores[c] = float32(1.0) + part * (
            _C1 + part * (_C2 + part * (_C3 + part * (_C4 + part * (_C5 + part * _C6))))
        )
    two_to_whole = powers.view(np.float32)
    total = np.float32(0.0)
    for c in range(scores.shape[0]):
        scores[c] *= two_to_whole[c]
        total += scores[c]
    return total


@njit(fastmath=True, inline="always")
def _add_values(weights, values, output):  # type: ignore[no-untyped-def]
    """Add the values [D, columns] by their weights to `output` [D]."""
    for d in range(0, output.shape[0], 4):
        o0 = o1 = o2 = o3 = np.float32(0.0)
        for c in range(weights.shape[0]):
            weight = weights[c]
            o0 += weight * values[d, c]
            o1 += weight * values[d + 1, c]
            o2 += weight * values[d + 2, c]
            o3 += weight * values[d + 3, c]
        output[d] += o0
        output[d + 1] += o1
        output[d + 2] += o2
        output[d + 3] += o3


@njit(
    numba.void(
        float32[:, :, ::1],
        float32[:, :, :, ::1],
        float32[:, :, :, :, ::1],
        int64[::1],
        int64[::1],
        float32[:, :, ::1],
    ),
    fastmath=True,
    error_model="numpy",  # weights that have diverged are found in the logits
    nogil=True,
    cache=True,
)
def attend(qkv, prefix, slots, at_slot, at_column, output):  # type: ignore[no-untyped-def]
    """Attention of N tokens over a prefix of P columns and over their slots up to themselves.

    First writes the tokens' keys and values to their slots. `qkv`: [N, H + 2K, D], queries scaled; `prefix`:
    [2, K, D, P], keys and values; `slots`: [2, count, K, D, columns]; `at_slot`, `at_column`: [N], where each
    token lies; `output`: [N, H, D]. D is a multiple of 8.
    """
    heads, head_dim, num_prefix = output.shape[1], output.shape[2], prefix.shape[3]
    kv_heads = prefix.shape[1]
    for n in range(qkv.shape[0]):
        for k in range(kv_heads):
            for d in range(head_dim):
                slots[0, at_slot[n], k, d, at_column[n]] = qkv[n, heads + k, d]
                slots[1, at_slot[n], k, d, at_column[n]] = qkv[n, heads + kv_heads + k, d]
    most = num_prefix + slots.shape[4]
    all_scores, all_powers = np.empty(most, np.float32), np.empty(most, np.int32)
    for h in range(heads):
        k = h // (heads // kv_heads)
        for n in range(qkv.shape[0]):
            slot, count = at_slot[n], at_column[n] + 1
            scores = all_scores[: num_prefix + count]
            _add_scores(qkv[n, h], prefix[0, k], scores[:num_prefix])
            _add_scores(qkv[n, h], slots[0, slot, k], scores[num_prefix:])
            share = float32(1.0) / _exponentiate(scores, all_powers[: num_prefix + count])
            result = output[n, h]
            result[:] = np.float32(0.0)
            _add_values(scores[:num_prefix], prefix[1, k], result)
            _add_values(scores[num_prefix:], slots[1, slot, k], result)
            for d in range(head_dim):
                result[d] *= share
