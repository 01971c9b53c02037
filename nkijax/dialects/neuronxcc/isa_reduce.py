"""Reductions, statistics and selections with a running maximum of `neuronxcc.nki.isa`.

Each function makes its result and emits the instruction's entry of `nkijax.isa`, whose docstring says what it computes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nkijax import arrays
from nkijax.dialects.neuronxcc import constants, emit, hidden
from nkijax.dialects.neuronxcc import reduce as free
from nkijax.dialects.neuronxcc.emit import compute, copied, joint, to_sbuf
from nkijax.dialects.neuronxcc.index import predicate_of
from nkijax.dialects.neuronxcc.isa_compute import (
    accumulator,
    alu,
    as_float32,
    column_result,
    kind_of,
    number_or_column,
    one_in_sbuf,
    reduction,
    spread,
    tile_of,
)
from nkijax.dialects.neuronxcc.isa_dma import truth
from nkijax.dialects.neuronxcc.predicate import Region
from nkijax.dialects.neuronxcc.regions import projected
from nkijax.dialects.neuronxcc.tensor import Tile, allocate, boxed, operand, result
from nkijax.errors import KernelError, Unsupported
from nkijax.isa.accumulating import TensorScalarCumulative
from nkijax.isa.operators import ReduceCmd
from nkijax.isa.reduce import TensorPartitionReduce
from nkijax.isa.selecting import FLOAT32_MIN, RangeSelect, SelectReduce
from nkijax.isa.statistics import BnAggr, BnStats
from nkijax.machine import Generation, Memory
from nkijax.program import Instruction
from nkijax.trace import current
from nkijax.view import View

_API = "nki.isa"


def tensor_reduce(op, data, axis, mask=None, dtype=None, negate=False, keepdims=False, **hints) -> Tile:
    """`data` reduced by an operator over free dimensions, times -1 if `negate`; masked-off lanes are left out."""
    del hints
    api = f"{_API}.tensor_reduce"
    row = reduction(op, f"{api} op")
    return free.reduced(api, row, tile_of(data, f"{api} data"), axis, dtype, mask, keepdims, bool(negate))


def tensor_partition_reduce(op, data, mask=None, dtype=None, **hints) -> Tile:
    """`data` (P, F …) reduced by an operator over the partitions: (1, F …)."""
    del hints
    api = f"{_API}.tensor_partition_reduce"
    tile, row = tile_of(data, f"{api} data"), reduction(op, f"{api} op")
    where = joint(api, mask, [tile], tile.shape)
    shape = (1, *tile.shape[1:])
    into = projected(where, (-1, *range(1, tile.ndim)), shape)
    out = result(shape, kind_of(dtype, tile.dtype, api), Memory.sbuf, into)
    if where.empty:
        return out
    assert row.identity is not None
    view = hidden.filled(operand(tile, None, where, api), where, row.identity)
    made = TensorPartitionReduce(boxed(out.raw, into.box), row, to_sbuf(view))
    current(api).emit(made)
    out.made = made
    return out


def _statistics(api: str, entry: type, data: Any, count: int, mask: Any, dtype: Any) -> Tile:
    tile = tile_of(data, f"{api} data")
    where = joint(api, mask, [tile], tile.shape)
    shape = (tile.shape[0], count)
    rows = projected(where, (0, -1), (tile.shape[0], 1))
    into = Region(shape, (rows.box[0], (0, 0) if where.empty else (0, count)), rows.rest)
    out = result(shape, kind_of(dtype, tile.dtype, api), Memory.sbuf, into)
    if where.empty:
        return out
    dst = boxed(out.raw, into.box)
    if entry is BnStats and not _keeps_parity(where):
        free = tuple((0, n) for n in where.shape[1:])
        whole = Region(where.shape, (where.box[0], *free), predicate_of(where))
        hidden.statistics(dst, operand(tile, None, whole, api), whole)
        return out
    view = hidden.filled(operand(tile, None, where, api), where, 0.0)  # a group that is hidden counts 0 elements
    made = entry(dst, view)
    current(api).emit(made)
    out.made = made
    return out


def _keeps_parity(where: Region) -> bool:
    """Whether even columns of what a mask leaves are those of the tile."""
    if where.rest is not None:
        return False
    free = where.box[1:]
    return free == tuple((0, n) for n in where.shape[1:]) or len(free) == 1 and free[0][0] % 2 == 0


def bn_stats(data, mask=None, dtype=None, **hints) -> Tile:
    """Count, mean and variance * count of the even, then of the odd columns, without masked-off lanes: (P, 6)."""
    del hints
    return _statistics(f"{_API}.bn_stats", BnStats, data, 6, mask, dtype)


def bn_aggr(data, mask=None, dtype=None, **hints) -> Tile:
    """Mean and variance of what groups of bn_stats describe: (P, 2)."""
    del hints
    return _statistics(f"{_API}.bn_aggr", BnAggr, data, 2, mask, dtype)


# ---- selections with a running maximum


def select_reduce(
    dst,
    predicate,
    on_true,
    on_false,
    reduce_res=None,
    reduce_cmd=constants.reduce_cmd.idle,
    reduce_op=np.amax,
    reverse_pred=False,
    mask=None,
    dtype=None,
    **hints,
) -> None:
    """dst = on_true where predicate is not zero, else on_false; reduce_res takes the running maximum over F."""
    del hints, dtype
    api = f"{_API}.select_reduce"
    to, chosen, tile = (
        tile_of(x, f"{api} {n}") for n, x in (("dst", dst), ("predicate", predicate), ("on_true", on_true))
    )
    where = joint(api, mask, [to, chosen, tile], to.shape)
    if where.empty:
        return
    flags, x = (emit.view_in(v, to.shape, where, api) for v in (chosen, tile))
    if flags.dtype not in ("int8", "uint8", "int16", "uint16", "bool"):
        flags = _narrow(truth(flags))
    if x.dtype in ("int32", "uint32", "tfloat32"):
        x = copied(x, "float32")
    x, flags = one_in_sbuf(x, flags)
    other = spread(emit.view_in(number_or_column(on_false, f"{api} on_false"), to.shape, where, api), x)
    uses = reduce_res is not None or reduce_cmd is not ReduceCmd.idle
    row = reduction(reduce_op, f"{api} reduce_op")
    res = column_result(reduce_res, where, f"{api} reduce_res")
    state = (res and res.view, reduce_cmd, row), accumulator("vector", x, where) if uses else None
    recorder, view, reverse = current(api), operand(to, None, where, api), bool(reverse_pred)
    if where.rest is None:
        recorder.emit(SelectReduce(view, flags, x, other, *state[0], reverse, state[1]))
    else:  # chosen first; then the maximum of the lanes that the mask leaves
        found = allocate(view.shape, "float32", Memory.sbuf)
        recorder.emit(SelectReduce(found, flags, x, other, reverse_pred=reverse))
        if uses:
            left, shown = allocate(view.shape, "float32", Memory.sbuf), hidden.flags_of(where, "uint8")
            recorder.emit(SelectReduce(left, shown, found, FLOAT32_MIN, *state[0], False, state[1]))
        emit.put(view, found, where)
    if res is not None:
        res.settle()


def tensor_scalar_cumulative(
    src, dst, op0, op1, imm0, imm1=None, reduce_cmd=constants.reduce_cmd.reset_reduce, mask=None, dtype=None, **hints
) -> None:
    """r[i] = (src[i] <op0> imm0) <op1> r[i-1] along F; dst = r; imm0, imm1 are numbers or (P, 1).

    `reduce_cmd` says what r starts from: the operator's identity, the last r before (`reduce`) or imm1 (`load_reduce`).
    A mask must leave a box: the running value of lanes that it hides is not emulated.
    """
    del hints, dtype
    api = f"{_API}.tensor_scalar_cumulative"
    to, tile = tile_of(dst, f"{api} dst"), tile_of(src, f"{api} src")
    where = joint(api, mask, [to, tile], to.shape)
    if where.empty:
        return
    if where.rest is not None:
        raise Unsupported(f"{api} mask: must leave a box")
    x = emit.view_in(tile, to.shape, where, api)
    given = [None if v is None else number_or_column(v, f"{api} {n}") for n, v in (("imm0", imm0), ("imm1", imm1))]
    first, start = (None if v is None else spread(as_float32(emit.view_in(v, to.shape, where, api)), x) for v in given)
    inner, outer = alu(op0, f"{api} op0"), alu(op1, f"{api} op1")
    assert inner is not None and outer is not None
    view, register = operand(to, None, where, api), accumulator("vector", x, where)
    current(api).emit(TensorScalarCumulative(view, x, inner, outer, first, start, reduce_cmd, register))


def _narrow(flags: View) -> View:
    """Flags of 32 bits as those of 8."""
    return emit.copied(flags, "uint8") if flags.dtype == "uint32" else flags


def range_select(
    on_true_tile,
    comp_op0,
    comp_op1,
    bound0,
    bound1,
    reduce_cmd=constants.reduce_cmd.idle,
    reduce_res=None,
    reduce_op=np.amax,
    range_start=0,
    on_false_value=constants.fp32.min,
    mask=None,
    dtype=None,
    **hints,
) -> Tile:
    """on_true_tile where the column, counted from range_start, meets both bounds, else the least float32."""
    del hints
    api = f"{_API}.range_select"
    tile = tile_of(on_true_tile, f"{api} on_true_tile")
    first, second = alu(comp_op0, f"{api} comp_op0"), alu(comp_op1, f"{api} comp_op1")
    assert first is not None and second is not None
    where = joint(api, mask, [tile], tile.shape)
    moved = 0 if len(where.shape) == 1 or where.empty else where.box[1][0]
    uses = reduce_res is not None or reduce_cmd is not ReduceCmd.idle
    fold = reduction(reduce_op, f"{api} reduce_op")
    res = column_result(reduce_res, where, f"{api} reduce_res")
    start, fill = int(range_start) + moved, float(arrays.static(on_false_value))

    def make(dst: View, x: View, low: Any, high: Any) -> Instruction:
        a, b, to = spread(as_float32(low), x), spread(as_float32(high), x), res and res.view
        state = accumulator("vector", x, where) if uses else None
        if where.rest is None or not uses:
            return RangeSelect(dst, x, first, second, a, b, reduce_cmd, to, fold, start, fill, state)

        def reduce(y: View) -> None:  # of the lanes that the mask leaves
            left, shown = allocate(y.shape, "float32", Memory.sbuf), hidden.flags_of(where, "uint8")
            current(api).emit(SelectReduce(left, shown, y, FLOAT32_MIN, to, reduce_cmd, fold, False, state))
            if res is not None:
                res.settle()

        def one(y: View) -> Instruction:
            return RangeSelect(y, x, first, second, a, b, ReduceCmd.idle, None, fold, start, fill)

        return hidden.computed_first(dst, one, reduce)

    if current(api).target.generation < Generation.gen3:
        raise KernelError(f"{api}: needs gen3 or later, got {current(api).target.name}")
    bounds = [number_or_column(b, f"{api} {n}") for b, n in ((bound0, "bound0"), (bound1, "bound1"))]
    return compute(api, tile.shape, kind_of(dtype, tile.dtype, api), make, [tile, *bounds], mask)
