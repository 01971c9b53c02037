"""Instructions of `neuronxcc.nki.isa` that move, fill, index or transpose.

Each function makes its result and emits the instruction's entry of `nkijax.isa`, whose docstring says what it computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import nkijax.dialects.neuronxcc.tensor as t
from nkijax import arrays
from nkijax.dialects.neuronxcc import constants, emit, isa_dma
from nkijax.dialects.neuronxcc.bounds import OutOfBounds
from nkijax.dialects.neuronxcc.dtype import name_of
from nkijax.dialects.neuronxcc.emit import compute, joint, put, to_sbuf
from nkijax.dialects.neuronxcc.fit import merged
from nkijax.dialects.neuronxcc.index import Index, Irregular, predicate_of
from nkijax.dialects.neuronxcc.isa_compute import alu, kind_of, tile_of
from nkijax.dialects.neuronxcc.math import grid_tile
from nkijax.dialects.neuronxcc.memory import load
from nkijax.dialects.neuronxcc.pieces import Pieces
from nkijax.dialects.neuronxcc.predicate import Predicate, Region, aligned, as_predicate, everywhere, region
from nkijax.dialects.neuronxcc.regions import permuted
from nkijax.dialects.neuronxcc.tensor import Tensor, Tile, boxed, operand, result
from nkijax.errors import KernelError
from nkijax.isa.index import Iota
from nkijax.isa.move import DmaCopy, Memset, OobMode, TensorCopy
from nkijax.isa.operators import ALU
from nkijax.isa.select import AffineSelect
from nkijax.isa.transpose import DmaTranspose, NcTranspose
from nkijax.machine import Engine, Memory
from nkijax.trace import current
from nkijax.view import View

_API = "nki.isa"
_VECTOR_BLOCK = 32  # partitions and columns that the vector engine transposes
_AXES = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}


# ---- copies


def tensor_copy(src, mask=None, dtype=None, engine=constants.unknown_engine, **hints) -> Tile:
    """A new tile with the elements of `src`, cast."""
    del hints
    api = f"{_API}.tensor_copy"
    tile = tile_of(src, f"{api} src")
    which = engine if engine is Engine.vector else Engine.unknown

    def make(dst: View, of: View) -> Any:
        return TensorCopy(dst, of, which) if of.memory.on_chip else DmaCopy(dst, of)

    return compute(api, tile.shape, kind_of(dtype, tile.dtype, api), make, [tile], mask)


def tensor_copy_dynamic_src(src, mask=None, dtype=None, engine=constants.unknown_engine, **hints) -> Tile:
    """`tensor_copy` of a tile that was indexed with run-time values."""
    return tensor_copy(src, mask=mask, dtype=dtype, engine=engine, **hints)


def tensor_copy_dynamic_dst(dst, src, mask=None, dtype=None, engine=constants.unknown_engine, **hints) -> None:
    """dst = src, where dst was indexed with run-time values."""
    del dtype, engine, hints
    api = f"{_API}.tensor_copy_dynamic_dst"
    emit.transfer(tile_of(dst, f"{api} dst"), tile_of(src, f"{api} src"), mask, OobMode.error)


def tensor_copy_predicated(src, dst, predicate, reverse_pred=False, mask=None, dtype=None, **hints) -> None:
    """dst = src, a tile or a number, where predicate != 0 (or == 0, reversed)."""
    del dtype, hints
    api = f"{_API}.tensor_copy_predicated"
    to, chosen = tile_of(dst, f"{api} dst"), tile_of(predicate, f"{api} predicate")
    isa_dma.predicated(api, to, src, chosen, bool(reverse_pred), mask)


def dma_copy(
    dst,
    src,
    mask=None,
    dst_rmw_op=None,
    oob_mode=constants.oob_mode.error,
    dge_mode=constants.dge_mode.unknown,
    **hints,
) -> None:
    """dst = src between any memories, or dst = dst <dst_rmw_op> src; `mask` is on the index space of dst."""
    del hints, dge_mode
    api = f"{_API}.dma_copy"
    if isinstance(dst, Pieces) or isinstance(src, Pieces):
        return _in_pieces(dst, src, mask, dst_rmw_op, oob_mode)
    to, of = tile_of(dst, f"{api} dst"), tile_of(src, f"{api} src")
    if dst_rmw_op is not None:
        return isa_dma.accumulate(api, to, of, alu(dst_rmw_op, f"{api} dst_rmw_op"), mask, oob_mode)
    if to.shape != of.shape and to.size != of.size:
        return emit.transfer(to, of, mask, oob_mode)
    where = joint(api, mask, [to] if to.shape != of.shape else [to, of], to.shape)
    if where.empty:
        return None
    try:
        view = operand(to, None, where, api)
        source = operand(of, None, where if to.shape == of.shape else None, api)
    except OutOfBounds:
        if where.rest is None:
            raise
        return emit.transfer(to, of, mask, oob_mode)
    if where.rest is not None or view.size != source.size:
        return emit.transfer(to, of, mask, oob_mode)
    _moved(view, to_sbuf(source), oob_mode)
    return None


def _in_pieces(dst: Any, src: Any, mask: Any, op: Any, mode: OobMode) -> None:
    """A `dma_copy` of which one side is irregular."""
    if isinstance(dst, Pieces) and isinstance(src, Pieces):
        src = load(src)
    many, one = (dst, src) if isinstance(dst, Pieces) else (src, dst)
    for box, part, there in many.masked(mask):
        cut = many.cut(tile_of(one, "nki.isa.dma_copy operand"), box)
        to, of = (part, cut) if many is dst else (cut, part)
        dma_copy(to, of, there, op, mode)


def _moved(dst: View, src: View, mode: OobMode) -> None:
    """A DMA, by way of SBUF where its destination is in PSUM."""
    recorder = current(f"{_API}.dma_copy")
    if dst.memory is not Memory.psum:
        recorder.emit(DmaCopy(dst, src, oob_mode=mode))
        return
    between = t.allocate(dst.shape, dst.dtype, Memory.sbuf)
    recorder.emit(DmaCopy(between, src, oob_mode=mode))
    recorder.emit(TensorCopy(dst, between))


def _tiled_offloaded_memcpy(src=None, dst=None, **hints) -> None:
    """dst = src, HBM to HBM, cast."""
    del hints
    dma_copy(dst=dst, src=src)


def _tiled_offloaded_fma(*srcs, scales=None, dst=None, **hints) -> None:
    """dst = the sum of scales[i] * srcs[i]; each source is loaded, the sum computed on the chip and stored."""
    del hints
    api = f"{_API}._tiled_offloaded_fma"
    if not srcs or dst is None:
        raise KernelError(f"{api}: takes sources and dst=, got {srcs} and {dst!r}")
    weights = [1.0] * len(srcs) if scales is None else [float(arrays.static(s)) for s in scales]
    isa_dma.weighted_sum(api, tile_of(dst, f"{api} dst"), [tile_of(s, f"{api} srcs") for s in srcs], weights)


# ---- constants and indices


def memset(shape, value, dtype, mask=None, engine=constants.unknown_engine, **hints) -> Tile:
    """A new tile that holds `value`."""
    del hints
    api = f"{_API}.memset"
    kind, sizes = name_of(dtype, api), tuple(int(n) for n in shape)
    which = engine if engine in (Engine.vector, Engine.gpsimd) else Engine.unknown
    number = emit.fitting(arrays.static(value), kind)
    return compute(api, sizes, kind, lambda dst: Memset(dst, number, which), [], mask)


def iota(expr, dtype, mask=None, **hints) -> Tile:
    """The values of an index expression, (P, F)."""
    del hints
    api = f"{_API}.iota"
    kind = name_of(dtype, api)
    if isinstance(expr, Tensor):
        return emit.copy(expr, kind, mask, api)
    form = expr if isinstance(expr, Index | Irregular) else Index((), (), int(expr))
    shape = (*form.extents, *(1 for _ in range(2 - form.ndim)))
    if isinstance(form, Irregular) or form.moving is not None or emit.affine_pattern(form, shape) is None:
        return emit.copy(grid_tile(form, shape), kind, mask, api)

    def make(dst: View) -> Any:
        moved = sum(c * first for c, (first, _) in zip(form.coefficients, where.box, strict=False))
        found = emit.affine_pattern(form, dst.shape)
        assert found is not None  # as of the whole tile
        multiplier, pattern = found
        return Iota(dst, pattern, form.constant + moved, multiplier)

    where = joint(api, mask, [], shape)
    return compute(api, shape, kind, make, [], mask)


def affine_select(pred, on_true_tile, on_false_value, mask=None, dtype=None, **hints) -> Tile:
    """on_true_tile where a predicate on its index space holds, else a number."""
    del hints
    api = f"{_API}.affine_select"
    tile = tile_of(on_true_tile, f"{api} on_true_tile")
    kind = kind_of(dtype, tile.dtype, api)
    value, outer = arrays.static(on_false_value), joint(api, mask, [tile], tile.shape)
    predicate = as_predicate(pred).mapped(lambda form: aligned(form, tile.shape, api))

    def make(dst: View, src: View) -> Any:
        return _selected(api, dst, to_sbuf(src), predicate, outer, value)

    return compute(api, tile.shape, kind, make, [tile], mask)


def _selected(api: str, dst: View, src: View, predicate: Predicate, outer: Region, value: Any) -> Any:
    """The last instruction of a selection; those before it are emitted.

    It is the same for every turn of a loop, also where the predicate holds everywhere or nowhere, so that turns fold.
    """
    parts = _conjuncts(predicate, outer, dst.shape)
    if parts is None:
        where, fill = region(predicate, outer.shape, api), Memset(dst, emit.fitting(value, dst.dtype))
        if where.empty:
            return fill
        current(api).emit(fill)
        put(dst, src, Region(outer.shape, outer.box, predicate_of(where)))
        return None
    if not parts:
        return TensorCopy(dst, src)
    for k, (kind, form, (multiplier, pattern)) in enumerate(parts):
        entry = AffineSelect(dst, pattern, multiplier, src, value, ALU[kind], form.constant)
        if k == len(parts) - 1:
            return entry
        between = t.allocate(dst.shape, dst.dtype, Memory.sbuf)
        current(api).emit(AffineSelect(between, pattern, multiplier, src, value, ALU[kind], form.constant))
        src = between
    return None


def _conjuncts(predicate: Predicate, outer: Region, sizes: Sequence[int]) -> list[tuple[str, Index, Any]] | None:
    """The comparisons that together are a predicate, each with its pattern; None if it is not made of such ones.

    Forms count from the first position of the box of `outer`, whose tile has `sizes`.
    """
    out: list[tuple[str, Index, Any]] = []
    stack = [predicate]
    while stack:
        one = stack.pop()
        if one.kind == "and":
            stack.extend(reversed(one.parts))
        elif one.kind == "or":
            return None
        else:
            form = _over(one.form, outer)
            pattern = emit.affine_pattern(form, sizes)
            if pattern is None:
                return None
            out.append((one.kind, form, pattern))
    return out


def _over(form: Index, outer: Region) -> Index:
    """A form over the box of a region, counted from its first position."""
    moved = sum(c * first for c, (first, _) in zip(form.coefficients, outer.box, strict=True))
    return Index(form.coefficients, outer.box_shape, form.constant + moved)


# ---- transposes


def nc_transpose(data, mask=None, dtype=None, engine=constants.unknown_engine, **hints) -> Tile:
    """The transpose of (P, F): on the tensor engine into PSUM, or on the vector engine in SBUF.

    `mask` is on the index space of `data`.
    """
    del hints
    api = f"{_API}.nc_transpose"
    tile = tile_of(data, f"{api} data")
    if tile.ndim > 2 and (mask is not None or tile.mask is not None):
        tile, mask = merged(tile, 1, mask), None
    where = joint(api, mask, [tile], tile.shape)
    rows, columns = tile.shape_2d
    small = engine is Engine.vector and max(rows, columns) <= _VECTOR_BLOCK
    turned = _turned(where, (columns, rows))
    out = result((columns, rows), str(tile.dtype), Memory.sbuf if small else Memory.psum, turned)
    if where.empty:
        return out
    view = operand(tile, None, where, api)
    made = NcTranspose(
        boxed(out.raw, turned.box), view if small else to_sbuf(view), Engine.vector if small else Engine.tensor
    )
    current(api).emit(made)
    out.made = made
    return out if dtype is None or name_of(dtype, api) == out.dtype else emit.copy(out, dtype, None, api)


def _turned(where: Region, shape: tuple[int, int]) -> Region:
    """The region of a transpose; several free dimensions are one there."""
    return permuted(where, (1, 0)) if len(where.shape) == 2 else everywhere(shape)


def dma_transpose(src, axes=None, mask=None, dtype=None, **hints) -> Tile:
    """A new SBUF tile with the first and last of 2 to 4 dimensions of `src` swapped, on the way of a DMA."""
    del hints
    api = f"{_API}.dma_transpose"
    of = tile_of(src, f"{api} src")
    if of.ndim not in _AXES:
        raise KernelError(f"{api} src: must have 2, 3 or 4 dimensions, got {of.shape}")
    order = _AXES[of.ndim] if axes is None else tuple(axes)
    where = joint(api, mask, [of], of.shape)
    turned = permuted(where, order)
    out = result(turned.shape, str(of.dtype), Memory.sbuf, turned)
    if not where.empty:
        made = DmaTranspose(boxed(out.raw, turned.box), to_sbuf(operand(of, None, where, api)), order)
        current(api).emit(made)
        out.made = made
    return out if dtype is None or name_of(dtype, api) == out.dtype else emit.copy(out, dtype, None, api)
