"""What moves of `neuronxcc.nki.isa` are made of several instructions: predicated copies, sums in HBM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import nkijax.dialects.neuronxcc.tensor as t
from nkijax import arrays
from nkijax.dialects.neuronxcc import emit
from nkijax.dialects.neuronxcc.emit import copied, joint, put, to_sbuf
from nkijax.dialects.neuronxcc.masks import predicate_tile
from nkijax.dialects.neuronxcc.math import binary
from nkijax.dialects.neuronxcc.memory import load
from nkijax.dialects.neuronxcc.pieces import by_rows
from nkijax.dialects.neuronxcc.predicate import everywhere
from nkijax.dialects.neuronxcc.tensor import Tensor, operand
from nkijax.errors import KernelError
from nkijax.isa.dma_compute import DmaCompute
from nkijax.isa.elementwise import ScalarTensorTensor, TensorScalar, TensorTensor
from nkijax.isa.move import DmaCopy, OobMode
from nkijax.isa.operators import ALU, AluOp
from nkijax.isa.select import TensorCopyPredicated
from nkijax.machine import Memory
from nkijax.trace import current
from nkijax.view import View

_PREDICATES = ("uint8", "uint16", "uint32")


def truth(flags: View) -> View:
    """A tile of flags in a dtype that predicated copies take."""
    if flags.dtype in _PREDICATES:
        return flags
    if flags.dtype in ("int8", "int16", "int32"):
        return flags.reinterpret("u" + flags.dtype)
    out = t.allocate(flags.shape, "uint8", Memory.sbuf)
    current("predicate").emit(TensorScalar(out, flags, ALU["not_equal"], 0))
    return out


def predicated(api: str, dst: Tensor, src: Any, predicate: Tensor, reverse: bool, mask: Any) -> None:
    """dst = src where predicate is not zero (zero, if reversed), and a mask holds."""
    tiles = [x for x in (dst, predicate, src) if isinstance(x, Tensor)]
    where = joint(api, mask, tiles, dst.shape)
    if where.empty:
        return
    recorder = current(api)
    view, flags = operand(dst, None, where, api), truth(emit.view_in(predicate, dst.shape, where, api))
    if where.rest is not None:
        chosen = predicate_tile(where)
        both = t.allocate(chosen.shape, "uint8", Memory.sbuf)
        if reverse:
            flags = _inverted(flags)
        recorder.emit(TensorTensor(both, chosen, flags, ALU["logical_and"]))
        flags, reverse = both, False
    if isinstance(src, Tensor):
        value = emit.view_in(src, dst.shape, where, api)
        value = value if value.dtype == view.dtype else copied(value, view.dtype)
        value = to_sbuf(value) if flags.memory is Memory.psum else value
    else:
        value = emit.fitting(arrays.static(src), view.dtype)
    recorder.emit(TensorCopyPredicated(view, value, flags, reverse))


def _inverted(flags: View) -> View:
    out = t.allocate(flags.shape, "uint8", Memory.sbuf)
    current("predicate").emit(TensorScalar(out, flags, ALU["equal"], 0))
    return out


def accumulate(api: str, dst: Tensor, src: Tensor, op: AluOp | None, mask: Any, mode: OobMode) -> None:
    """dst = dst <op> src; rows with run-time indices one after the other, as some may be named twice."""
    rows = by_rows(dst)
    if rows is not None:
        for box, part, there in rows.masked(mask):
            accumulate(api, part, rows.cut(src, box), op, there, mode)
        return
    where = joint(api, mask, [dst] if dst.shape != src.shape else [dst, src], dst.shape)
    if where.empty or op is None:
        return
    if where.rest is None and op == ALU["add"]:
        view = operand(dst, None, where, api)
        value = to_sbuf(emit.view_in(src, dst.shape, where, api))
        if view.dynamic is None and view.memory is not Memory.psum:
            current(api).emit(DmaCompute(view, (view, value), op, oob_mode=mode))
            return
    old = emit.copy(dst, None, mask, api) if dst.on_chip else load(dst, mask=mask, mode=mode)
    new = src if src.on_chip else load(src, mask=mask)
    emit.transfer(dst, binary(op.name, old, new, dtype=str(dst.dtype)), mask, mode)


def weighted_sum(api: str, dst: Tensor, srcs: Sequence[Tensor], weights: Sequence[float]) -> None:
    """dst = the sum of weights[i] * srcs[i], in blocks of rows that fit the partitions: loads, sums, a store."""
    if len(weights) != len(srcs):
        raise KernelError(f"{api} scales: must be one number for each of {len(srcs)} sources, got {len(weights)}")
    recorder = current(api)
    to = _rows(operand(dst, api=api))
    views = [_rows(operand(s, api=api)) for s in srcs]
    if any(v.shape != to.shape for v in views):
        raise KernelError(f"{api} srcs: must have the shape {to.shape} of dst, got {[v.shape for v in views]}")
    pmax = recorder.target.pmax
    for first in range(0, to.shape[0], pmax):
        last = min(first + pmax, to.shape[0])
        _block_sum(to.slice(0, first, last), [v.slice(0, first, last) for v in views], weights)


def _rows(view: View) -> View:
    """A view of rows: the leading dimensions of an HBM region merged where they can be."""
    if view.memory.on_chip or view.ndim == 1:
        return view if view.ndim > 1 else view.expand_dim(1)
    try:
        return view.flatten_dims(0, view.ndim - 2) if view.ndim > 1 else view
    except KernelError:
        return view


def _block_sum(dst: View, srcs: Sequence[View], weights: Sequence[float]) -> None:
    recorder = current("fma")
    tiles = [_loaded(s) for s in srcs]
    total = t.allocate(tiles[0].shape, "float32", Memory.sbuf)
    recorder.emit(TensorScalar(total, tiles[0], ALU["multiply"], float(weights[0])))
    for tile, weight in zip(tiles[1:], weights[1:], strict=True):
        out = t.allocate(tile.shape, "float32", Memory.sbuf)
        recorder.emit(ScalarTensorTensor(out, tile, ALU["multiply"], float(weight), ALU["add"], total))
        total = out
    put(dst, total if dst.memory.on_chip else _cast(total, dst.dtype), everywhere(dst.shape))


def _loaded(src: View) -> View:
    if src.memory.on_chip:
        return src
    tile = t.allocate(src.shape, src.dtype, Memory.sbuf)
    current("fma").emit(DmaCopy(tile, src))
    return tile


def _cast(view: View, dtype: str) -> View:
    return view if view.dtype == dtype else copied(view, dtype)
