"""Sums and maxima, exponentials, random numbers, and tokens drawn from logits, compiled by numba.

A row's result depends on that row alone, and is the same in one call for many rows and in many calls. No
compiled function of the CPU engine uses fast mathematics: it lets the compiler reorder a sum, so that last
bits depend on where the function was inlined, and the process that compiles it has others than those that
load it from the disk (docs/decisions/0023-no-fast-mathematics.md). What would be slow without it is written
as LLVM code.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from llvmlite import ir
from numba import float32, float64, int32, int64, njit, types, uint64
from numba.core import cgutils
from numba.core.base import BaseContext
from numba.extending import intrinsic

_LOG2_E = np.float32(1 / math.log(2))
_LEAST_EXPONENT, _MOST_EXPONENT = np.float32(-126.0), np.float32(126.0)
# Taylor coefficients of 2^x: the error is below 2e-7 for |x| <= 1/2.
_C1, _C2, _C3, _C4, _C5, _C6 = (np.float32(math.log(2) ** n / math.factorial(n)) for n in range(1, 7))
_INFINITY = np.float32(np.inf)
_LEAST_MASS = np.float32(2.0**-125)
"""Less counts as 0: `exponential_of` gives about as much for everything below."""
_BLOCK = 16
"""Tokens whose mass is added up before one of them is looked for."""
_LANES = 16
"""Numbers of a row that are added, or compared, at once."""
_VECTOR = ir.VectorType(ir.FloatType(), _LANES)

_Combine = Callable[[ir.IRBuilder, ir.Value, ir.Value], ir.Value]


def _fma(builder: ir.IRBuilder, kind: ir.Type, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
    name = f"llvm.fma.v{_LANES}f32" if kind == _VECTOR else "llvm.fma.f32"
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(kind, [kind] * 3), name)
    return builder.call(function, [a, b, c])


@intrinsic
def multiply_add(_, a, b, c):  # type: ignore[no-untyped-def]
    """a * b + c of float32 numbers, rounded once; a loop of it becomes vector instructions."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return _fma(builder, ir.FloatType(), *arguments)

    return types.float32(types.float32, types.float32, types.float32), generate


def _add(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    return builder.fadd(a, b)


def _higher(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


def _make_reduction(combine: _Combine, start: float, *, is_product: bool = False) -> Callable[..., float]:
    """A function `(a, b, count)` of the addresses of `count` vectors each that reduces those of `a`, or
    adds the products of both if it `is_product`, to one number.

    Lane by lane first, from `start` on, then the upper half of the lanes with the lower, until one is left.
    """

    def generate(
        context: BaseContext, builder: ir.IRBuilder, _: object, arguments: Sequence[ir.Value]
    ) -> ir.Value:
        a, b, count = arguments
        integer = ir.IntType(64)
        first = ir.Constant(_VECTOR, [start] * _LANES)

        def load(address: ir.Value, i: ir.Value) -> ir.Value:
            offset = builder.mul(i, ir.Constant(integer, 4 * _LANES))
            return builder.load(builder.inttoptr(builder.add(address, offset), _VECTOR.as_pointer()), align=4)

        entry = builder.block
        loop, end = builder.append_basic_block("row.loop"), builder.append_basic_block("row.end")
        builder.cbranch(builder.icmp_signed(">", count, ir.Constant(integer, 0)), loop, end)

        builder.position_at_end(loop)
        i, lanes = builder.phi(integer), builder.phi(_VECTOR)
        numbers = load(a, i)
        new = (
            _fma(builder, _VECTOR, numbers, load(b, i), lanes)
            if is_product
            else combine(builder, numbers, lanes)
        )
        next_i = builder.add(i, ir.Constant(integer, 1))
        builder.cbranch(builder.icmp_signed("<", next_i, count), loop, end)
        for node, initial, value in ((i, ir.Constant(integer, 0), next_i), (lanes, first, new)):
            node.add_incoming(initial, entry)
            node.add_incoming(value, loop)

        builder.position_at_end(end)
        result = builder.phi(_VECTOR)
        result.add_incoming(first, entry)
        result.add_incoming(new, loop)
        half = _LANES // 2
        while half:
            upper = [(lane + half) % _LANES for lane in range(_LANES)]
            mask = ir.Constant(ir.VectorType(ir.IntType(32), _LANES), upper)
            other = builder.shuffle_vector(result, ir.Constant(_VECTOR, ir.Undefined), mask)
            result, half = combine(builder, result, other), half // 2
        return builder.extract_element(result, ir.Constant(ir.IntType(32), 0))

    @intrinsic
    def reduce(_, a, b, count):  # type: ignore[no-untyped-def]
        return types.float32(types.int64, types.int64, types.int64), generate

    function: Callable[..., float] = reduce
    return function


_sum_of, _highest_of = _make_reduction(_add, 0.0), _make_reduction(_higher, float("-inf"))
_dot = _make_reduction(_add, 0.0, is_product=True)


@njit(nogil=True)
def sum_of(numbers):  # type: ignore[no-untyped-def]
    """The sum of `numbers` [C], contiguous float32: of each lane's whole vectors, of the lanes, then of what
    is left."""
    at, vectors = numbers.ctypes.data, numbers.shape[0] // _LANES
    total = _sum_of(at, at, vectors)
    for c in range(vectors * _LANES, numbers.shape[0]):
        total += numbers[c]
    return total


@njit(nogil=True)
def dot(a, b):  # type: ignore[no-untyped-def]
    """The sum of the products of `a` and `b` [C], contiguous float32, in the order of `sum_of`."""
    vectors = a.shape[0] // _LANES
    total = _dot(a.ctypes.data, b.ctypes.data, vectors)
    for c in range(vectors * _LANES, a.shape[0]):
        total = multiply_add(a[c], b[c], total)  # type: ignore[call-arg]
    return total


@njit(nogil=True)
def highest_of(numbers):  # type: ignore[no-untyped-def]
    """The highest of `numbers` [C], contiguous float32, at least one; a NaN may be overlooked."""
    at, vectors = numbers.ctypes.data, numbers.shape[0] // _LANES
    highest = _highest_of(at, at, vectors)
    for c in range(vectors * _LANES, numbers.shape[0]):
        highest = max(highest, numbers[c])
    return float32(highest)


@intrinsic
def _float_of_bits(_, bits):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), generate


@njit(inline="always")
def exponential_of(number):  # type: ignore[no-untyped-def]
    """The exponential of a float32; a loop of it becomes vector instructions."""
    x = min(max(number * _LOG2_E, _LEAST_EXPONENT), _MOST_EXPONENT)
    whole = int32(np.floor(x + float32(0.5)))
    part = x - float32(whole)
    mantissa = multiply_add(part, _C6, _C5)  # type: ignore[call-arg, var-annotated]
    mantissa = multiply_add(part, mantissa, _C4)
    mantissa = multiply_add(part, mantissa, _C3)
    mantissa = multiply_add(part, mantissa, _C2)
    mantissa = multiply_add(part, mantissa, _C1)
    mantissa = multiply_add(part, mantissa, float32(1.0))
    return mantissa * _float_of_bits((whole + int32(127)) << int32(23))


@njit(nogil=True)
def exponentiate_scores(scores, highest):  # type: ignore[no-untyped-def]
    """Replace `scores` [C] by exp(score - highest), and return their sum."""
    for c in range(scores.shape[0]):
        scores[c] = exponential_of(scores[c] - highest)
    return sum_of(scores)


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


@njit(nogil=True)
def _add_up(masses):  # type: ignore[no-untyped-def]
    """The sum of `masses` [V], of float64."""
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


@njit(nogil=True, error_model="numpy")
def exponentiate_logits(logits, temperature, masses):  # type: ignore[no-untyped-def]
    """Write exp((logit - highest) / temperature) to `masses` [V]; returns their sum, and the logarithm of the
    sum of the exponentials of the tempered logits. A logit may be −∞; with +∞ or NaN, the sum is NaN."""
    highest, factor, is_number = highest_of(logits), float32(1.0) / temperature, True
    for v in range(logits.shape[0]):
        is_number &= logits[v] < _INFINITY
    for v in range(logits.shape[0]):
        mass = exponential_of((logits[v] - highest) * factor)
        masses[v] = mass if mass >= _LEAST_MASS else float32(0.0)
    total = _add_up(masses) if is_number else float64(np.nan)
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
