"""Reading and writing arrays by access patterns.

Reads try the whole storage, then a box (`lax.slice` or `dynamic_slice`), then a gather with a computed index; writes
likewise rebind, `dynamic_update_slice`, or scatter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from nkijax import dtypes
from nkijax.address import Address, Index, box_of, index_of, joined, upward, valid, window
from nkijax.bits import as_before, as_bits, is_narrow
from nkijax.box import Box
from nkijax.update import Placed, updated


def read(array: jax.Array, address: Address) -> jax.Array:
    """The addressed elements, in the pattern's shape.  Run-time indices outside are clamped: see `valid`."""
    address, downward = upward(address)
    return _flip(_read(array, address), downward)


def _read(array: jax.Array, address: Address) -> jax.Array:
    flat = _as_dtype(array, address.dtype, address.size)
    box, axis = box_of(address)
    if box is None:
        if (one := joined(address)) is not None:
            return one.apart(_read(array, one.address))
        return flat.reshape(-1).at[_flat_index(address)].get(mode="clip", wrap_negative_indices=False)
    if address.rows is not None:
        return _gather_rows(flat, address, box)
    shape, starts, spans = window(address, box, axis)
    x = flat.reshape(shape)
    if spans != shape:
        fixed = [s for s in starts if isinstance(s, int)]
        if len(fixed) == len(starts):
            x = lax.slice(x, fixed, [s + n for s, n in zip(fixed, spans, strict=True)], (1,) * x.ndim)
        else:
            x = _sliced(spans, x, *starts)
    x = x.reshape(box.spans)
    x = lax.slice(x, (0,) * x.ndim, box.spans, box.steps) if max(box.steps) > 1 else x
    return _to_pattern(x, address, box)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _bits_sliced(spans: tuple[int, ...], x: jax.Array, *starts: jax.Array) -> jax.Array:
    bits = lax.dynamic_slice(as_bits(x), starts, spans, allow_negative_indices=False)
    return as_before(bits, x.dtype)


@_bits_sliced.defjvp
def _bits_sliced_jvp(spans, primals, tangents):
    x, *starts = primals
    moved = lax.dynamic_slice(tangents[0], starts, spans, allow_negative_indices=False)
    return _bits_sliced(spans, *primals), moved


def _sliced(spans: tuple[int, ...], x: jax.Array, *starts: Index) -> jax.Array:
    """A slice at a run-time place; of narrow floats bit by bit: XLA on a CPU would widen all of the array first."""
    if is_narrow(x.dtype):
        return _bits_sliced(spans, x, *(jnp.int32(s) for s in starts))
    return lax.dynamic_slice(x, starts, spans, allow_negative_indices=False)


def write(array: jax.Array, address: Address, value: jax.Array, apart: bool = False) -> jax.Array:
    """The storage with the addressed elements replaced; what a run-time index puts outside is dropped.

    `apart` says that `value` was computed from other elements of `array`, and that it, or these, are reshaped for it.
    """
    address, downward = upward(address)
    value = _flip(value, downward)
    box, axis = box_of(address)
    if box is None and (one := joined(address)) is not None:
        address, value = one.address, one.together(value)
        box, axis = box_of(address)
    flat = _as_dtype(array, address.dtype, address.size)
    if box is None:
        scatter = lambda old, x, at: old.at[at].set(x, mode="drop", wrap_negative_indices=False)  # noqa: E731
        at = _flat_index(address)
        if address.scalar is not None:
            at = jnp.where(valid(address), at, np.int32(2**31 - 1))
        out = _scattered(scatter, flat.reshape(-1), value, at, apart)
    elif address.rows is not None:
        out = _scatter_rows(flat, address, box, value, apart)
    else:
        shape, starts, spans = window(address, box, axis)
        x = _from_pattern(value, address, box)
        if box.sizes == box.radixes and address.scalar is None:
            out = x
        else:
            old = flat.reshape(shape)
            at = [jnp.int32(s) for s in starts]
            checked = address.scalar is not None
            x, steps = (x.reshape(spans), (1,) * len(spans)) if max(box.steps) == 1 else (x, box.steps)
            placed = Placed(spans, steps, checked, apart)
            fixed = all(isinstance(s, int) for s in starts)
            out = (placed.put if fixed else placed)(old, x, *((valid(address),) if checked else ()), *at)
    return _from_dtype(out, array, address.dtype)


def _flip(x: jax.Array, dims: Sequence[int]) -> jax.Array:
    return jnp.flip(x, dims) if dims else x


def _moving(box: Box) -> list[int]:
    return [k for k in box.order if k >= 0]


def _to_pattern(x: jax.Array, address: Address, box: Box) -> jax.Array:
    """Box dimensions to pattern dimensions: drop fillers, permute, insert dimensions of size 1, broadcast."""
    moving = _moving(box)
    x = x.reshape([address.shape[k] for k in moving])
    x = x.transpose(np.argsort(moving))
    x = x.reshape([n if k in moving else 1 for k, n in enumerate(address.shape)])
    return x if x.shape == address.shape else jnp.broadcast_to(x, address.shape)


def _from_pattern(value: jax.Array, address: Address, box: Box) -> jax.Array:
    """The inverse of `_to_pattern`; of a dimension with stride 0 the last element stays."""
    moving = _moving(box)
    for k, n in enumerate(address.shape):
        if n > 1 and k not in moving:
            value = lax.slice_in_dim(value, n - 1, n, axis=k)
    value = value.reshape([address.shape[k] for k in sorted(moving)])
    rank = {k: r for r, k in enumerate(sorted(moving))}
    return value.transpose([rank[k] for k in moving]).reshape(box.sizes)


# ---- gathers


def _flat_index(address: Address) -> jax.Array:
    """The flat index of every element; -1 becomes a large index, which reads clamp and writes drop."""
    index = jnp.int32(0) + index_of(address.offsets, address.indices)
    for k, (s, n) in enumerate(zip(address.strides, address.shape, strict=True)):
        step = jnp.arange(n, dtype=np.int32) * np.int32(s)
        if address.rows is not None and k == address.row_dim:
            step = step + _legal(address.rows.reshape(-1), address) * np.int32(address.stride)
        index = index + step.reshape([-1 if k == j else 1 for j in range(len(address.shape))])
    if address.columns is not None:
        step = _legal(address.columns, address) * np.int32(address.stride)
        index = index + step.reshape((1,) * (len(address.shape) - step.ndim) + step.shape)
    if address.scalar is not None:
        index = index + jnp.clip(address.scalar, 0, max(address.limit - 1, 0)).astype(np.int32) * np.int32(
            address.stride
        )
    return jnp.where(index < 0, np.int32(2**31 - 1), index)


def columns_of(index: jax.Array, group: int, n: int) -> jax.Array:
    """The n columns of each partition, (P, n): partitions share them in groups, whose rows of `index` hold them."""
    lists = index.reshape(index.shape[0] // group, group, -1).transpose(0, 2, 1).reshape(index.shape[0] // group, -1)
    return jnp.repeat(lists[:, :n], group, axis=0)


def _legal(rows: jax.Array, address: Address) -> jax.Array:
    """Run-time indices, those outside moved far out (their elements come out negative or past the end)."""
    inside = (rows >= 0) & (rows < address.limit)
    return jnp.where(inside, rows.astype(np.int32), np.int32(-(2**30) // max(address.stride, 1)))


def _row_starts(address: Address, box: Box) -> jax.Array:
    """(rows, box dimensions) start indices of a row gather or scatter; rows outside get a start past the end."""
    assert address.rows is not None
    rows = address.rows.reshape(-1)
    base = [index_of(table, address.indices) for table in box.starts(address.offsets)]
    inside = (rows >= 0) & (rows < address.limit)
    first = jnp.where(inside, rows.astype(np.int32) + base[0], np.int32(box.radixes[0]))
    return jnp.stack([first, *(jnp.full_like(first, b) for b in base[1:])], axis=1)


def _gather_rows(flat: jax.Array, address: Address, box: Box) -> jax.Array:
    n = len(box.radixes)
    numbers = lax.GatherDimensionNumbers(
        offset_dims=tuple(range(1, n)), collapsed_slice_dims=(0,), start_index_map=tuple(range(n))
    )
    x = lax.gather(
        flat.reshape(box.radixes),
        _row_starts(address, box),
        numbers,
        slice_sizes=(1, *box.sizes[1:]),
        mode=lax.GatherScatterMode.CLIP,
    )
    return _to_pattern(x, address, box)


def _scattered(
    scatter: Callable[..., jax.Array], old: jax.Array, x: jax.Array, at: jax.Array, apart: bool
) -> jax.Array:
    """A scatter into `old`; where `x` is made of other elements of it, a choice between its elements and new ones."""
    if not apart:
        return updated(scatter, old, x, at)
    new = updated(scatter, jnp.zeros_like(old), x, at)
    return jnp.where(scatter(jnp.zeros(old.shape, bool), jnp.ones(x.shape, bool), at), new, old)


def _scatter_rows(flat: jax.Array, address: Address, box: Box, value: jax.Array, apart: bool) -> jax.Array:
    n = len(box.radixes)
    rows = address.shape[address.row_dim]
    sized = Box(box.radixes, box.units, (rows, *box.sizes[1:]), box.steps, box.order)
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=tuple(range(1, n)), inserted_window_dims=(0,), scatter_dims_to_operand_dims=tuple(range(n))
    )

    def scatter(old: jax.Array, x: jax.Array, at: jax.Array) -> jax.Array:
        return lax.scatter(old, at, x, numbers, mode=lax.GatherScatterMode.FILL_OR_DROP)

    x, at = _from_pattern(value, address, sized), _row_starts(address, box)
    return _scattered(scatter, flat.reshape(box.radixes), x, at, apart)


# ---- dtypes


def _as_dtype(array: jax.Array, dtype: str, size: int) -> jax.Array:
    """The storage seen as `size` elements of `dtype` (flat where the size of an element changes)."""
    want = dtypes.KINDS[dtype].storage
    widened = array.dtype == np.float32 and dtypes.is_float(dtype) and array.size == size  # precise=False
    if array.dtype == want or widened:
        return array
    if array.dtype == np.bool_:
        array = array.astype(np.uint8)
    if want == np.bool_:
        return _as_dtype(array, "uint8", size) != 0
    old = array.dtype.itemsize
    if old == want.itemsize:
        return lax.bitcast_convert_type(array, want)
    flat = array.reshape(-1)
    if old < want.itemsize:
        return dtypes.widened(flat.reshape(-1, want.itemsize // old), want)
    return lax.bitcast_convert_type(flat, want).reshape(-1)


def _from_dtype(out: jax.Array, like: jax.Array, dtype: str) -> jax.Array:
    """The inverse of `_as_dtype`."""
    if out.dtype == like.dtype:
        return out.reshape(like.shape)
    if like.dtype == np.bool_:
        return _from_dtype(out, jnp.zeros(like.shape, np.uint8), dtype) != 0
    if out.dtype == np.bool_:
        out = out.astype(np.uint8)
    old, new = out.dtype.itemsize, like.dtype.itemsize
    if old < new:
        return dtypes.widened(out.reshape(-1, new // old), like.dtype).reshape(like.shape)
    return lax.bitcast_convert_type(out.reshape(-1), like.dtype).reshape(like.shape)
