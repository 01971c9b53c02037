"""Instructions of `neuronxcc.nki.isa` that search, shuffle and gather.

Each function makes its result and emits the instruction's entry of `nkijax.isa`, whose docstring says what it computes.
"""

from __future__ import annotations

import math
from typing import Any, NoReturn

from nkijax import arrays
from nkijax.dialects.neuronxcc import emit, hidden
from nkijax.dialects.neuronxcc.emit import compute, copied, joint, to_sbuf
from nkijax.dialects.neuronxcc.isa_compute import kind_of, tile_of
from nkijax.dialects.neuronxcc.predicate import Region
from nkijax.dialects.neuronxcc.regions import projected
from nkijax.dialects.neuronxcc.tensor import Tile, boxed, operand, result
from nkijax.errors import Unsupported
from nkijax.isa.gather import CORE_PARTITIONS, LocalGather, NcStreamShuffle
from nkijax.isa.search import Max8, NcFindIndex8, NcMatchReplace8
from nkijax.isa.segments import SequenceBounds
from nkijax.machine import Memory
from nkijax.program import Instruction
from nkijax.trace import current
from nkijax.view import View

_API = "nki.isa"
_SLOTS = 8


def _eight(api: str, x: Any, mask: Any, dtype: str, make: Any, fill: float = math.nan) -> Tile:
    """A new (P, 8) tile with what `make(dst, searched view, rows)` finds in each partition; `fill` is never found."""
    where = joint(api, mask, [x], x.shape)
    shape = (x.shape[0], _SLOTS)
    rows = projected(where, (0, -1), (x.shape[0], 1))
    into = Region(shape, (rows.box[0], (0, 0) if where.empty else (0, _SLOTS)), rows.rest)
    tile = result(shape, dtype, Memory.sbuf, into)
    if not where.empty:
        made = make(boxed(tile.raw, into.box), hidden.filled(operand(x, None, where, api), where, fill), into)
        current(api).emit(made)
        tile.made = made
    return tile


def max8(src, mask=None, dtype=None, **hints) -> Tile:
    """The 8 largest elements of each partition, descending: (P, 8)."""
    del hints
    api = f"{_API}.max8"
    tile = tile_of(src, f"{api} src")
    return _eight(api, tile, mask, kind_of(dtype, tile.dtype, api), lambda dst, x, _: Max8(dst, x), -math.inf)


def nc_find_index8(data, vals, mask=None, dtype=None, **hints) -> Tile:
    """Where each of 8 values is in its partition of `data`: (P, 8) of uint32."""
    del hints
    api = f"{_API}.nc_find_index8"
    tile, wanted = tile_of(data, f"{api} data"), tile_of(vals, f"{api} vals")

    def make(dst: View, x: View, rows: Region) -> Instruction:
        return NcFindIndex8(dst, x, boxed(operand(wanted, api=api), rows.box))

    return _eight(api, tile, mask, kind_of(dtype, "uint32", api), make)


def nc_match_replace8(data, vals, imm, dst_idx=None, mask=None, dtype=None, **hints) -> Tile:
    """`data` with the first occurrence of each of 8 values replaced by `imm`; `dst_idx` takes where they were."""
    del hints
    api = f"{_API}.nc_match_replace8"
    tile, wanted = tile_of(data, f"{api} data"), tile_of(vals, f"{api} vals")
    where = joint(api, mask, [tile], tile.shape)

    def rows(x: View) -> View:
        return boxed(x, (where.box[0], *((0, n) for n in x.shape[1:])))

    def make(dst: View, x: View) -> Instruction:
        found = None if dst_idx is None else rows(operand(tile_of(dst_idx, f"{api} dst_idx"), api=api))
        searched = hidden.filled(x, where, math.nan)  # which no value equals
        return NcMatchReplace8(dst, searched, rows(operand(wanted, api=api)), float(arrays.static(imm)), found)

    return compute(api, tile.shape, kind_of(dtype, tile.dtype, api), make, [tile], mask)


def nc_stream_shuffle(src, dst, shuffle_mask, dtype=None, mask=None, **hints) -> None:
    """dst[32q + i] = src[32q + shuffle_mask[i]]; 255 leaves a partition as it is.  `dst` may be `src`."""
    del hints, dtype
    api = f"{_API}.nc_stream_shuffle"
    of, to = tile_of(src, f"{api} src"), tile_of(dst, f"{api} dst")
    where = joint(api, mask, [to], to.shape)
    if where.empty:
        return
    view = operand(to, None, where, api)
    source = operand(of, None, Region(of.shape, ((0, of.shape[0]), *where.box[1:])), api)
    source = source if source.dtype == view.dtype else copied(source, view.dtype)
    if where.rest is None:
        current(api).emit(NcStreamShuffle(view, source, tuple(shuffle_mask)))
        return
    turned = copied(view, view.dtype)
    current(api).emit(NcStreamShuffle(turned, source, tuple(shuffle_mask)))
    emit.put(view, turned, where)


def local_gather(src_buffer, index, num_elem_per_idx=1, num_valid_indices=None, mask=None, **hints) -> Tile:
    """Elements of each partition by the indices of its group of 16 partitions: (P, indices * num_elem_per_idx)."""
    del hints
    api = f"{_API}.local_gather"
    tile, chosen = tile_of(src_buffer, f"{api} src_buffer"), tile_of(index, f"{api} index")
    indices = CORE_PARTITIONS * chosen.shape_2d[1] if num_valid_indices is None else int(num_valid_indices)
    run = int(num_elem_per_idx)

    def make(dst: View) -> Instruction:
        x, at = to_sbuf(operand(tile, api=api)), to_sbuf(operand(chosen, api=api))
        return LocalGather(dst, x, at if at.dtype == "uint16" else copied(at, "uint16"), run, indices)

    return compute(api, (tile.shape[0], indices * run), str(tile.dtype), make, [], mask)


def sequence_bounds(segment_ids, dtype=None, **hints) -> Tile:
    """The first position of each element's segment, and the one behind its last: (1, 2, n)."""
    del hints
    api = f"{_API}.sequence_bounds"
    tile = tile_of(segment_ids, f"{api} segment_ids")
    n = tile.shape_2d[1]
    kind = kind_of(dtype, tile.dtype, api)

    def make(dst: View) -> Instruction:
        return SequenceBounds(dst, to_sbuf(operand(tile, api=api)))

    if kind in ("float32", "int32"):
        return compute(api, (1, 2, n), kind, make, [])
    return emit.copy(compute(api, (1, 2, n), "float32", make, []), kind)


def builtin_custom_op(function_name, lib_file_name, ulib_to_ucode_version, ulib_to_isa_version, srcs, dsts) -> NoReturn:
    """Unsupported: the code of a custom operator is not there."""
    del lib_file_name, ulib_to_ucode_version, ulib_to_isa_version, srcs, dsts
    raise Unsupported(f"{_API}.builtin_custom_op: {function_name} is code that nkijax does not have")
