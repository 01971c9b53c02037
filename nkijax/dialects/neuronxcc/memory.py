"""Moving data between HBM and the chip: `nl.load`, `nl.store`, `nl.load_transpose2d`, `nl.atomic_rmw`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nkijax import arrays
from nkijax.dialects.neuronxcc import emit
from nkijax.dialects.neuronxcc.bounds import OutOfBounds
from nkijax.dialects.neuronxcc.dtype import name_of
from nkijax.dialects.neuronxcc.emit import compute, copied, joint, to_sbuf
from nkijax.dialects.neuronxcc.index import axis_index, predicate_of
from nkijax.dialects.neuronxcc.math import tile_of
from nkijax.dialects.neuronxcc.pieces import Pieces, by_rows
from nkijax.dialects.neuronxcc.predicate import Region, conjunction, everywhere, region
from nkijax.dialects.neuronxcc.regions import permuted
from nkijax.dialects.neuronxcc.skipped import Flags
from nkijax.dialects.neuronxcc.tensor import (
    OPERATORS,
    HbmTensor,
    Tensor,
    Tile,
    boxed,
    operand,
    result,
)
from nkijax.errors import KernelError
from nkijax.isa.gather import NcNGather
from nkijax.isa.move import DmaCopy, OobMode
from nkijax.isa.transpose import DmaTranspose
from nkijax.machine import Memory
from nkijax.program import Instruction
from nkijax.trace import current
from nkijax.view import View


def hbm_of(what: str, x: Any) -> HbmTensor:
    if not isinstance(x, HbmTensor):
        raise KernelError(f"{what}: must be a tensor in HBM, got {x!r}")
    return x


def _tile_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape if len(shape) > 1 else (*shape, 1)


def load(src, mask=None, dtype=None, mode=OobMode.error, **hints) -> Tile:
    """A new SBUF tile with the elements of an HBM access pattern, cast to `dtype`.

    Lanes that the mask hides are not addressed and read zero; with oob_mode.skip neither are those whose run-time index
    is out of range.  `hints` are accepted without effect.
    """
    del hints
    api = "nl.load"
    if isinstance(src, Tile):
        return emit.copy(src, dtype, mask, api)
    if not isinstance(src, Pieces):
        src = hbm_of(f"{api} src", src)
    kind = src.dtype.name if dtype is None else name_of(dtype, api)
    if isinstance(src, Pieces):
        return emit.gather(src, lambda part, there: load(part, there, kind, mode), kind, mask)
    made: list[DmaCopy] = []

    def make(dst: View, of: View) -> Instruction:
        made.append(_loading(dst, of, mode))
        return made[-1]

    try:
        tile = compute(api, src.shape, kind, make, [src], mask)
    except OutOfBounds:
        where = joint(api, mask, [src], src.shape)
        if where.rest is None:
            raise
        return _load_rows(src, kind, where, mode)
    flags = Flags(tile)
    for one in made:
        flags.note(tile.region.box if tile.region is not None else everywhere(tile.shape).box, one)
    flags.noted()
    return tile


def _loading(dst: View, of: View, mode: OobMode) -> DmaCopy:
    """A load; what one with oob_mode.skip leaves out of a fresh tile reads zero."""
    if mode is OobMode.skip:
        current("nl.load").zeros.add(dst.buffer)
    return DmaCopy(dst, of, oob_mode=mode)


def pieces(where: Region) -> Iterator[Region]:
    """A region as boxes: one for each position of the axis with the fewest of them, and so on."""
    if where.empty:
        return
    if where.rest is None:
        yield where
        return
    wide = [a for a, (first, last) in enumerate(where.box) if last - first > 1]
    axis = min(wide, key=lambda a: where.box[a][1] - where.box[a][0])
    i = axis_index(axis, where.shape)
    for position in range(*where.box[axis]):
        yield from pieces(region(conjunction(predicate_of(where), i == position), where.shape))


def _load_rows(src: Tensor, kind: str, where: Region, mode: OobMode) -> Tile:
    """A load whose mask is no box, and whose box is not all inside the tensor: piece by piece."""
    tile = result(_tile_shape(src.shape), kind, Memory.sbuf, where)
    flags = Flags(tile)
    for piece in pieces(where):
        made = _loading(boxed(tile.raw, piece.box), operand(src, None, piece, "nl.load"), mode)
        current("nl.load").emit(made)
        flags.note(piece.box, made)
    flags.noted()
    return tile


def store(dst, value, mask=None, mode=OobMode.error, **hints) -> None:
    """Write a tile or a number to an HBM access pattern, where `mask`, and the value's own, hold.

    With oob_mode.skip elements whose run-time index is out of range are left out.  `hints` have no effect.
    """
    del hints
    api = "nl.store"
    if isinstance(value, Pieces) and value.on_chip:
        value = emit.copy(value)
    if isinstance(dst, Pieces):
        emit.scatter(dst, value, mask, mode)
        return
    if isinstance(dst, Tile):
        emit.assign(dst, emit.copy(value, mask=mask) if mask is not None else value)
        return
    dst = hbm_of(f"{api} dst", dst)
    if emit.is_number(value):
        emit.fill(dst, arrays.static(value), mask)
        return
    if not isinstance(value, Tensor):
        raise KernelError(f"{api} value: must be a tile or a number, got {value!r}")
    emit.transfer(dst, value, mask, mode)


def load_transpose2d(src, mask=None, dtype=None, **hints) -> Tile:
    """A new SBUF tile with the transpose of a 2-D access pattern; `mask` is on the pattern itself."""
    del hints
    api = "nl.load_transpose2d"
    src = hbm_of(f"{api} src", src)
    if src.ndim != 2:
        raise KernelError(f"{api} src: must have 2 dimensions, got {src.shape}")
    where = joint(api, mask, [src], src.shape)
    turned = permuted(where, (1, 0))
    tile = result(turned.shape, src.dtype.name, Memory.sbuf, turned)
    if not where.empty:
        view = operand(src, None, where, api)
        made = DmaTranspose(boxed(tile.raw, turned.box), view)
        current(api).emit(made)
        tile.made = made
    return tile if dtype is None or name_of(dtype, api) == src.dtype else emit.copy(tile, dtype, None, api)


def atomic_rmw(dst, value, op, mask=None, **hints) -> None:
    """dst = dst <op> value in HBM, each element at once; `op` is an addition, a maximum or another ALU operator."""
    del hints
    api = "nl.atomic_rmw"
    dst = hbm_of(f"{api} dst", dst)
    rows = by_rows(dst)
    if rows is not None:  # one may be named twice
        for box, part, there in rows.masked(mask):
            atomic_rmw(part, rows.cut(value, box), op, there)
        return
    old = load(dst, mask=mask)
    name = OPERATORS["alu_name"](op)
    store(dst, OPERATORS["binary"](name, old, value, dtype=dst.dtype.name), mask=mask)


def expand_dims(data, axis) -> Any:
    """A view with a dimension of size 1 at `axis`."""
    return data.expand_dims(axis)


def device_print(prefix, x, mask=None, **hints) -> None:
    """Print a tile's values after `prefix`; in eager mode only, otherwise its shape."""
    del hints, mask
    print(prefix, x)


def gather_flattened(data, indices, mask=None, dtype=None, **hints) -> Tile:
    """data[p, indices[p, …]] of each partition, its free elements counted as one row; hints have no effect."""
    del hints
    api = "nl.gather_flattened"
    data, indices = tile_of(f"{api} data", data), tile_of(f"{api} indices", indices)
    source = to_sbuf(operand(data, api=api))

    def make(dst: View, at: View) -> Instruction:
        rows = boxed(source, ((0, dst.shape[0]), *((0, n) for n in source.shape[1:])))
        return NcNGather(dst, rows, to_sbuf(at) if at.dtype == "uint32" else copied(at, "uint32"))

    tile = compute(api, indices.shape, data.dtype.name, make, [indices], mask)
    return tile if dtype is None else emit.copy(tile, dtype)
