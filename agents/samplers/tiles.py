"""Matrix products of small matrices: tiles of a result that stay in vector registers, compiled by numba.

A tile is written as LLVM code, because compilers do not keep a block of numbers in registers across a loop by
themselves. Each number of a result is its initial value plus its products, added one after the other by fused
multiply-add: its bits depend neither on the size of the tile nor on the other rows (docs/decisions/
0017-fused-forward.md). Arrays are passed by address; strides and lengths count float32 numbers.
"""

from collections.abc import Callable, Sequence

import numpy as np
from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import njit, types
from numba.core import cgutils
from numba.core.base import BaseContext
from numba.extending import intrinsic, register_jitable

LANES = 16
"""Columns of a vector: one register of AVX-512, two of AVX2, four of NEON."""
ROWS = 6
"""The most rows of a tile: with AVX2, twelve sums, two vectors of B and a number of A fill the registers."""
_IS_WIDE = bool(get_host_cpu_features().get("avx512f"))
"""Whether a tile of several rows has two vectors of columns: AVX-512 has the registers for it, and keeps its
units for multiply-add busy with twelve sums only. numba compiles anew for another processor."""
BYTES = 4


def _make_tile(rows: int, width: int, *, is_transposed: bool = False) -> Callable[..., None]:
    """A function `(a, a_stride, b, b_stride, b_panel, length, c, c_stride)` that adds to a tile of C.

    C[r, w * LANES + lane] += sum over i < length of A[r, i] * B[w][i, lane], for `rows` rows and `width`
    vectors. Row r of A, or column i if A `is_transposed`, begins at `a + r * a_stride`; row i of B[w] at
    `b + i * b_stride + w * b_panel`.
    """

    def generate(
        context: BaseContext, builder: ir.IRBuilder, _: object, arguments: Sequence[ir.Value]
    ) -> ir.Value:
        a, a_stride, b, b_stride, b_panel, length, c, c_stride = arguments
        number, integer = ir.FloatType(), ir.IntType(64)
        vector = ir.VectorType(number, LANES)
        fma = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(vector, [vector] * 3), f"llvm.fma.v{LANES}f32"
        )
        no_vector = ir.Constant(vector, ir.Undefined)
        first_lane = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)

        def times(value: ir.Value, count: int) -> ir.Value:
            return builder.mul(value, ir.Constant(integer, count))

        def pointer(address: ir.Value, offset: ir.Value, kind: ir.Type) -> ir.Value:
            return builder.inttoptr(builder.add(address, times(offset, BYTES)), kind.as_pointer())

        def phis(starts: list[ir.Value], block: ir.Block) -> list[ir.Value]:
            nodes = [builder.phi(start.type) for start in starts]
            for node, start in zip(nodes, starts, strict=True):
                node.add_incoming(start, block)
            return nodes

        tile = [(r, w) for r in range(rows) for w in range(width)]
        c_pointers = [
            pointer(c, builder.add(times(c_stride, r), ir.Constant(integer, LANES * w)), vector)
            for r, w in tile
        ]
        starts = [builder.load(c_pointer, align=BYTES) for c_pointer in c_pointers]
        a_rows = [ir.Constant(integer, r) if is_transposed else times(a_stride, r) for r in range(rows)]
        b_panels = [times(b_panel, w) for w in range(width)]
        entry = builder.block
        loop, end = builder.append_basic_block("tile.loop"), builder.append_basic_block("tile.end")
        builder.cbranch(builder.icmp_signed(">", length, ir.Constant(integer, 0)), loop, end)

        builder.position_at_end(loop)
        i, *sums = phis([ir.Constant(integer, 0), *starts], entry)
        b_row = builder.mul(i, b_stride)
        a_column = builder.mul(i, a_stride) if is_transposed else i
        columns = [
            builder.load(pointer(b, builder.add(b_row, panel), vector), align=BYTES) for panel in b_panels
        ]
        factors = []
        for a_row in a_rows:
            factor = builder.load(pointer(a, builder.add(a_row, a_column), number), align=BYTES)
            lanes = builder.insert_element(no_vector, factor, ir.Constant(ir.IntType(32), 0))
            factors.append(builder.shuffle_vector(lanes, no_vector, first_lane))
        new_sums = [
            builder.call(fma, [factors[r], columns[w], total])
            for (r, w), total in zip(tile, sums, strict=True)
        ]
        next_i = builder.add(i, ir.Constant(integer, 1))
        builder.cbranch(builder.icmp_signed("<", next_i, length), loop, end)
        for node, value in zip([i, *sums], [next_i, *new_sums], strict=True):
            node.add_incoming(value, loop)

        builder.position_at_end(end)
        results = phis(starts, entry)
        for node, value in zip(results, new_sums, strict=True):
            node.add_incoming(value, loop)
        for node, c_pointer in zip(results, c_pointers, strict=True):
            builder.store(node, c_pointer, align=BYTES)
        return context.get_dummy_value()

    @intrinsic
    def tile(_, a, a_stride, b, b_stride, b_panel, length, c, c_stride):  # type: ignore[no-untyped-def]
        return types.void(*[types.int64] * 8), generate

    function: Callable[..., None] = tile
    return function


_tile_1x1, _tile_1x2, _tile_1x4 = _make_tile(1, 1), _make_tile(1, 2), _make_tile(1, 4)
_tile_2x1, _tile_3x1, _tile_4x1 = _make_tile(2, 1), _make_tile(3, 1), _make_tile(4, 1)
_tile_5x1, _tile_6x1 = _make_tile(5, 1), _make_tile(6, 1)
_tile_2x2, _tile_3x2, _tile_4x2 = _make_tile(2, 2), _make_tile(3, 2), _make_tile(4, 2)
_tile_5x2, _tile_6x2 = _make_tile(5, 2), _make_tile(6, 2)
_transposed_6x1 = _make_tile(6, 1, is_transposed=True)
_transposed_6x2 = _make_tile(6, 2, is_transposed=True)


@njit(nogil=True)
def _add_narrow(rows, a, a_stride, b, b_stride, length, c, c_stride):  # type: ignore[no-untyped-def]
    """Add A [rows, length] times B [length, LANES] to C [rows, LANES]; `rows`: 1 to `ROWS`."""
    if rows == 6:
        _tile_6x1(a, a_stride, b, b_stride, 0, length, c, c_stride)
    elif rows == 5:
        _tile_5x1(a, a_stride, b, b_stride, 0, length, c, c_stride)
    elif rows == 4:
        _tile_4x1(a, a_stride, b, b_stride, 0, length, c, c_stride)
    elif rows == 3:
        _tile_3x1(a, a_stride, b, b_stride, 0, length, c, c_stride)
    elif rows == 2:
        _tile_2x1(a, a_stride, b, b_stride, 0, length, c, c_stride)
    else:
        _tile_1x1(a, a_stride, b, b_stride, 0, length, c, c_stride)


@njit(nogil=True)
def _add_wide(rows, a, a_stride, b, b_stride, b_panel, length, c, c_stride):  # type: ignore[no-untyped-def]
    """Add A [rows, length] times B [length, 2 LANES] to C; `rows`: 1 to `ROWS`."""
    if rows == 6:
        _tile_6x2(a, a_stride, b, b_stride, b_panel, length, c, c_stride)
    elif rows == 5:
        _tile_5x2(a, a_stride, b, b_stride, b_panel, length, c, c_stride)
    elif rows == 4:
        _tile_4x2(a, a_stride, b, b_stride, b_panel, length, c, c_stride)
    elif rows == 3:
        _tile_3x2(a, a_stride, b, b_stride, b_panel, length, c, c_stride)
    elif rows == 2:
        _tile_2x2(a, a_stride, b, b_stride, b_panel, length, c, c_stride)
    else:
        _tile_1x2(a, a_stride, b, b_stride, b_panel, length, c, c_stride)


@njit(nogil=True)
def add_rows(rows, a, a_stride, b, b_stride, b_panel, length, columns, c, c_stride):  # type: ignore[no-untyped-def]
    """Add A [rows, length] times B to C [rows, columns]; `rows`: 1 to `ROWS`; `columns`: a multiple of
    `LANES`, each in a panel of B."""
    column = 0
    while rows == 1 and column + 4 * LANES <= columns:
        _tile_1x4(a, 0, b, b_stride, b_panel, length, c, 0)
        b, c, column = b + 4 * BYTES * b_panel, c + 4 * BYTES * LANES, column + 4 * LANES
    while (_IS_WIDE or rows == 1) and column + 2 * LANES <= columns:
        _add_wide(rows, a, a_stride, b, b_stride, b_panel, length, c, c_stride)
        b, c, column = b + 2 * BYTES * b_panel, c + 2 * BYTES * LANES, column + 2 * LANES
    while column < columns:
        _add_narrow(rows, a, a_stride, b, b_stride, length, c, c_stride)
        b, c, column = b + BYTES * b_panel, c + BYTES * LANES, column + LANES


@njit(nogil=True)
def add_transposed(n, a, a_stride, b, length, columns, c):  # type: ignore[no-untyped-def]
    """Add the transpose of A [length, n] times B [length, columns] to C [n, columns], whose rows follow each
    other; `columns`: a multiple of `LANES`. `n` is rounded up to `ROWS`: A and C have as many columns and
    rows."""
    for row in range(0, n, ROWS):
        column = 0
        a_rows, c_rows = a + BYTES * row, c + BYTES * row * columns
        while _IS_WIDE and column + 2 * LANES <= columns:
            b_columns, c_tile = b + BYTES * column, c_rows + BYTES * column
            _transposed_6x2(a_rows, a_stride, b_columns, columns, LANES, length, c_tile, columns)
            column += 2 * LANES
        while column < columns:
            b_columns, c_tile = b + BYTES * column, c_rows + BYTES * column
            _transposed_6x1(a_rows, a_stride, b_columns, columns, LANES, length, c_tile, columns)
            column += LANES


@njit(nogil=True)
def add_product(n, a, a_stride, panels, length, columns, c, c_stride):  # type: ignore[no-untyped-def]
    """Add A [n, length] times a packed matrix [length, columns] to C [n, columns]."""
    parts, panel = (n + ROWS - 1) // ROWS, length * LANES
    for column in range(0, columns, 2 * LANES):
        b, c_panels = panels + BYTES * column * length, c + BYTES * column
        width, first = min(2 * LANES, columns - column), 0
        for part in range(parts):
            end = n * (part + 1) // parts  # rows are shared out evenly: 8 are 4 and 4, not 6 and 2
            a_rows, c_rows = a + BYTES * first * a_stride, c_panels + BYTES * first * c_stride
            add_rows(end - first, a_rows, a_stride, b, LANES, panel, length, width, c_rows, c_stride)
            first = end


def pack(matrix: np.ndarray) -> np.ndarray:
    """`matrix` [outputs, inputs] as `add_product` reads it: panels [inputs, LANES], outputs padded with 0."""
    outputs, inputs = matrix.shape
    padded = np.zeros((round_up(outputs, LANES), inputs), dtype=np.float32)
    padded[:outputs] = matrix
    return np.ascontiguousarray(padded.reshape(-1, LANES, inputs).transpose(0, 2, 1)).ravel()


@register_jitable
def round_up(count: int, multiple: int) -> int:
    """The least multiple that is not less than `count`."""
    return -(-count // multiple) * multiple
