"""Emitting: results under masks, assignment, and what a mask that is no box costs.

An instruction is emitted once, on the box that a mask leaves of its operands.  Where the mask says more than a box, the
whole box is computed, and a predicated copy takes what the mask leaves when the result is read or assigned.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import nkijax.dialects.neuronxcc.tensor as t
from nkijax import arrays, dtypes
from nkijax.dialects.neuronxcc.dtype import name_of
from nkijax.dialects.neuronxcc.fit import broadcasts, fitted, rows_only
from nkijax.dialects.neuronxcc.index import predicate_of
from nkijax.dialects.neuronxcc.masks import affine_pattern as affine_pattern
from nkijax.dialects.neuronxcc.masks import select
from nkijax.dialects.neuronxcc.pieces import Pieces
from nkijax.dialects.neuronxcc.predicate import Box, Predicate, Region, conjunction, everywhere, region
from nkijax.dialects.neuronxcc.skipped import Flags, loaded
from nkijax.dialects.neuronxcc.subscript import subscript
from nkijax.dialects.neuronxcc.tensor import (
    OPERATORS,
    Tensor,
    Tile,
    boxed,
    broadcast,
    copied,
    face,
    operand,
    result,
    to_sbuf,
)
from nkijax.errors import KernelError
from nkijax.isa.matmul import NcMatmul
from nkijax.isa.move import DmaCopy, Memset, OobMode, TensorCopy
from nkijax.machine import Engine, Memory
from nkijax.program import Instruction
from nkijax.trace import current
from nkijax.view import View


@dataclasses.dataclass(frozen=True, slots=True)
class Column:
    """An operand of one element a partition: a mask cuts its partitions only."""

    tile: Any  # a Tensor, a number or None


_NUMBERS = (int, float, np.number, np.bool_)


def is_number(x: Any) -> bool:
    return isinstance(x, _NUMBERS)


def masks_of(operands: Sequence[Any]) -> list[Predicate]:
    """The predicates that operands were subscripted with."""
    return [x.mask for x in operands if isinstance(x, Tensor) and x.mask is not None]


def joint(api: str, mask: Any, operands: Sequence[Any], shape: Sequence[int]) -> Region:
    """The region that a mask, and those of the operands, leave of an operation's index space."""
    masks = masks_of(operands)
    if not masks:
        return region(mask, shape, api)
    return region(conjunction(mask, *masks), shape, api)


def view_in(x: Any, shape: Sequence[int], where: Region, api: str) -> Any:
    """An operand of an instruction: a tensor cut to a region, a number as Python's."""
    if isinstance(x, Column):
        if not isinstance(x.tile, Tensor):
            return arrays.static(x.tile)
        view = operand(x.tile, api=api)
        box = (where.box[0] if view.shape[0] != 1 else (0, 1), *((0, n) for n in view.shape[1:]))
        return boxed(view, box)
    if isinstance(x, Tensor):
        return in_rows(operand(x, shape, where, api), x)
    return arrays.static(x)


def in_rows(view: View, x: Tensor) -> View:
    """The view itself; one partition that is to be many is copied to them by DMA."""
    if not x.on_chip or view.shape[0] == 1 or view.strides[0] != 0 or x.shape[0] != 1:
        return view
    one = View(view.buffer, view.offset, view.strides, (1, *view.shape[1:]), view.dtype, view.dynamic)
    if view.memory is Memory.psum:
        one = copied(one, view.dtype)
    wide = View(one.buffer, one.offset, (0, *one.strides[1:]), view.shape, view.dtype, one.dynamic)
    out = t.allocate(view.shape, view.dtype, Memory.sbuf)
    current("broadcast").emit(DmaCopy(out, wide))
    return out


def compute(
    api: str,
    shape: Sequence[int],
    dtype: str,
    make: Callable[..., Instruction | None],
    operands: Sequence[Any],
    mask: Any = None,
    memory: Memory = Memory.sbuf,
    dst: Tensor | None = None,
) -> Tile:
    """A new tile with the result of `make(dst, *views)`, an instruction on `shape` under `mask`.

    Operands are tensors, which broadcast to `shape` from the left, numbers, and `Column`s.  With `dst` the result is
    written there instead.  `make` may emit instructions of its own first.
    """
    where = joint(api, mask, [x.tile if isinstance(x, Column) else x for x in operands], shape)
    tile = result(where.shape if len(where.shape) > 1 else (*where.shape, 1), dtype, memory, where)
    if where.empty:
        return tile
    views = [view_in(x, shape, where, api) for x in operands]
    instruction = make(boxed(tile.raw, _padded(where.box, tile.ndim)), *views)
    if instruction is not None:
        current(api).emit(instruction)
        tile.made = instruction
    if dst is not None:
        assign(dst, tile)
    return tile


def _padded(box: Box, rank: int) -> Box:
    return (*box, *((0, 1) for _ in range(rank - len(box))))


# ---- reading a result


def settle(x: Tile) -> View:
    """The addresses of a tile whose lanes hold what they should: a masked-off lane of a fresh result reads zero."""
    if x.settled is not None:
        return x.settled
    if x.moved is not None:
        _restore(x)
    if x.region is not None and x.region.rest is not None and not x.region.empty:
        out = t.allocate(x.shape, x.dtype.name, Memory.sbuf, zero=True)
        box = x.region.box
        select(boxed(out, box), boxed(x.raw, box), x.region)
        x.settled = out
        return out
    return x.raw


def _restore(x: Tile) -> None:
    """Give back the tile that an assignment did without: its maker writes it after all, a copy the destination."""
    moved, recorder = x.moved, current("tile")
    assert moved is not None
    target = x.raw if x.region is None else boxed(x.raw, x.region.box)
    there: View = moved.dst  # type: ignore[attr-defined]
    if isinstance(moved, NcMatmul) and moved.accumulate:
        original, after = dataclasses.replace(moved, dst=target, accumulate=False, addend=None), moved
    else:
        original = dataclasses.replace(moved, dst=target)  # type: ignore[call-arg]
        after = moved if moved.skips() else copy_instruction(there, target)
    if not recorder.replace(moved, original, after):
        raise recorder.dead("nki.language", x.raw.buffer)
    x.moved = None


# ---- assignment


def copy_instruction(dst: View, src: View) -> Instruction:
    """What moves `src` to `dst`: an engine within the chip, else DMA, which does not reach PSUM."""
    if dst.memory.on_chip and src.memory.on_chip:
        return TensorCopy(dst, src)
    return DmaCopy(dst, to_sbuf(src))


def assign(dst: Any, value: Any) -> None:
    """dst[...] = value."""
    if isinstance(value, Pieces):
        value = copy(value)
    if isinstance(dst, Pieces):
        scatter(dst, value)
    elif isinstance(value, Tile) and value.reduce is not None:
        op, value.reduce = value.reduce, None
        update(op, dst, value)
    elif isinstance(value, Tensor):
        _assign_tensor(dst, value)
    elif is_number(value):
        fill(dst, arrays.static(value))
    elif arrays.is_array(value):
        data = arrays.constant(value, dst.dtype.name)
        constant = current("assign").constant(data, dst.dtype.name, Memory.private_hbm)
        _assign_tensor(dst, face(constant))
    else:
        raise KernelError(f"assignment value: must be a tile or a number, got {value!r}")


def scatter(dst: Pieces, value: Any, mask: Any = None, mode: OobMode = OobMode.error) -> None:
    """dst = a tile or a number, where a mask holds, piece by piece."""
    if isinstance(value, Tile):
        if value.region is not None:
            mask = conjunction(mask, predicate_of(value.region))
        for box, part, there in dst.masked(mask):
            _assign_tensor(part, dst.cut(value, box), there, mode)
    else:
        for _, part, there in dst.masked(mask):
            fill(part, arrays.static(value), there)


def gather(src: Pieces, one: Callable[[Tensor, Any], Tile], dtype: str, mask: Any = None) -> Tile:
    """A new tile of what `src` addresses; `one(part, mask)` gives the tile of a part."""
    tile = result(src.shape, dtype, Memory.sbuf, region(mask, src.shape))
    flags = Flags(tile)
    for box, part, there in src.masked(mask):
        value = one(part, there)
        _assign_tensor(face(boxed(tile.raw, box)), value)
        flags.take(box, value)
    flags.noted()
    return tile


def fill(dst: Tensor, value: Any, mask: Any = None) -> None:
    """dst[...] = a number, where a mask holds."""
    where = joint("assignment", mask, [dst], dst.shape)
    if where.empty:
        return
    view, value = operand(dst, None, where, "assignment"), fitting(value, dst.dtype.name)
    if where.rest is None:
        current("memset").emit(Memset(view, value, Engine.dma if view.memory.is_hbm else Engine.unknown))
    else:
        select(view, value, where)


def fitting(value: Any, dtype: str) -> Any:
    """A number as one that Memset takes for a dtype."""
    if dtypes.is_float(dtype):
        return float(value)
    if dtype == "bool":
        return int(bool(value))
    info = np.iinfo(dtypes.storage(dtype))
    return int(min(max(value, info.min), info.max))


def _assign_tensor(dst: Tensor, value: Tensor, mask: Any = None, mode: OobMode = OobMode.error) -> None:
    where = value.region if isinstance(value, Tile) and value.region is not None else None
    if where is None and value.raw == dst.raw and not value.mask and not dst.mask:
        return  # `t[...] += x` has written it
    dst, fit, where = fitted(dst, value, where)
    if dst.mask is not None or value.mask is not None or mask is not None:
        inner = joint("assignment", mask, [dst, value], dst.shape)
        where = inner if where is None else _both(where, inner)
    where = where or everywhere(dst.shape)
    if where.empty:
        return
    view = operand(dst, None, where, "assignment")
    if where.rest is None and isinstance(value, Tile) and _redirect(value, view):
        return
    flags = None
    if isinstance(value, Tile) and value.skipped is not None and view.memory.on_chip:
        flags = boxed(fit(value.skipped.view()), where.box)
    if value.guards:
        source = operand(value, dst.shape, where, "assignment")
    else:
        unsettled = isinstance(value, Tile) and value.moved is None and value.region is not None
        source = boxed(fit(value.raw if unsettled else operand(value)), where.box)
    put(view, in_rows(source, value), where, mode, flags)


def transfer(dst: Tensor, value: Tensor, mask: Any, mode: OobMode) -> None:
    """Store a tile in HBM under a mask; where its box is not all inside the tensor, piece by piece."""
    _assign_tensor(dst, value, mask, mode)


def put(view: View, source: View, where: Region, mode: OobMode = OobMode.error, flags: View | None = None) -> None:
    """view = source where a region's mask holds, and flags are not 0; all are cut to the region's box."""
    recorder = current("assignment")
    if where.rest is None and flags is None:
        made = copy_instruction(view, source)
        recorder.emit(made if mode is OobMode.error else dataclasses.replace(made, oob_mode=mode))  # type: ignore[call-arg]
        return
    if source.memory.is_hbm:
        source, flags = _brought(source, mode)
    if view.memory.is_hbm:
        old, _ = _brought(view, mode)
        select(old, source, where, flags)
        recorder.emit(DmaCopy(view, old, oob_mode=mode))
    else:
        select(view, source, where, flags)


def _brought(view: View, mode: OobMode) -> tuple[View, View | None]:
    """A copy in SBUF of what is in HBM, and flags of what a run-time index lets be moved."""
    tile = t.allocate(view.shape if view.ndim > 1 else (*view.shape, 1), view.dtype, Memory.sbuf)
    load = DmaCopy(tile, view, oob_mode=mode)
    current("assignment").emit(load)
    return tile, loaded(load)


def _both(a: Region, b: Region) -> Region:
    box = tuple((max(p, r), min(q, s)) for (p, q), (r, s) in zip(a.box, b.box, strict=True))
    rests = [r.rest for r in (a, b) if r.rest is not None]
    return Region(a.shape, box, conjunction(*rests) if rests else None)


def _redirect(value: Tile, view: View) -> bool:
    """Let the instruction that made `value` write `view` instead, if it is the last one; whether that was done."""
    made, recorder = value.made, current("assignment")
    if made is None or value.moved is not None or recorder.executor is not None:
        return False
    own: View = made.dst  # type: ignore[attr-defined]
    if own.buffer is not value.raw.buffer or own.dtype not in (view.dtype, "float32"):
        return False
    if (own.shape[0], own.size) != (view.shape[0], view.size) or view.memory is not own.memory:
        return False
    plain = {"accumulate": False, "addend": None} if isinstance(made, NcMatmul) else {}
    changed = made.changed(dst=view, **plain)
    if not recorder.redirect(made, changed):
        return False
    value.moved, value.made = changed, None
    if value.skipped is not None:
        value.skipped.redirected(made, changed)
    return True


# ---- updates in place


def update(op: str, dst: Tensor, value: Any) -> Tensor:
    """dst = dst <op> value, in place; a matmul's result is accumulated in PSUM by the matmul itself."""
    if isinstance(value, Tile) and op == "add" and _accumulate(dst, value):
        return dst
    where = value.region if isinstance(value, Tile) else None
    mask = None if where is None else predicate_of(where)
    _assign_tensor(dst, OPERATORS["binary"](op, dst, value, mask=mask, dtype=_wide(dst)))
    return dst


def _wide(dst: Tensor) -> str:
    return "float32" if dst.buffer is Memory.psum else dst.dtype.name


def _accumulate(dst: Tensor, value: Tile) -> bool:
    made = value.made
    if dst.buffer is not Memory.psum or not isinstance(made, NcMatmul) or value.moved is not None:
        return False
    where = value.region or everywhere(dst.shape)
    recorder = current("matmul")
    if where.rest is not None or dst.mask is not None or recorder.executor is not None or dst.dtype != "float32":
        return False
    if dst.shape != value.shape:
        if dst.shape_2d != value.shape_2d or not rows_only(where):
            return False
        where = Region(dst.shape, (where.box[0], *((0, n) for n in dst.shape[1:])))
    view = operand(dst, None, where, "matmul")
    changed = made.changed(dst=view, addend=view, accumulate=True)
    if not recorder.redirect(made, changed):
        return False
    value.moved, value.made = changed, None
    return True


# ---- copies


def copy(x: Any, dtype: Any = None, mask: Any = None, api: str = "nl.copy", memory: Memory = Memory.sbuf) -> Tile:
    """A new tile with the elements of `x`, cast."""
    kind = x.dtype.name if dtype is None else name_of(dtype, api)
    if isinstance(x, Pieces):
        return gather(x, lambda part, there: copy(part, kind, there, api), kind, mask)
    return compute(api, x.shape, kind, copy_instruction, [x], mask, memory)


def broadcast_to(x: Tensor, shape: Sequence[int], dtype: Any = None) -> Tile:
    """A new tile in which dimensions of size 1 are repeated; partitions by a DMA."""
    api = "nl.broadcast_to"
    sizes = tuple(int(n) for n in shape)
    view, kind = operand(x, api=api), x.dtype.name if dtype is None else name_of(dtype, api)
    if view.ndim < len(sizes) and not broadcasts(view.shape, sizes):
        view = view.reshape((*(1 for _ in range(len(sizes) - view.ndim)), *view.shape)) if view.memory.is_hbm else view
    wide = broadcast(view, sizes, api)
    out = result(sizes, kind)
    made = DmaCopy(out.raw, to_wide(wide)) if sizes[0] != x.shape[0] else copy_instruction(out.raw, wide)
    current(api).emit(made)
    out.made = made
    return out


def to_wide(view: View) -> View:
    """A repeated view that DMA reaches."""
    if view.memory is not Memory.psum:
        return view
    one = View(view.buffer, view.offset, view.strides, (1, *view.shape[1:]), view.dtype, view.dynamic)
    one = copied(one, view.dtype)
    return View(one.buffer, one.offset, (0, *one.strides[1:]), view.shape, view.dtype)


OPERATORS.update(subscript=subscript, settle=settle, assign=assign, update=update, copy=copy, broadcast_to=broadcast_to)
