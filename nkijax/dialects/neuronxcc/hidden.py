"""Instructions that look at many lanes, where a mask is no box: hidden lanes get a value that changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import nkijax.dialects.neuronxcc.tensor as t
from nkijax.dialects.neuronxcc import emit
from nkijax.dialects.neuronxcc.masks import predicate_tile, select
from nkijax.dialects.neuronxcc.predicate import Region
from nkijax.dialects.neuronxcc.regions import projected
from nkijax.dialects.neuronxcc.tensor import boxed
from nkijax.isa.elementwise import Reciprocal, TensorScalar, TensorTensor
from nkijax.isa.move import Memset, TensorCopy
from nkijax.isa.operators import ALU
from nkijax.isa.reduce import TensorReduce
from nkijax.machine import Memory
from nkijax.program import Instruction
from nkijax.trace import current
from nkijax.view import View


def filled(view: View, where: Region, value: float, dtype: str = "") -> View:
    """A view that is cut to a region's box, or where the region is no box, a copy with `value` in its hidden lanes."""
    if where.rest is None:
        return view
    out = t.allocate(view.shape, dtype or view.dtype, Memory.sbuf)
    current("mask").emit(Memset(out, emit.fitting(value, out.dtype)))
    select(out, view, where)
    return out


class Column:
    """Where the reduction of each row goes: rows of which a mask leaves nothing keep what they hold.

    `view` is for the instruction to write; `settle` is called after it.
    """

    def __init__(self, view: View, where: Region):
        axes = (0, *(-1 for _ in range(view.ndim - 1)))
        into = projected(where, axes, view.shape) if view.shape[0] == where.shape[0] else Region(view.shape, _all(view))
        self._into, self._there = into, boxed(view, into.box)
        self.view = self._there if into.rest is None else t.allocate(self._there.shape, view.dtype, Memory.sbuf)

    def settle(self) -> None:
        if self._into.rest is not None:
            emit.put(self._there, self.view, self._into)


def _all(view: View) -> tuple[tuple[int, int], ...]:
    return tuple((0, n) for n in view.shape)


def computed_first(dst: View, make: Callable[[View], Instruction], reduce: Callable[[View], None]) -> Instruction:
    """An instruction that computes and reduces, in two: `make(result)` is emitted, then `reduce(result)`.

    Returns the copy of the float32 result to `dst`, for the caller to emit.
    """
    result = t.allocate(dst.shape, "float32", Memory.sbuf)
    current("mask").emit(make(result))
    reduce(result)
    return TensorCopy(dst, result)


def flags_of(where: Region, dtype: str) -> View:
    """1 where a region's mask holds, 0 elsewhere in its box."""
    flags = predicate_tile(where)
    return flags if flags.dtype == dtype else emit.copied(flags, dtype)


def statistics(dst: View, data: View, where: Region) -> None:
    """Count, mean and variance * count of the lanes that a mask leaves: of even columns, then of odd ones."""
    flat: Any = lambda v: v.flatten_dims(1, v.ndim - 1)  # noqa: E731
    x, ones = flat(filled(data, where, 0.0, "float32")), flat(flags_of(where, "float32"))
    out = t.allocate((x.shape[0], 6), "float32", Memory.sbuf)
    for parity in range(2):
        group = out.slice(1, 3 * parity, 3 * parity + 3)
        if x.shape[1] > parity:
            _moments(group, *(v.slice(1, parity, v.shape[1], 2) for v in (x, ones)))
        else:
            current("mask").emit(Memset(group, 0.0))
    current("mask").emit(TensorCopy(dst, out))


def _moments(out: View, x: View, ones: View) -> None:
    emit_one = current("mask").emit
    count, mean, spread = (out.slice(1, k, k + 1) for k in range(3))
    rows = [t.allocate((x.shape[0], 1), "float32", Memory.sbuf) for _ in range(2)]
    off, squares = (t.allocate(x.shape, "float32", Memory.sbuf) for _ in range(2))
    emit_one(TensorReduce(count, ALU["add"], ones, (1,)))
    emit_one(TensorReduce(rows[0], ALU["add"], x, (1,)))
    emit_one(TensorScalar(rows[1], count, ALU["maximum"], 1.0))
    emit_one(Reciprocal(rows[1], rows[1]))
    emit_one(TensorTensor(mean, rows[0], rows[1], ALU["multiply"]))
    emit_one(TensorScalar(off, x, ALU["subtract"], mean))
    emit_one(TensorTensor(off, off, ones, ALU["multiply"]))
    emit_one(TensorTensor(squares, off, off, ALU["multiply"]))
    emit_one(TensorReduce(spread, ALU["add"], squares, (1,)))
