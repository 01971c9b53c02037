"""Instructions with a running reduction, and those for statistics.

Each function translates its arguments and emits the instruction's entry of `nkijax.isa`, whose docstring says what it
computes, its rules, its cost and what is not emulated.  Shapes: P partitions (at most 128), F all free dimensions.
What `reduce_cmd` says is reduced outlives the instruction: in the accumulator of the engine, one float32 a partition.
"""

from __future__ import annotations

from typing import Any

from nkijax import arrays
from nkijax.dialects.nki.constants import reduce_cmd
from nkijax.dialects.nki.emit import NkiInstruction, accumulator, emit, operand
from nkijax.dialects.nki.ops import activation_function, alu, maximum
from nkijax.dialects.nki.tensor import view_of
from nkijax.isa.accumulating import Exponential, TensorScalarCumulative, TensorScalarReduce
from nkijax.isa.activate2 import Activate2
from nkijax.isa.operators import ReduceCmd
from nkijax.isa.reduce import TensorPartitionReduce
from nkijax.isa.selecting import FLOAT32_MIN, RangeSelect, SelectReduce
from nkijax.isa.statistics import BnAggr, BnStats
from nkijax.view import View


def _result(api: str, reduce_res: Any) -> View | None:
    return None if reduce_res is None else view_of(f"{api} reduce_res", reduce_res)


# ---- the vector engine's accumulator


def tensor_scalar_reduce(
    dst,
    data,
    op0,
    operand0,
    reduce_op,
    reduce_res=None,
    reverse0=False,
    reduce_cmd=reduce_cmd.reset_reduce,
    reduce_init=None,
    reduce_res_negate=False,
    name=None,
) -> NkiInstruction:
    """dst = cast(data <op0> operand0), (P, F); the accumulator, and reduce_res (P, 1), take its reduction over F."""
    api = "nki.isa.tensor_scalar_reduce"
    of = view_of(f"{api} data", data)
    entry = TensorScalarReduce(
        view_of(f"{api} dst", dst),
        of,
        alu(op0),
        operand(operand0),
        alu(reduce_op),
        _result(api, reduce_res),
        bool(reverse0),
        reduce_cmd,
        operand(reduce_init),
        bool(reduce_res_negate),
        accumulator(api, "vector", of),
        name=name,
    )
    return emit(entry)


def tensor_scalar_cumulative(
    dst, src, op0, op1, imm0, imm1=None, reduce_cmd=reduce_cmd.reset_reduce, name=None
) -> NkiInstruction:
    """r[i] = (src[i] <op0> imm0) <op1> r[i-1] along F; dst = cast(r); the last r goes into the accumulator."""
    api = "nki.isa.tensor_scalar_cumulative"
    to, of = view_of(f"{api} dst", dst), view_of(f"{api} src", src)
    first, initial = operand(imm0), operand(imm1)
    registers = accumulator(api, "vector", of)
    return emit(
        TensorScalarCumulative(to, of, alu(op0), alu(op1), first, initial, reduce_cmd, registers, name=name),
    )


def exponential(
    dst, src, max_value=0.0, reduce_res=None, reduce_cmd=reduce_cmd.idle, reduce_init=0.0, name=None
) -> NkiInstruction:
    """dst = cast(exp(src - max_value)), (P, F); the accumulator, and reduce_res (P, 1), take its sum over F."""
    api = "nki.isa.exponential"
    to, of, result = view_of(f"{api} dst", dst), view_of(f"{api} src", src), _result(api, reduce_res)
    most, initial = operand(max_value), operand(reduce_init)
    registers = accumulator(api, "vector", of)
    return emit(Exponential(to, of, most, result, reduce_cmd, initial, registers, name=name))


def select_reduce(
    dst,
    predicate,
    on_true,
    on_false,
    reduce_res=None,
    reduce_cmd=reduce_cmd.idle,
    reduce_op=maximum,
    reverse_pred=False,
    name=None,
) -> NkiInstruction:
    """dst = on_true where predicate != 0 (or == 0, reversed), else on_false; the accumulator takes its maximum."""
    api = "nki.isa.select_reduce"
    tile = view_of(f"{api} on_true", on_true)
    entry = SelectReduce(
        view_of(f"{api} dst", dst),
        view_of(f"{api} predicate", predicate),
        tile,
        operand(on_false),
        _result(api, reduce_res),
        reduce_cmd,
        alu(reduce_op),
        bool(reverse_pred),
        accumulator(api, "vector", tile),
        name=name,
    )
    return emit(entry)


def range_select(
    dst,
    on_true_tile,
    comp_op0,
    comp_op1,
    bound0,
    bound1,
    reduce_cmd=reduce_cmd.reset_reduce,
    reduce_res=None,
    reduce_op=maximum,
    range_start=0,
    on_false_value=FLOAT32_MIN,
    name=None,
) -> NkiInstruction:
    """dst = on_true_tile where its free index + range_start is within both bounds (P, 1), else the least float32.

    The accumulator, and reduce_res (P, 1), take the maximum over F.
    """
    api = "nki.isa.range_select"
    tile = view_of(f"{api} on_true_tile", on_true_tile)
    entry = RangeSelect(
        view_of(f"{api} dst", dst),
        tile,
        alu(comp_op0),
        alu(comp_op1),
        operand(bound0),
        operand(bound1),
        reduce_cmd,
        _result(api, reduce_res),
        alu(reduce_op),
        arrays.static(range_start),
        arrays.static(on_false_value),
        accumulator(api, "vector", tile),
        name=name,
    )
    return emit(entry)


# ---- the scalar engine's accumulator


def activate2(
    dst,
    op,
    data,
    imm0,
    imm1,
    op0,
    op1,
    relu_param=0.0,
    reverse0=False,
    reverse1=False,
    reduce_op=None,
    reduce_res=None,
    reduce_cmd=reduce_cmd.idle,
    name=None,
) -> NkiInstruction:
    """dst = cast(op((data <op0> imm0) <op1> imm1)), (P, F), operands swapped if reversed; nl.bypass leaves one out.

    The accumulator is reduced into as `reduce_cmd` says; `reduce_res` (P, 1) takes it.
    """
    api = "nki.isa.activate2"
    tile = view_of(f"{api} data", data)
    uses = reduce_res is not None or reduce_cmd is not ReduceCmd.idle
    entry = Activate2(
        view_of(f"{api} dst", dst),
        activation_function(op),
        tile,
        operand(imm0),
        operand(imm1),
        alu(op0),
        alu(op1),
        operand(relu_param),
        bool(reverse0),
        bool(reverse1),
        alu(reduce_op),
        _result(api, reduce_res),
        reduce_cmd,
        accumulator(api, "scalar", tile) if uses else None,
        name=name,
    )
    return emit(entry)


# ---- statistics, and over the partitions


def bn_stats(dst, data, name=None) -> NkiInstruction:
    """dst (P, 6) = count, mean and variance * count of the even elements of data (P, F), then of the odd ones."""
    return emit(BnStats(view_of("nki.isa.bn_stats dst", dst), view_of("nki.isa.bn_stats data", data), name=name))


def bn_aggr(dst, data, name=None) -> NkiInstruction:
    """dst (P, 2) = mean and variance, from the groups of three in data that `bn_stats` made."""
    return emit(BnAggr(view_of("nki.isa.bn_aggr dst", dst), view_of("nki.isa.bn_aggr data", data), name=name))


def tensor_partition_reduce(dst, op, data, name=None) -> NkiInstruction:
    """dst (1, F) = data (P, F) reduced by `op` over its partitions."""
    to, of = (view_of(f"nki.isa.tensor_partition_reduce {n}", x) for n, x in (("dst", dst), ("data", data)))
    return emit(TensorPartitionReduce(to, alu(op), of, name=name))
