"""Element-by-element instructions of `neuronxcc.nki.isa`, on the vector, scalar and GpSimd engines.

Each function makes its result and emits the instruction's entry of `nkijax.isa`, whose docstring says what it computes.
All take `mask=` (lanes outside it are not computed), `dtype=` (of the result), and keywords that have no effect here.
Shapes: P partitions (at most 128), F all free dimensions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import nkijax.dialects.neuronxcc.tensor as t
from nkijax.dialects.neuronxcc import constants, hidden, ops
from nkijax.dialects.neuronxcc.dtype import name_of, promoted
from nkijax.dialects.neuronxcc.emit import Column, compute, copied, in_rows, joint, to_sbuf
from nkijax.dialects.neuronxcc.index import extents_of
from nkijax.dialects.neuronxcc.memory import load
from nkijax.dialects.neuronxcc.pieces import Pieces
from nkijax.dialects.neuronxcc.predicate import Region
from nkijax.dialects.neuronxcc.tensor import Tensor, Tile, operand
from nkijax.errors import KernelError
from nkijax.isa.accumulating import TensorScalarReduce
from nkijax.isa.activation import Activate, ActivationReduce
from nkijax.isa.elementwise import Reciprocal, ScalarTensorTensor, TensorScalar, TensorTensor
from nkijax.isa.move import Memset
from nkijax.isa.operators import ACTIVATIONS, ALU, Activation, AluOp, ReduceCmd
from nkijax.isa.random import STATE_WORDS, Dropout
from nkijax.isa.scan import TensorTensorScan
from nkijax.machine import Engine, Generation, Memory
from nkijax.program import Instruction
from nkijax.trace import current
from nkijax.view import View

_API = "nki.isa"


# ---- operands


def kind_of(dtype: Any, default: Any, api: str) -> str:
    """The dtype of a result: the one asked for, or the default."""
    return name_of(default if dtype is None else dtype, api)


def tile_of(x: Any, what: str) -> Tensor:
    """An operand that must be a tile; `what` is "<api> <operand>"."""
    if isinstance(x, Pieces):
        return load(x)
    if not isinstance(x, Tensor):
        raise KernelError(f"{what}: must be a tile, got {x!r}")
    return x


def alu(op: Any, what: str) -> AluOp | None:
    """The ALU row of an operator; None stays None."""
    row = ops.alu(op)
    if row is not None and not isinstance(row, AluOp):
        raise KernelError(f"{what}: must be a math operator of nl or NumPy, got {row}")
    return row


def reduction(op: Any, what: str) -> AluOp:
    """The ALU row of an operator that reduces."""
    row = alu(op, what)
    if row is None or row.reduction is None:
        raise KernelError(f"{what}: must be an operator that reduces, got {ops.op_name(op)}")
    return row


def function_row(op: Any, what: str) -> Activation:
    """The row of an activation function."""
    row = ops.activation_function(op)
    if not isinstance(row, Activation):
        raise KernelError(f"{what}: must be an activation function of nl or NumPy, got {row}")
    return row


def number_or_column(x: Any, what: str) -> Column:
    """A scalar operand: a number, or a tile of one element a partition."""
    if isinstance(x, Tensor) and x.size != x.shape[0]:
        raise KernelError(f"{what}: must be a number or a (P, 1) tile, got {x.shape}")
    return Column(x)


def as_float32(x: Any) -> Any:
    """A column in float32, which the engines ask for."""
    return copied(x, "float32") if isinstance(x, View) and x.dtype != "float32" else x


def spread(x: Any, like: View) -> Any:
    """A column with the partitions of `like`: one partition is copied to them."""
    if not isinstance(x, View) or x.shape[0] == like.shape[0] or x.shape[0] != 1:
        return x
    wide = View(x.buffer, x.offset, (0, *x.strides[1:]), (like.shape[0], *x.shape[1:]), x.dtype, x.dynamic)
    return in_rows(wide, t.face(x))


def one_in_sbuf(first: View, second: View) -> tuple[View, View]:
    """Two streams, of which at most one may be in PSUM."""
    both = first.memory is Memory.psum and second.memory is Memory.psum
    return (to_sbuf(first), second) if both else (first, second)


def column_result(x: Any, where: Region, what: str) -> hidden.Column | None:
    """A `reduce_res`: the tile of one element a partition that a reduction is written to."""
    if x is None:
        return None
    view = operand(tile_of(x, what), api=what)
    if view.free != 1:
        raise KernelError(f"{what}: must be a (P, 1) tile, got {x.shape}")
    return hidden.Column(view, where)


def accumulator(engine: str, data: View, where: Region) -> View:
    """The accumulator of the scalar or the vector engine, one float32 for each of the partitions of `data`.

    What a mask leaves of them is `where`.
    """
    recorder = current(_API)
    registers = recorder.state(f"{engine} accumulator", (recorder.target.pmax, 1), "float32")
    first = where.box[0][0]
    return registers.slice(0, first, first + data.partitions)


def generator(lanes: int) -> View:
    """The state of the vector engine's random generator."""
    recorder = current(_API)
    words = STATE_WORDS[Engine.vector]
    return recorder.state("vector generator", (recorder.target.pmax, words), "uint32").slice(0, 0, lanes)


def _vector_only(engine: Any, *ops: AluOp | None) -> Engine:
    """The engine that was asked for, where the instruction runs on it; the choice is only a hint."""
    special = any(op is not None and op.engine is not None for op in ops)
    return Engine.vector if engine is Engine.vector and not special else Engine.unknown


# ---- the vector engine


def tensor_tensor(data1, data2, op, dtype=None, mask=None, engine=constants.unknown_engine, **hints) -> Tile:
    """data1 <op> data2."""
    del hints
    api = f"{_API}.tensor_tensor"
    first, second, row = tile_of(data1, f"{api} data1"), tile_of(data2, f"{api} data2"), alu(op, f"{api} op")
    assert row is not None
    which = _vector_only(engine, row)

    def make(dst: View, a: View, b: View) -> Instruction:
        exact = row.integers and all(v.dtype in ("int32", "uint32") for v in (dst, a, b))
        if row.engine is Engine.gpsimd or exact and which is Engine.unknown:
            a, b = to_sbuf(a), to_sbuf(b)
        return TensorTensor(dst, *one_in_sbuf(a, b), row, which)

    shape = extents_of(first.shape, second.shape, api=api)
    kind = kind_of(dtype, promoted(str(first.dtype), str(second.dtype)), api)
    return compute(api, shape, kind, make, [first, second], mask)


def _operand(op: AluOp | None, x: Any, what: str) -> Column:
    return Column(None) if op is None or op.arity == 1 else number_or_column(x, what)


def _scalar_operand(op: AluOp | None, x: Any, like: View) -> Any:
    if op is not None and op.bitvec:
        return x
    return spread(as_float32(x), like)


def tensor_scalar(
    data,
    op0,
    operand0,
    reverse0=False,
    op1=None,
    operand1=None,
    reverse1=False,
    dtype=None,
    mask=None,
    engine=constants.unknown_engine,
    **hints,
) -> Tile:
    """(data <op0> operand0) <op1> operand1; operands are numbers or (P, 1) tiles, swapped where reversed."""
    del hints
    api = f"{_API}.tensor_scalar"
    tile = tile_of(data, f"{api} data")
    first, second = alu(op0, f"{api} op0"), alu(op1, f"{api} op1")
    assert first is not None

    def make(dst: View, x: View, a: Any, b: Any) -> Instruction:
        a, b = _scalar_operand(first, a, x), _scalar_operand(second, b, x)
        if Engine.gpsimd in (first.engine, second.engine if second else None):
            x, a, b = to_sbuf(x), _sbuf(a), _sbuf(b)
        which = _vector_only(engine, first, second)
        return TensorScalar(dst, x, first, a, bool(reverse0), second, b, bool(reverse1), which)

    operands = [tile, _operand(first, operand0, f"{api} operand0"), _operand(second, operand1, f"{api} operand1")]
    return compute(api, tile.shape, kind_of(dtype, tile.dtype, api), make, operands, mask)


def _sbuf(x: Any) -> Any:
    return to_sbuf(x) if isinstance(x, View) else x


def scalar_tensor_tensor(
    data, op0, operand0, op1, operand1, reverse0=False, reverse1=False, dtype=None, mask=None, **hints
) -> Tile:
    """(data <op0> operand0) <op1> operand1; operand0 a number or (P, 1), operand1 (P, F)."""
    del hints
    api = f"{_API}.scalar_tensor_tensor"
    tile, other = tile_of(data, f"{api} data"), tile_of(operand1, f"{api} operand1")
    first, second = alu(op0, f"{api} op0"), alu(op1, f"{api} op1")
    assert first is not None and second is not None

    def make(dst: View, x: View, a: Any, y: View) -> Instruction:
        x, y = one_in_sbuf(x, y)
        return ScalarTensorTensor(dst, x, first, spread(a, x), second, y, bool(reverse0), bool(reverse1))

    shape = extents_of(tile.shape, other.shape, api=api)
    operands = [tile, _operand(first, operand0, f"{api} operand0"), other]
    return compute(api, shape, kind_of(dtype, tile.dtype, api), make, operands, mask)


def reciprocal(data, dtype=None, mask=None, **hints) -> Tile:
    """1 / data."""
    del hints
    api = f"{_API}.reciprocal"
    tile = tile_of(data, f"{api} data")
    return compute(api, tile.shape, kind_of(dtype, tile.dtype, api), Reciprocal, [tile], mask)


def tensor_scalar_reduce(
    data, op0, operand0, reduce_op, reduce_res, reverse0=False, dtype=None, mask=None, **hints
) -> Tile:
    """data <op0> operand0; reduce_res (P, 1) takes its reduction over F."""
    del hints
    api = f"{_API}.tensor_scalar_reduce"
    tile, row = tile_of(data, f"{api} data"), alu(op0, f"{api} op0")
    fold = reduction(reduce_op, f"{api} reduce_op")
    assert row is not None
    if reverse0:
        raise KernelError(f"{api} reverse0: must be False, NKI does not have it, got {reverse0!r}")

    where = tile_region(api, tile, mask)

    def make(dst: View, x: View, a: Any) -> Instruction:
        a, res = _scalar_operand(row, a, x), column_result(reduce_res, where, f"{api} reduce_res")
        state = accumulator("vector", x, where)
        if where.rest is None:
            return TensorScalarReduce(dst, x, row, a, fold, res and res.view, accumulator=state)

        def reduce(y: View) -> None:
            left = hidden.filled(y, where, fold.identity or 0.0)
            none = (ALU["add"], 0.0, fold, res and res.view)
            current(api).emit(TensorScalarReduce(left, left, *none, accumulator=state))
            _settled(res)

        return hidden.computed_first(dst, lambda y: TensorScalar(y, x, row, a), reduce)

    operands = [tile, _operand(row, operand0, f"{api} operand0")]
    return compute(api, tile.shape, kind_of(dtype, tile.dtype, api), make, operands, mask)


def _settled(res: hidden.Column | None) -> None:
    if res is not None:
        res.settle()


def tensor_tensor_scan(
    data0, data1, initial, op0, op1, reverse0=False, reverse1=False, dtype=None, mask=None, **hints
) -> Tile:
    """r[i] = (data0[i] <op0> r[i-1]) <op1> data1[i] along F, r[-1] = initial, a number or (P, 1)."""
    del hints
    api = f"{_API}.tensor_tensor_scan"
    first, second = tile_of(data0, f"{api} data0"), tile_of(data1, f"{api} data1")
    inner, outer = alu(op0, f"{api} op0"), alu(op1, f"{api} op1")
    assert inner is not None and outer is not None

    def make(dst: View, a: View, b: View, start: Any) -> Instruction:
        a, b = one_in_sbuf(a, b)
        return TensorTensorScan(dst, a, b, spread(start, a), inner, outer, bool(reverse0), bool(reverse1))

    shape = extents_of(first.shape, second.shape, api=api)
    kind = kind_of(dtype, promoted(str(first.dtype), str(second.dtype)), api)
    return compute(api, shape, kind, make, [first, second, number_or_column(initial, f"{api} initial")], mask)


def dropout(data, prob, mask=None, dtype=None, **hints) -> Tile:
    """0 with probability `prob`, a number or (P, 1), else data; it is not scaled."""
    del hints
    api = f"{_API}.dropout"
    tile = tile_of(data, f"{api} data")

    def make(dst: View, x: View, p: Any) -> Instruction:
        if x.dtype != dst.dtype:
            x = copied(x, dst.dtype)
        return Dropout(dst, x, spread(as_float32(p), x), generator(x.partitions))

    operands = [tile, number_or_column(prob, f"{api} prob")]
    return compute(api, tile.shape, kind_of(dtype, tile.dtype, api), make, operands, mask)


# ---- the scalar engine


def tile_region(api: str, tile: Tensor, mask: Any) -> Region:
    """What a mask leaves of an instruction on one tile."""
    return joint(api, mask, [tile], tile.shape)


copied_by = ACTIVATIONS["copy"]


def _summed(make: Callable[[View], Instruction], where: Region, res: hidden.Column | None) -> Callable[[View], None]:
    """The sum of what a mask leaves of a result, which `make(tile)` adds to the accumulator."""

    def reduce(y: View) -> None:
        current(_API).emit(make(hidden.filled(y, where, 0.0)))
        _settled(res)

    return reduce


def bias_of(bias: Any, like: View, memory: Memory = Memory.sbuf) -> Any:
    """A bias as the scalar engine takes it: on NeuronCore-v2 a number becomes a tile."""
    recorder = current(_API)
    if isinstance(bias, View):
        return spread(as_float32(bias) if bias.dtype == "tfloat32" else bias, like)
    if bias is None or recorder.target.generation > Generation.gen2:
        return bias
    if bias == 0:
        return None
    tile = t.allocate((like.partitions, 1), "float32", memory)
    recorder.emit(Memset(tile, float(bias)))
    return tile


def activation(
    op,
    data,
    bias=None,
    scale=1.0,
    reduce_op=None,
    reduce_res=None,
    reduce_cmd=constants.reduce_cmd.idle,
    mask=None,
    dtype=None,
    **hints,
) -> Tile:
    """op(data * scale + bias), scale and bias numbers or (P, 1); the accumulator adds its sum as `reduce_cmd` says."""
    del hints
    api = f"{_API}.activation"
    tile, row = tile_of(data, f"{api} data"), function_row(op, f"{api} op")
    fold = alu(reduce_op, f"{api} reduce_op")
    uses = reduce_res is not None or reduce_cmd is not ReduceCmd.idle

    where = tile_region(api, tile, mask)

    def make(dst: View, x: View, b: Any, s: Any) -> Instruction:
        res = column_result(reduce_res, where, f"{api} reduce_res")
        register = accumulator("scalar", x, where) if uses else None
        b, s, to = bias_of(b, x), spread(as_float32(s), x), res and res.view
        if where.rest is None or not uses:
            return Activate(dst, row, x, b, s, fold, to, reduce_cmd, register)
        reduce = _summed(lambda y: Activate(y, copied_by, y, None, 1.0, fold, to, reduce_cmd, register), where, res)
        return hidden.computed_first(dst, lambda y: Activate(y, row, x, b, s), reduce)

    operands = [tile, number_or_column(bias, f"{api} bias"), number_or_column(scale, f"{api} scale")]
    return compute(api, tile.shape, kind_of(dtype, tile.dtype, api), make, operands, mask)


def activation_reduce(
    op, data, reduce_op=None, reduce_res=None, bias=None, scale=1.0, mask=None, dtype=None, **hints
) -> Tile:
    """op(data * scale + bias); reduce_res (P, 1) takes its sum over F."""
    del hints
    api = f"{_API}.activation_reduce"
    tile, row = tile_of(data, f"{api} data"), function_row(op, f"{api} op")
    fold = reduction(reduce_op, f"{api} reduce_op")

    where = tile_region(api, tile, mask)

    def make(dst: View, x: View, b: Any, s: Any) -> Instruction:
        res = column_result(reduce_res, where, f"{api} reduce_res")
        b, s, to, register = bias_of(b, x), spread(as_float32(s), x), res and res.view, accumulator("scalar", x, where)
        if where.rest is None:
            return ActivationReduce(dst, row, x, fold, to, b, s, register)
        reduce = _summed(lambda y: ActivationReduce(y, copied_by, y, fold, to, None, 1.0, register), where, res)
        return hidden.computed_first(dst, lambda y: Activate(y, row, x, b, s), reduce)

    operands = [tile, number_or_column(bias, f"{api} bias"), number_or_column(scale, f"{api} scale")]
    return compute(api, tile.shape, kind_of(dtype, tile.dtype, api), make, operands, mask)
