"""Exponentials, random numbers, and tokens drawn from logits, compiled by numba.

A row's result depends on that row alone, and is the same in one call for many rows and in many calls.
"""

import math

import numpy as np
from llvmlite import ir
from numba import float32, float64, int32, int64, njit, types, uint64
from numba.extending import intrinsic

_LOG2_E = np.float32(1 / math.log(2))
_LEAST_EXPONENT, _MOST_EXPONENT = np.float32(-126.0), np.float32(126.0)
# Taylor coefficients of 2^x: the error is below 2e-7 for |x| <= 1/2.
_C1, _C2, _C3, _C4, _C5, _C6 = (np.float32(math.log(2) ** n / math.factorial(n)) for n in range(1, 7))
_MINUS_INFINITY = np.float32(-np.inf)
_LEAST_MASS = np.float32(2.0**-125)
"""Less counts as 0: `exponential_of` gives about as much for everything below."""
_BLOCK = 16
"""Tokens whose mass is added up before one of them is looked for."""


@intrinsic
def _float_of_bits(_, bits):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), generate


@njit(fastmath=True, inline="always")
def exponential_of(number):  # type: ignore[no-untyped-def]
    """The exponential of a float32; a loop of it becomes vector instructions."""
    x = min(max(number * _LOG2_E, _LEAST_EXPONENT), _MOST_EXPONENT)
    whole = int32(np.floor(x + float32(0.5)))
    part = x - float32(whole)
    mantissa = float32(1.0) + part * (
        _C1 + part * (_C2 + part * (_C3 + part * (_C4 + part * (_C5 + part * _C6))))
    )
    return mantissa * _float_of_bits((whole + int32(127)) << int32(23))  # type: ignore[call-arg]


@njit(fastmath=True, inline="always")
def highest_of(numbers):  # type: ignore[no-untyped-def]
    """The highest of `numbers` [C], by eight chains: one would wait for each comparison."""
    h0 = h1 = h2 = h3 = h4 = h5 = h6 = h7 = numbers[0]
    whole = numbers.shape[0] // 8 * 8
    for c in range(0, whole, 8):
        h0, h1 = max(h0, numbers[c]), max(h1, numbers[c + 1])
        h2, h3 = max(h2, numbers[c + 2]), max(h3, numbers[c + 3])
        h4, h5 = max(h4, numbers[c + 4]), max(h5, numbers[c + 5])
        h6, h7 = max(h6, numbers[c + 6]), max(h7, numbers[c + 7])
    for c in range(whole, numbers.shape[0]):
        h0 = max(h0, numbers[c])
    return max(max(max(h0, h1), max(h2, h3)), max(max(h4, h5), max(h6, h7)))


@njit(fastmath=True, inline="always")
def exponentiate_scores(scores):  # type: ignore[no-untyped-def]
    """Replace `scores` [C] by exp(score - highest score), and return their sum."""
    highest, total = highest_of(scores), float32(0.0)
    for c in range(scores.shape[0]):
        scores[c] = exponential_of(scores[c] - highest)
        total += scores[c]
    return total


@njit(inline="always")
def uniform(key, position):  # type: ignore[no-untyped-def]
    """A float32 in [0, 1) for a key and a position, both uint64: splitmix64 of the key at that position."""
    x = key + position * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return float32(float64(x >> np.uint64(40)) * 2.0**-24)


@njit(float32[::1](uint64[::1], uint64[::1]), nogil=True, cache=True)
def uniforms(keys, positions):  # type: ignore[no-untyped-def]
    """[N]: `uniform` of each key at each position."""
    numbers = np.empty(keys.shape[0], np.float32)
    for n in range(keys.shape[0]):
        numbers[n] = uniform(keys[n], positions[n])
    return numbers


@njit(nogil=True, fastmath=False)  # else numba takes the caller's flags
def _add_up(masses):  # type: ignore[no-untyped-def]
    """Return the sum of `masses` [V], added in one order.

    With fast mathematics each compilation has its own order, and the process that compiles a function may
    run other code than those that load it from the disk.
    """
    sums = float64(0.0), float64(0.0), float64(0.0), float64(0.0)
    whole = masses.shape[0] // 4 * 4
    for v in range(0, whole, 4):
        sums = (
            sums[0] + float64(masses[v]),
            sums[1] + float64(masses[v + 1]),
            sums[2] + float64(masses[v + 2]),
            sums[3] + float64(masses[v + 3]),
        )
    total = (sums[0] + sums[1]) + (sums[2] + sums[3])
    for v in range(whole, masses.shape[0]):
        total += float64(masses[v])
    return total


_WITH_NAN = {"reassoc", "nsz", "arcp", "contract"}
"""Flags of fast mathematics that leave infinities and NaN what they are."""


@njit(nogil=True, fastmath=_WITH_NAN)
def exponentiate_logits(logits, temperature, masses):  # type: ignore[no-untyped-def]
    """Write exp((logit - highest) / temperature) to `masses` [V]; returns their sum, and the logarithm of the
    sum of the exponentials of the tempered logits. A logit may be −∞; with +∞ or NaN, the sum is NaN."""
    highest, check, factor = highest_of(logits), float32(0.0), float32(1.0) / temperature
    for v in range(logits.shape[0]):
        check += float32(0.0) * (logits[v] if logits[v] != _MINUS_INFINITY else float32(0.0))
    for v in range(logits.shape[0]):
        mass = exponential_of((logits[v] - highest) * factor)
        masses[v] = mass if mass >= _LEAST_MASS else float32(0.0)
    total = _add_up(masses) + float64(check)
    return total, float64(highest) * float64(factor) + math.log(total)


@njit(inline="always")
def _mass(row, start):  # type: ignore[no-untyped-def]
    mass = float64(0.0)
    for v in range(start, min(start + _BLOCK, row.shape[0])):
        mass += float64(row[v])
    return mass


@njit(nogil=True)
def draw(masses, total, number):  # type: ignore[no-untyped-def]
    """The first token at which the cumulative mass exceeds `total` times `number`, in [0, 1).

    `masses`: [V], of sum `total`; a token without mass is never drawn.
    """
    target, before, start = float64(number) * total, float64(0.0), 0
    while start + _BLOCK < masses.shape[0]:
        mass = _mass(masses, start)
        if before + mass > target:
            break
        before += mass
        start += _BLOCK
    last = -1
    for v in range(start, masses.shape[0]):
        if masses[v] > 0:
            last = v
            before += float64(masses[v])
            if before > target:
                break
    if last < 0:  # rounding has gone past the last token that has mass
        for v in range(start):
            if masses[v] > 0:
                last = v
    return last


@njit(types.UniTuple(float64[::1], 2)(float32[:, ::1], float32[::1], float32[:, ::1]), nogil=True, cache=True)
def exponentiate_rows(logits, temperatures, masses):  # type: ignore[no-untyped-def]
    """`exponentiate_logits` of each row [N, V]: sums and logarithms [N]."""
    totals, log_sums = np.empty(logits.shape[0]), np.empty(logits.shape[0])
    for n in range(logits.shape[0]):
        totals[n], log_sums[n] = exponentiate_logits(logits[n], temperatures[n], masses[n])
    return totals, log_sums


@njit(int64[::1](float32[:, ::1], float64[::1], float32[::1]), nogil=True, cache=True)
def draw_rows(masses, totals, numbers):  # type: ignore[no-untyped-def]
    """`draw` from each row [N, V]: tokens [N]."""
    tokens = np.empty(masses.shape[0], np.int64)
    for n in range(masses.shape[0]):
        tokens[n] = draw(masses[n], totals[n], numbers[n])
    return tokens
