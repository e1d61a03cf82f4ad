"""Exponentials, and tokens drawn from logits, compiled by numba. A row's result depends on that row alone."""

import math

import numba
import numpy as np
from numba import float32, float64, int32, int64, njit

_LOG2_E = np.float32(1 / math.log(2))
_LEAST_EXPONENT, _MOST_EXPONENT = np.float32(-126.0), np.float32(126.0)
# Taylor coefficients of 2^x: the error is below 2e-7 for |x| <= 1/2.
_C1, _C2, _C3, _C4, _C5, _C6 = (np.float32(math.log(2) ** n / math.factorial(n)) for n in range(1, 7))
_LEAST_MASS = np.float32(2.0**-125)
"""Less counts as 0: smaller numbers have the same exponential."""
_BLOCK = 16
"""Tokens whose mass is added up before one of them is looked for."""


@njit(fastmath=True, inline="always")
def exponentiate(numbers, powers):  # type: ignore[no-untyped-def]
    """Replace `numbers` [C] by their exponentials; `powers`: int32 [C], to work in."""
    for c in range(numbers.shape[0]):
        x = min(max(numbers[c] * _LOG2_E, _LEAST_EXPONENT), _MOST_EXPONENT)
        whole = int32(np.floor(x + float32(0.5)))
        part = x - float32(whole)
        powers[c] = (whole + int32(127)) << int32(23)  # the bits of 2^whole
        numbers[c] = float32(1.0) + part * (
            _C1 + part * (_C2 + part * (_C3 + part * (_C4 + part * (_C5 + part * _C6))))
        )
    two_to_whole = powers.view(np.float32)
    for c in range(numbers.shape[0]):
        numbers[c] *= two_to_whole[c]


@njit(fastmath=True, inline="always")
def exponentiate_scores(scores, powers):  # type: ignore[no-untyped-def]
    """Replace `scores` [C] by exp(score - highest score), and return their sum; `powers` as above."""
    highest = scores[0]
    for c in range(scores.shape[0]):
        highest = max(highest, scores[c])
    for c in range(scores.shape[0]):
        scores[c] -= highest
    exponentiate(scores, powers)
    total = np.float32(0.0)
    for c in range(scores.shape[0]):
        total += scores[c]
    return total


@njit(
    numba.void(float32[:, ::1], float32[::1], float32[::1], float32[:, ::1], float64[::1], float64[::1]),
    fastmath={"reassoc", "nsz", "arcp", "contract"},  # a logit may be −∞
    nogil=True,
    cache=True,
)
def exponentiate_logits(logits, highest, temperatures, masses, totals, log_totals):  # type: ignore[no-untyped-def]
    """Write exp((logit - highest) / temperature) to `masses` [N, V], and their sums [N] and these sums'
    logarithms."""
    powers = np.empty(logits.shape[1], np.int32)
    for n in range(logits.shape[0]):
        row, factor = masses[n], float32(1.0) / temperatures[n]
        for v in range(row.shape[0]):
            row[v] = (logits[n, v] - highest[n]) * factor
        exponentiate(row, powers)
        total = float64(0.0)
        for v in range(row.shape[0]):
            if row[v] < _LEAST_MASS:
                row[v] = float32(0.0)
            total += float64(row[v])
        totals[n], log_totals[n] = total, math.log(total)


@njit(inline="always")
def _mass(row, start):  # type: ignore[no-untyped-def]
    mass = float64(0.0)
    for v in range(start, min(start + _BLOCK, row.shape[0])):
        mass += float64(row[v])
    return mass


@njit(int64[::1](float32[:, ::1], float64[::1], float32[::1]), nogil=True, cache=True)
def draw(masses, totals, uniform):  # type: ignore[no-untyped-def]
    """For each row of `masses` [N, V], with the sums `totals` [N], the first token at which the cumulative
    mass exceeds the total times `uniform` [N], in [0, 1); a token without mass is never drawn."""
    tokens = np.empty(masses.shape[0], np.int64)
    vocab_size = masses.shape[1]
    for n in range(masses.shape[0]):
        row = masses[n]
        target, before, start = float64(uniform[n]) * totals[n], float64(0.0), 0
        while start + _BLOCK < vocab_size:
            mass = _mass(row, start)
            if before + mass > target:
                break
            before += mass
            start += _BLOCK
        last = -1
        for v in range(start, vocab_size):
            if row[v] > 0:
                last = v
                before += float64(row[v])
                if before > target:
                    break
        if last < 0:  # rounding has gone past the last token that has mass
            for v in range(start):
                if row[v] > 0:
                    last = v
        tokens[n] = last
    return tokens
