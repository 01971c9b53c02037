"""`nl` functions on the tensor engine, and random numbers: matmul, transpose, dropout, rand."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from nkijax import arrays, dtypes
from nkijax.dialects.neuronxcc import emit
from nkijax.dialects.neuronxcc.dtype import float32, name_of
from nkijax.dialects.neuronxcc.emit import Column, compute, copied, is_number, joint, to_sbuf
from nkijax.dialects.neuronxcc.math import tile_of
from nkijax.dialects.neuronxcc.predicate import Region
from nkijax.dialects.neuronxcc.tensor import Tensor, Tile, allocate, boxed, operand, result
from nkijax.errors import KernelError
from nkijax.isa.elementwise import TensorScalar
from nkijax.isa.matmul import NcMatmul
from nkijax.isa.move import Memset
from nkijax.isa.operators import ALU
from nkijax.isa.random import STATE_WORDS, Dropout, Rng, SetRngSeed
from nkijax.isa.transpose import NcTranspose
from nkijax.machine import Engine, Memory
from nkijax.program import Instruction
from nkijax.trace import current
from nkijax.view import View

_WIDE = ("float32", "tfloat32")
_DROPPED_BITS = 8  # of 32 random ones, so that a float32 holds the rest


def _fed(view: View, other: str) -> View:
    """A matmul's operand in SBUF, as a float that goes with the other's dtype."""
    kind = view.dtype
    if not dtypes.is_float(kind):
        kind = other if dtypes.is_float(other) else "float32"
    if (kind in _WIDE) != (other in _WIDE) and dtypes.is_float(other):
        kind = "float32"
    return to_sbuf(view) if kind == view.dtype else copied(view, kind)


def product(api: str, stationary: Tensor, moving: Tensor, mask: Any = None, **flags: Any) -> Tile:
    """stationary (K, M).T @ moving (K, N …) → a new PSUM tile (M, N …), under a mask on that."""
    k = joint(api, None, [stationary], stationary.shape)
    n = joint(api, None, [moving], moving.shape)
    if k.rest is not None or n.rest is not None:
        raise KernelError(f"{api} operands: their masks must bound each dimension by itself")
    rows = (max(k.box[0][0], n.box[0][0]), min(k.box[0][1], n.box[0][1]))
    columns = stationary.shape_2d[1]
    inner = k.box[1] if stationary.ndim == 2 else (0, columns)
    shape = (columns, *moving.shape[1:])
    where = joint(api, mask, [], shape)
    box = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(where.box, (inner, *n.box[1:]), strict=True))
    where = Region(shape, box, where.rest)
    tile = result(shape, "float32", Memory.psum, where)
    if where.empty or rows[0] >= rows[1]:
        return tile
    left_box = (rows, box[0]) if stationary.ndim == 2 else (rows, *((0, m) for m in stationary.shape[1:]))
    left = operand(stationary, None, Region(stationary.shape, left_box), api)
    right = operand(moving, None, Region(moving.shape, (rows, *box[1:])), api)
    kinds = (left.dtype, right.dtype)
    left, right = _fed(left, kinds[1]), _fed(right, kinds[0])
    if left.dtype != right.dtype and (left.dtype in _WIDE) != (right.dtype in _WIDE):
        left, right = _fed(left, right.dtype), _fed(right, left.dtype)
    recorder, dst = current(api), boxed(tile.raw, box)
    recorder.zeros.add(dst.buffer)
    made = NcMatmul(dst, left, right, accumulate=True, addend=dst, **flags)
    recorder.emit(made)
    tile.made = made
    return tile


def matmul(x, y, transpose_x=False, mask=None, **hints) -> Tile:
    """x (M, K) @ y (K, N) → PSUM (M, N) in float32; with transpose_x, x is (K, M) already.  Hints have no effect."""
    del hints
    api = "nl.matmul"
    x, y = tile_of(f"{api} x", x), tile_of(f"{api} y", y)
    if not transpose_x:
        x = transpose(x)
    return product(api, x, y, mask)


def transpose(x, dtype=None, mask=None, **hints) -> Tile:
    """A new tile (F, P), in PSUM: `x` (P, F) transposed, bit for bit; the mask is on `x`."""
    del hints
    tile = transposed("nl.transpose", x, mask)
    return tile if dtype is None else emit.copy(tile, dtype)


def transposed(api: str, x: Any, mask: Any = None, engine: Engine = Engine.unknown) -> Tile:
    """The transpose, by the tensor engine into PSUM or by the vector engine into SBUF."""
    x = tile_of(f"{api} x", x)
    if x.ndim != 2:
        raise KernelError(f"{api} x: must have 2 dimensions, got {x.shape}")
    where = joint(api, mask, [x], x.shape)
    if where.rest is not None:
        raise KernelError(f"{api} mask: must bound rows and columns, each by itself")
    turned = Region(x.shape[::-1], where.box[::-1])
    tile = result(turned.shape, x.dtype.name, Memory.sbuf if engine is Engine.vector else Memory.psum, turned)
    if where.empty:
        return tile
    view = operand(x, None, where, api)
    made = NcTranspose(boxed(tile.raw, turned.box), view if engine is Engine.vector else to_sbuf(view), engine)
    current(api).emit(made)
    tile.made = made
    return tile


def _generator(api: str, lanes: int) -> View:
    recorder = current(api)
    words = STATE_WORDS[Engine.vector]
    return recorder.state("vector generator", (recorder.target.pmax, words), "uint32").slice(0, 0, lanes)


def random_seed(seed, mask=None, **hints) -> None:
    """Seed the generator of `dropout` and `rand` from an int or a [1, 1] tile."""
    del hints, mask
    api = "nl.random_seed"
    words = allocate((1, 1), "int32", Memory.sbuf)
    recorder = current(api)
    if is_number(seed):
        recorder.emit(Memset(words, emit.fitting(arrays.static(seed), "int32")))
    else:
        recorder.emit(emit.copy_instruction(words, operand(seed, api=api)))
    recorder.emit(SetRngSeed(words, _generator(api, recorder.target.pmax)))


def dropout(x, rate, dtype=None, mask=None, **hints) -> Tile:
    """0 with probability `rate`, a number or (P, 1), else x, not rescaled."""
    del hints
    api = "nl.dropout"
    x = tile_of(f"{api} x", x)

    def make(dst: View, data: View, prob: Any) -> Instruction:
        return Dropout(dst, data, float(prob) if is_number(prob) else prob, _generator(api, dst.shape[0]))

    tile = compute(api, x.shape, x.dtype.name, make, [x, Column(rate)], mask)
    return tile if dtype is None or name_of(dtype, api) == x.dtype else emit.copy(tile, dtype)


def rand(shape, dtype=float32, mask=None, **hints) -> Tile:
    """A new tile of uniform random numbers in [0, 1)."""
    del hints
    api = "nl.rand"
    sizes = tuple(int(n) for n in shape)
    recorder = current(api)

    def make(dst: View) -> Instruction:
        bits, high = (allocate(dst.shape, "uint32", Memory.sbuf) for _ in range(2))
        recorder.emit(Rng(bits, Engine.vector, _generator(api, dst.shape[0])))
        recorder.emit(TensorScalar(high, bits, ALU["right_shift"], _DROPPED_BITS))
        return TensorScalar(dst, high, ALU["multiply"], 2.0 ** (_DROPPED_BITS - 32))

    tile = compute(api, sizes, "float32", make, [], mask)
    return tile if name_of(dtype, api) == "float32" else emit.copy(tile, dtype)


def static_cast(x, dtype, **hints) -> Any:
    """A host array, or a tile, cast to a dtype."""
    del hints
    if isinstance(x, Tensor):
        return emit.copy(x, dtype, None, "nl.static_cast")
    return np.asarray(x).astype(dtypes.storage(name_of(dtype, "nl.static_cast")))


class FloatInfo:
    """`nl.finfo(dtype)`: least and greatest finite number."""

    def __init__(self, dtype):
        kind = dtypes.KINDS[name_of(dtype, "nl.finfo")]
        if kind.family != "float":
            raise KernelError(f"nl.finfo dtype: must be a float, got {kind.name}")
        bias, ieee = 2 ** (kind.exponent_bits - 1) - 1, kind.name != "float8_e4m3fn"
        top = 2.0 ** (bias if ieee else bias + 1)
        self.max = top * (2 - 2.0**-kind.mantissa_bits) if ieee else top * 1.75
        self.min, self.bits, self.dtype = -self.max, 8 * kind.bytes, kind.name


def copy(src, mask=None, dtype=None, **hints) -> Tile:
    """A new tile with the elements of `src`, a snapshot, cast to `dtype`; as an operator, the identity."""
    del hints
    return emit.copy(tile_of("nl.copy src", src), dtype, mask)


def broadcast_to(src, shape, dtype=None, **hints) -> Tile:
    """A new tile in which dimensions of size 1 are repeated."""
    del hints
    return emit.broadcast_to(src, [operator.index(n) for n in shape], dtype)
