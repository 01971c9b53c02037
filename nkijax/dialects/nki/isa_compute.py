"""Instructions that compute on the vector, scalar and GpSimd engines.

Each function translates its arguments and emits the instruction's entry of `nkijax.isa`, whose docstring says what it
computes, its rules, its cost and what is not emulated.  Shapes: P partitions (at most 128), F all free dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence

from nkijax import arrays
from nkijax.dialects.nki.constants import engine, reduce_cmd
from nkijax.dialects.nki.emit import NkiInstruction, accumulator, emit, operand
from nkijax.dialects.nki.ops import activation_function, alu, equal
from nkijax.dialects.nki.tensor import view_of
from nkijax.errors import KernelError
from nkijax.isa.activation import Activate, ActivationReduce
from nkijax.isa.elementwise import Reciprocal, ScalarTensorTensor, TensorScalar, TensorTensor
from nkijax.isa.index import Iota
from nkijax.isa.operators import ReduceCmd
from nkijax.isa.reduce import TensorReduce
from nkijax.isa.scan import TensorTensorScan
from nkijax.isa.select import AffineSelect

# ---- element by element


def tensor_tensor(dst, data1, data2, op, engine=engine.unknown, name=None) -> NkiInstruction:
    """dst = cast(data1 <op> data2), (P, F)."""
    to = view_of("nki.isa.tensor_tensor dst", dst)
    first, second = view_of("nki.isa.tensor_tensor data1", data1), view_of("nki.isa.tensor_tensor data2", data2)
    return emit(TensorTensor(to, first, second, alu(op), engine, name=name))


def tensor_scalar(
    dst,
    data,
    op0,
    operand0,
    reverse0=False,
    op1=None,
    operand1=None,
    reverse1=False,
    engine=engine.unknown,
    name=None,
) -> NkiInstruction:
    """dst = cast((data <op0> operand0) <op1> operand1); operands are numbers or (P, 1) tiles, swapped if reversed."""
    to, of = view_of("nki.isa.tensor_scalar dst", dst), view_of("nki.isa.tensor_scalar data", data)
    first, second = operand(operand0), operand(operand1)
    entry = TensorScalar(to, of, alu(op0), first, bool(reverse0), alu(op1), second, bool(reverse1), engine, name=name)
    return emit(entry)


def scalar_tensor_tensor(
    dst, data, op0, operand0, op1, operand1, reverse0=False, reverse1=False, name=None, dtype=None
) -> NkiInstruction:
    """dst = cast((data <op0> operand0) <op1> operand1); operand0 a number or (P, 1), operand1 (P, F).

    `dtype` is accepted, as nki-library passes it, and has no effect: dst's own counts.
    """
    to, of = view_of("nki.isa.scalar_tensor_tensor dst", dst), view_of("nki.isa.scalar_tensor_tensor data", data)
    tile = view_of("nki.isa.scalar_tensor_tensor operand1", operand1)
    entry = ScalarTensorTensor(
        to, of, alu(op0), operand(operand0), alu(op1), tile, bool(reverse0), bool(reverse1), name=name
    )
    return emit(entry)


def reciprocal(dst, data, name=None) -> NkiInstruction:
    """dst = cast(1 / data), (P, F)."""
    to, of = view_of("nki.isa.reciprocal dst", dst), view_of("nki.isa.reciprocal data", data)
    return emit(Reciprocal(to, of, name=name))


# ---- the scalar engine


def activation(
    dst,
    op,
    data,
    bias=None,
    scale=1.0,
    reduce_op=None,
    reduce_res=None,
    reduce_cmd=reduce_cmd.idle,
    name=None,
) -> NkiInstruction:
    """dst = cast(op(data * scale + bias)), (P, F); the accumulator adds its sum over F as `reduce_cmd` says.

    `scale` and `bias` are numbers or (P, 1) tiles; `reduce_res` (P, 1) takes the accumulator.
    """
    uses = reduce_res is not None or reduce_cmd is not ReduceCmd.idle
    tile = view_of("nki.isa.activation data", data)
    entry = Activate(
        view_of("nki.isa.activation dst", dst),
        activation_function(op),
        tile,
        operand(bias),
        operand(scale),
        alu(reduce_op),
        None if reduce_res is None else view_of("nki.isa.activation reduce_res", reduce_res),
        reduce_cmd,
        accumulator("nki.isa.activation", "scalar", tile) if uses else None,
        name=name,
    )
    return emit(entry)


def activation_reduce(dst, op, data, reduce_op, reduce_res, bias=None, scale=1.0, name=None) -> NkiInstruction:
    """`activation` with reduce_cmd.reset_reduce: reduce_res (P, 1) = sum over F of op(data * scale + bias)."""
    tile = view_of("nki.isa.activation_reduce data", data)
    entry = ActivationReduce(
        view_of("nki.isa.activation_reduce dst", dst),
        activation_function(op),
        tile,
        alu(reduce_op),
        None if reduce_res is None else view_of("nki.isa.activation_reduce reduce_res", reduce_res),
        operand(bias),
        operand(scale),
        accumulator("nki.isa.activation_reduce", "scalar", tile),
        name=name,
    )
    return emit(entry)


# ---- reductions and recurrences


def tensor_reduce(dst, op, data, axis, negate=False, keepdims=False, name=None) -> NkiInstruction:
    """dst = data reduced by `op` over `axis`, the last dimension or the last few."""
    to, of = view_of("nki.isa.tensor_reduce dst", dst), view_of("nki.isa.tensor_reduce data", data)
    axes = tuple(axis) if isinstance(axis, Sequence) else (axis,)
    if not all(type(a) is int for a in map(arrays.static, axes)):
        raise KernelError(f"nki.isa.tensor_reduce axis: must be an int or a sequence of ints, got {axis!r}")
    return emit(TensorReduce(to, alu(op), of, axes, bool(negate), bool(keepdims), name=name))


def tensor_tensor_scan(
    dst, data0, data1, initial, op0, op1, reverse0=False, reverse1=False, name=None
) -> NkiInstruction:
    """r[i] = (data0[i] <op0> r[i-1]) <op1> data1[i] along F, r[-1] = initial, a number or (P, 1); dst = cast(r)."""
    to = view_of("nki.isa.tensor_tensor_scan dst", dst)
    first, second = (view_of(f"nki.isa.tensor_tensor_scan {n}", x) for n, x in (("data0", data0), ("data1", data1)))
    entry = TensorTensorScan(
        to, first, second, operand(initial), alu(op0), alu(op1), bool(reverse0), bool(reverse1), name=name
    )
    return emit(entry)


# ---- affine patterns


def iota(dst, pattern, offset=0, channel_multiplier=0, name=None) -> NkiInstruction:
    """dst[p, i...] = cast(offset + p * channel_multiplier + sum of step * i), pattern up to four [step, count]."""
    to = view_of("nki.isa.iota dst", dst)
    return emit(Iota(to, pattern, operand(offset), arrays.static(channel_multiplier), name=name))


def affine_select(
    dst, pattern, channel_multiplier, on_true_tile, on_false_value, cmp_op=equal, offset=0, name=None
) -> NkiInstruction:
    """dst = on_true_tile where (the value of `iota`) <cmp_op> 0, else on_false_value, (P, F)."""
    to, of = view_of("nki.isa.affine_select dst", dst), view_of("nki.isa.affine_select on_true_tile", on_true_tile)
    multiplier, fill, start = arrays.static(channel_multiplier), operand(on_false_value), operand(offset)
    return emit(AffineSelect(to, pattern, multiplier, of, fill, alu(cmp_op), start, name=name))
