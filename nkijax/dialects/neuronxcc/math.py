"""`nl` functions on tiles, element by element; each is also an operator that instructions take, by its name.

Shapes align from the left; results are float32 arithmetic cast to `dtype`, which is by default the operands' promoted
dtype.  32-bit integers stay exact.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nkijax import arrays, dtypes
from nkijax.dialects.neuronxcc import emit
from nkijax.dialects.neuronxcc.dtype import name_of, promoted, scalar_dtype
from nkijax.dialects.neuronxcc.emit import Column, compute, is_number, to_sbuf
from nkijax.dialects.neuronxcc.index import Index, Irregular, as_index, extents_of
from nkijax.dialects.neuronxcc.ops import activation_function, alu, op_name
from nkijax.dialects.neuronxcc.pieces import Pieces
from nkijax.dialects.neuronxcc.tensor import OPERATORS, Tensor, Tile, allocate, face, result
from nkijax.errors import KernelError
from nkijax.isa.activation import Activate
from nkijax.isa.elementwise import Reciprocal, TensorScalar, TensorTensor
from nkijax.isa.index import Iota
from nkijax.isa.mathematics import FUNCTIONS as LOWERED
from nkijax.isa.mathematics import Elementwise
from nkijax.isa.move import DmaCopy, Memset
from nkijax.isa.operators import ALU, AluOp
from nkijax.isa.register import RegisterStore
from nkijax.isa.select import TensorCopyPredicated
from nkijax.machine import Engine, Memory
from nkijax.program import Instruction
from nkijax.trace import current
from nkijax.view import View

_ON_INDICES: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
}
_WORDS = ("int32", "uint32")
_GRIDS = (Index, Irregular)


def tile_of(what: str, x: Any) -> Tile:
    if isinstance(x, Pieces) and x.on_chip:
        return emit.copy(x)
    if not isinstance(x, Tile):
        raise KernelError(f"{what}: must be a tile in SBUF or PSUM, got {x!r}")
    return x


def grid_tile(index: Index | Irregular, shape: Sequence[int]) -> Tile:
    """The values of an index grid, as a tile of int32."""
    api = "nl index"
    if isinstance(index, Irregular):
        values = index.values.reshape((*index.extents, *(1 for _ in range(len(shape) - index.ndim))))
        data = np.ascontiguousarray(np.broadcast_to(values, shape), np.int32)
        tile = result(shape, "int32")
        constant = current(api).constant(data.reshape(tile.shape), "int32", Memory.private_hbm)
        current(api).emit(DmaCopy(tile.raw, constant))
        return tile
    moving = index.moving
    own = Index((*index.coefficients, *(0 for _ in range(len(shape) - index.ndim))), tuple(shape), index.constant)
    found = emit.affine_pattern(own, shape if len(shape) > 1 else (*shape, 1))
    if found is None:
        tile = grid_tile(Irregular.of(own), shape)
    else:
        tile = result(shape, "int32")
        current(api).emit(Iota(tile.raw, found[1], own.constant, found[0]))
    if moving is None:
        return tile
    value = face(moving[0]) if moving[0].memory.on_chip else stored(moving[0])
    return binary("add", tile, binary("multiply", value, moving[1]))


def stored(register: View) -> Tile:
    """A register's value as a tile."""
    tile = result((1, 1), "int32")
    current("nl index").emit(RegisterStore(tile.raw, register))
    return tile


# ---- one operand


def unary(name: str, x: Any, dtype: Any = None, mask: Any = None, api: str = "") -> Tile:
    """A function of one tile."""
    api = api or f"nl.{name}"
    x = tile_of(f"{api} x", x)
    kind = x.dtype.name if dtype is None else name_of(dtype, api)
    if name == "reciprocal":
        return compute(api, x.shape, kind, Reciprocal, [x], mask)
    if name == "invert":
        return compute(api, x.shape, kind, lambda dst, data: TensorScalar(dst, data, alu(name), None), [x], mask)
    if name == "negative":
        return binary("multiply", x, -1, mask, kind, api)
    if name == "logical_not":
        return binary("equal", x, 0, mask, dtype, api)
    if name in LOWERED:
        return compute(api, x.shape, kind, lambda dst, data: Elementwise(dst, data, None, LOWERED[name]), [x], mask)
    row = activation_function(name)
    return compute(api, x.shape, kind, lambda dst, data: Activate(dst, row, data), [x], mask)


def _unary(name: str) -> Callable[..., Tile]:
    def op(x, dtype=None, mask=None, **hints) -> Tile:
        del hints
        return unary(name, x, dtype, mask)

    return _named(op, name, f"{name} of each element; hints have no effect.")


def _named(op: Callable[..., Any], name: str, doc: str) -> Callable[..., Any]:
    op.__name__ = op.__qualname__ = name
    op.__doc__ = doc
    return op


# ---- two operands


def binary(name: str, x: Any, y: Any, mask: Any = None, dtype: Any = None, api: str = "") -> Tile:
    """x <op> y of two tiles, or a tile and a number."""
    api, row = api or f"nl.{name}", alu(name)
    x, y = (emit.copy(v) if isinstance(v, Pieces) and v.on_chip else v for v in (x, y))
    if isinstance(x, _GRIDS) or isinstance(y, _GRIDS):
        first, second = as_index(x), as_index(y)
        if first is not None and second is not None and name in _ON_INDICES and mask is None and dtype is None:
            return _ON_INDICES[name](first, second)
        shape = extents_of(x.shape, y.shape, api=api)
        x, y = (grid_tile(v, shape) if isinstance(v, _GRIDS) else v for v in (x, y))
    if is_number(x) and is_number(y) or not (isinstance(x, Tensor) or isinstance(y, Tensor)):
        raise KernelError(f"{api}: one operand must be a tile, got {x!r} and {y!r}")
    kind = _result_dtype(name, x, y) if dtype is None else name_of(dtype, api)
    if name in LOWERED and not (name == "divide" and is_number(x) and x == 1):
        return _function(api, name, x, y, kind, mask)
    if is_number(x):
        return _with_number(api, row, tile_of(f"{api} y", y), arrays.static(x), kind, mask, reverse=True)
    x = tile_of(f"{api} x", x)
    if is_number(y):
        return _with_number(api, row, x, arrays.static(y), kind, mask, reverse=False)
    return _two_tiles(api, row, x, tile_of(f"{api} y", y), kind, mask)


def _result_dtype(name: str, x: Any, y: Any) -> str:
    if name in ALU and ALU[name].kind in ("compare", "logical"):
        return "bool"
    first, second = (scalar_dtype(arrays.static(v)) if is_number(v) else v.dtype.name for v in (x, y))
    kind = promoted(first, second)
    return "float32" if name == "divide" and not dtypes.is_float(kind) else kind


def _function(api: str, name: str, x: Any, y: Any, kind: str, mask: Any) -> Tile:
    """A function that no single instruction has."""
    tiles = [tile_of(f"{api} {n}", v) for n, v in (("x", x), ("y", y)) if not is_number(v)]
    shape = extents_of(*(v.shape for v in tiles), api=api)

    def make(dst: View, a: Any, b: Any) -> Instruction:
        if isinstance(a, View) and isinstance(b, View) and a.memory is b.memory is Memory.psum:
            b = to_sbuf(b)
        return Elementwise(dst, a, b, LOWERED[name])

    return compute(api, shape, kind, make, [x, y], mask)


def _with_number(api: str, row: AluOp, x: Tile, number: Any, kind: str, mask: Any, reverse: bool) -> Tile:
    if row.name == "divide" and reverse and number == 1:
        return compute(api, x.shape, kind, Reciprocal, [x], mask)
    if isinstance(number, bool):
        number = int(number)
    exact = row.integers and x.dtype in _WORDS and kind in (*_WORDS, "bool") and isinstance(number, int)

    def make(dst: View, data: View) -> Instruction:
        data = to_sbuf(data) if row.engine is Engine.gpsimd or exact else data
        if not exact:
            return TensorScalar(dst, data, row, number, reverse)
        constant = allocate(data.shape, data.dtype, Memory.sbuf)
        current(api).emit(Memset(constant, number))
        return TensorTensor(dst, constant, data, row) if reverse else TensorTensor(dst, data, constant, row)

    return compute(api, x.shape, kind, make, [x], mask)


def _two_tiles(api: str, row: AluOp, x: Tile, y: Tile, kind: str, mask: Any) -> Tile:
    shape = extents_of(x.shape, y.shape, api=api)

    def column(a: Tile, other: Tile) -> bool:
        per_partition = a.shape[0] == shape[0] and a.shape_2d[1] == 1 and other.shape == shape and other.shape_2d[1] > 1
        return per_partition and a.dtype == "float32" and not row.bitvec and row.engine is None

    if column(y, x):
        return compute(api, shape, kind, lambda dst, a, b: TensorScalar(dst, a, row, b), [x, Column(y)], mask)
    if column(x, y):
        return compute(api, shape, kind, lambda dst, a, b: TensorScalar(dst, a, row, b, True), [y, Column(x)], mask)

    def make(dst: View, a: View, b: View) -> Instruction:
        if row.engine is Engine.gpsimd:
            a, b = to_sbuf(a), to_sbuf(b)
        elif a.memory is b.memory is Memory.psum:
            b = to_sbuf(b)
        return TensorTensor(dst, a, b, row)

    return compute(api, shape, kind, make, [x, y], mask)


def _binary(name: str) -> Callable[..., Any]:
    def op(x, y, dtype=None, mask=None, **hints) -> Tile:
        del hints
        return binary(name, x, y, mask, dtype)

    return _named(op, name, f"{name} of two tiles, or a tile and a number; hints have no effect.")


# ---- choosing


def where(condition, x, y, dtype=None, mask=None, **hints) -> Tile:
    """x where `condition` is not 0, else y; both tiles or numbers.  Hints have no effect."""
    del hints
    api = "nl.where"
    condition = tile_of(f"{api} condition", condition)
    tiles = [v for v in (x, y) if isinstance(v, Tensor)]
    if dtype is not None:
        kind = name_of(dtype, api)
    else:
        first, second = (scalar_dtype(arrays.static(v)) if is_number(v) else v.dtype.name for v in (x, y))
        kind = (
            promoted(first, second)
            if len(tiles) != 1 or not dtypes.is_float(tiles[0].dtype.name)
            else tiles[0].dtype.name
        )
    shape = extents_of(condition.shape, *(v.shape for v in tiles), api=api)

    def make(dst: View, chosen: View, a: Any, b: Any) -> Instruction:
        recorder = current(api)
        fill = emit.copy_instruction(dst, b) if isinstance(b, View) else Memset(dst, emit.fitting(b, dst.dtype))
        recorder.emit(fill)
        flags = allocate(chosen.shape, "uint8", Memory.sbuf)
        recorder.emit(TensorScalar(flags, chosen, alu("not_equal"), 0))
        if isinstance(a, View) and a.dtype != dst.dtype:
            a = emit.copied(a, dst.dtype)
        return TensorCopyPredicated(dst, a if isinstance(a, View) else emit.fitting(a, dst.dtype), flags)

    tile = compute(api, shape, kind, make, [condition, x, y], mask)
    tile.made = None  # it takes more than its last instruction
    return tile


OPERATORS.update(binary=binary, alu_name=op_name)

_UNARY = (
    "abs arctan ceil cos erf erf_dx exp floor gelu gelu_apprx_sigmoid gelu_apprx_sigmoid_dx gelu_apprx_tanh gelu_dx "
    "invert log logical_not mish negative reciprocal relu rsqrt sigmoid sign silu silu_dx sin softplus sqrt square tan "
    "tanh trunc"
).split()
_BINARY = (
    "add bitwise_and bitwise_or bitwise_xor divide equal fmod greater greater_equal left_shift less less_equal "
    "logical_and logical_or logical_xor maximum minimum mod multiply not_equal power right_shift subtract"
).split()

FUNCTIONS: dict[str, Callable[..., Any]] = {n: _unary(n) for n in _UNARY} | {n: _binary(n) for n in _BINARY}
"""Every elementwise function of `nl` by name."""
