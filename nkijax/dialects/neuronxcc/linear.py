"""`nl` functions on the tensor engine, and random numbers: matmul, transpose, dropout, rand."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from nkijax import arrays, dtypes
from nkijax.dialects.neuronxcc import emit
from nkijax.dialects.neuronxcc.dtype import float32, name_of
from nkijax.dialects.neuronxcc.emit import Column, compute, is_number
from nkijax.dialects.neuronxcc.isa_data import nc_transpose
from nkijax.dialects.neuronxcc.isa_matmul import nc_matmul
from nkijax.dialects.neuronxcc.math import tile_of
from nkijax.dialects.neuronxcc.tensor import Tensor, Tile, allocate, operand
from nkijax.errors import KernelError
from nkijax.isa.elementwise import TensorScalar
from nkijax.isa.move import Memset
from nkijax.isa.operators import ALU
from nkijax.isa.random import STATE_WORDS, Dropout, Rng, SetRngSeed
from nkijax.machine import Engine, Memory
from nkijax.program import Instruction
from nkijax.trace import current
from nkijax.view import View

_DROPPED_BITS = 8  # of 32 random ones, so that a float32 holds the rest


def matmul(x, y, transpose_x=False, mask=None, **hints) -> Tile:
    """x (M, K) @ y (K, N) → PSUM (M, N) in float32; with transpose_x, x is (K, M) already.  Hints have no effect."""
    del hints
    api = "nl.matmul"
    x, y = tile_of(f"{api} x", x), tile_of(f"{api} y", y)
    return nc_matmul(x if transpose_x else nc_transpose(x), y, mask=mask)


def transpose(x, dtype=None, mask=None, **hints) -> Tile:
    """A new tile (F, P): `x` (P, F) transposed, bit for bit; the mask is on `x`.  Hints have no effect."""
    del hints
    return nc_transpose(x, mask=mask, dtype=dtype)


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
