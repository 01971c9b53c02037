"""Choosing elements of tiles: by a condition, by indices."""

from __future__ import annotations

from typing import Any

from nkijax import dtypes
from nkijax.dialects.nki.math import column, emit_for, new, tile
from nkijax.dialects.nki.tensor import NkiTensor, copy_instruction, fill_instruction
from nkijax.errors import KernelError
from nkijax.isa.elementwise import TensorScalar
from nkijax.isa.gather import NcNGather
from nkijax.isa.operators import ALU
from nkijax.isa.select import TensorCopyPredicated
from nkijax.trace import dtype_of
from nkijax.view import View


def where(condition, x, y, dtype=None) -> NkiTensor:
    """x where `condition`, a tile of numbers, is not zero, else y; x and y are tiles, columns (P, 1) or numbers."""
    api = "nki.language.where"
    chosen = tile(f"{api} condition", condition)
    tiles = [tile(f"{api} {n}", v) for n, v in (("x", x), ("y", y)) if isinstance(v, NkiTensor)]
    out = new(api, chosen.shape, dtype, tiles[0] if tiles else chosen)
    _put(api, "y", out._view, y)
    mask = new(api, chosen.shape, "uint8", chosen)._view
    emit_for(api, TensorScalar(mask, chosen, ALU["not_equal"], 0.0))
    if isinstance(x, NkiTensor):
        value: Any = _spread(f"{api} x", x._view, out._view)
        if value.dtype != out.dtype:
            value = new(api, out.shape, None, out._view)._view
            _put(api, "x", value, x)
    else:
        value = x
    emit_for(api, TensorCopyPredicated(out._view, value, mask))
    return out


def _put(api: str, name: str, dst: View, value: Any) -> None:
    """Fill a new tile with a tile, a column or a number."""
    if isinstance(value, NkiTensor):
        emit_for(api, copy_instruction(dst, _spread(f"{api} {name}", value._view, dst)))
    else:
        whole = dtypes.is_float(dst.dtype) or not isinstance(value, float) or not value.is_integer()
        emit_for(api, fill_instruction(dst, value if whole else int(value)))


def _spread(name: str, view: View, like: View) -> View:
    if view.shape == like.shape:
        return view
    if view.free == 1 and view.partitions == like.partitions:
        return column(view, like.shape)
    rule = f"must have the shape {like.shape} of condition, or one element a partition"
    raise KernelError(f"{name}: {rule}, got {view.shape}")


def gather_flattened(data, indices, axis=0, dtype=None) -> NkiTensor:
    """Element [p, i] is element indices[p, i] of the free elements of data's partition p; indices are integers."""
    api = "nki.language.gather_flattened"
    src, at = tile(f"{api} data", data), tile(f"{api} indices", indices)
    if axis != 0:
        raise KernelError(f"{api} axis: must be 0; data is flattened, got {axis!r}")
    if not dtypes.is_int(at.dtype):
        raise KernelError(f"{api} indices: must have an integer dtype, got {at.dtype}")
    if at.dtype != "uint32":
        positions = new(api, at.shape, "uint32", at)._view
        emit_for(api, copy_instruction(positions, at))
        at = positions
    out = new(api, at.shape, src.dtype, src)
    emit_for(api, NcNGather(out._view, src, at))
    if dtype is None or dtype_of(dtype, api) == src.dtype:
        return out
    cast = new(api, at.shape, dtype, src)
    emit_for(api, copy_instruction(cast._view, out._view))
    return cast
