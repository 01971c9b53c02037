"""Where a view is in one storage array: a pattern of addresses, and the box that it is, if it is one.

An `Address` is a pattern on a flat storage whose offset may depend on loop indices (a table or an affine form), on a
run-time scalar, or on a run-time index for each row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np

from nkijax import box as boxes
from nkijax.box import Box

Index = int | jax.Array


@dataclass(frozen=True)
class Address:
    """Where a view is in one storage array, in elements of `dtype`.

    `offsets` is a table over the loops that `indices` count (one axis each).  `scalar` moves the pattern by
    `scalar · stride`; `rows` (one index a row of pattern dimension `row_dim`, whose own stride is 0) moves each row;
    `columns` (an index an element of the last two dimensions) moves each element.  They are below `limit` where legal.
    """

    size: int
    natural: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...]
    shape: tuple[int, ...]
    offsets: np.ndarray
    indices: tuple[jax.Array, ...] = ()
    scalar: jax.Array | None = None
    rows: jax.Array | None = None
    columns: jax.Array | None = None
    row_dim: int = 0
    stride: int = 0
    limit: int = 0

    @property
    def index(self) -> jax.Array | None:
        """The run-time index: a scalar, (rows, 1) or (P, columns); None for a static address."""
        if self.rows is not None:
            return self.rows.reshape(-1, 1)
        return self.scalar if self.columns is None else self.columns


def index_of(table: np.ndarray, indices: Sequence[jax.Array]) -> Index:
    """`table[indices]`: an int where constant, arithmetic where affine, a lookup otherwise."""
    live = []
    for axis in reversed(range(table.ndim)):
        if table.shape[axis] == 1 or not (np.diff(table, axis=axis)).any():
            table = table.take(0, axis)
        else:
            live.insert(0, indices[axis])
    if table.ndim == 0:
        return int(table)
    result: Index = int(table.flat[0])
    for axis, index in enumerate(live):
        steps = np.diff(table, axis=axis)
        if (steps != steps.flat[0]).any():
            return jnp.asarray(table.astype(np.int32))[tuple(live)]
        result = result + np.int32(steps.flat[0]) * index
    return result


def valid(address: Address) -> jax.Array:
    """Whether the run-time index is legal, in its shape."""
    index = address.index
    assert index is not None
    return (index >= 0) & (index < address.limit)


def covers(address: Address) -> bool:
    """Whether the pattern is the whole storage, so that a write needs no old value."""
    if address.index is not None or math.prod(address.shape) < address.size:
        return False
    box, _ = box_of(upward(address)[0])
    return box is not None and box.sizes == box.radixes


def upward(address: Address) -> tuple[Address, list[int]]:
    """The same elements with dimensions of negative stride counted from their other end, and those dimensions."""
    downward = [k for k, stride in enumerate(address.strides) if stride < 0]
    if not downward or address.columns is not None:  # a gather by columns takes any stride
        return address, []
    strides, offsets = list(address.strides), address.offsets
    for k in downward:
        offsets = offsets + strides[k] * (address.shape[k] - 1)
        strides[k] = -strides[k]
    return replace(address, strides=tuple(strides), offsets=offsets), downward


def box_of(address: Address) -> tuple[Box | None, int]:
    """The box of the static pattern, and the box dimension in which the run-time index moves (-1 without one)."""
    if address.columns is not None:
        return None, -1
    if address.rows is not None:
        return _row_box(address)

    def axis(box: Box) -> int | None:
        starts = [int(s.max()) for s in box.starts(address.offsets)]
        return -1 if address.scalar is None else box.axis_of(address.stride, starts, address.limit)

    serves = lambda box: axis(box) is not None  # noqa: E731
    box = boxes.find(address.size, address.natural, address.strides, address.shape, address.offsets, serves)
    found = None if box is None else axis(box)
    return (None, -1) if found is None else (box, found)


def reshapes(address: Address) -> bool:
    """Whether reads or writes take the storage in a shape that is not its own."""
    address, _ = upward(address)
    whole = joined(address) if address.columns is None and box_of(address)[0] is None else None
    address = address if whole is None else whole.address
    box, _ = box_of(address)
    return box is None or box.radixes != address.natural and _in_own_shape(address, box) is None


@dataclass(frozen=True)
class Joined:
    """A pattern with the dimensions together that are one stretch: tiles side by side in a row that they do not fill.

    `order` has its dimensions by stride, `shape` their sizes in that order.
    """

    address: Address
    order: tuple[int, ...]
    shape: tuple[int, ...]

    def apart(self, x: jax.Array) -> jax.Array:
        return x.reshape(self.shape).transpose(np.argsort(self.order))

    def together(self, x: jax.Array) -> jax.Array:
        return x.transpose(self.order).reshape(self.address.shape)


def joined(address: Address) -> Joined | None:
    """The joined pattern, if it is a box where the pattern is none."""
    if address.columns is not None or address.rows is not None:
        return None
    dims = list(zip(address.strides, address.shape, strict=True))
    order = sorted(range(len(dims)), key=lambda k: -dims[k][0])
    stretches: list[tuple[int, int]] = []
    for stride, n in (dims[k] for k in order):
        if stretches and stride and stretches[-1][0] == stride * n:
            stretches[-1] = (stride, stretches[-1][1] * n)
        else:
            stretches.append((stride, n))
    if len(stretches) == len(dims):
        return None
    strides, shape = zip(*stretches, strict=True)
    whole = replace(address, strides=strides, shape=shape)
    if box_of(whole)[0] is None:
        return None
    return Joined(whole, tuple(order), tuple(address.shape[k] for k in order))


def _row_box(address: Address) -> tuple[Box | None, int]:
    """The box of one row, in storage whose first dimension counts rows of `stride` elements."""
    if not address.stride or address.size % address.stride:
        return None, -1
    rows = address.size // address.stride
    if int(address.offsets.max()) // address.stride + address.limit > rows:
        return None, -1
    strides, shape = list(address.strides), list(address.shape)
    strides[address.row_dim], shape[address.row_dim] = address.stride, rows
    serves = lambda box: box.order[0] == address.row_dim and max(box.steps) == 1  # noqa: E731
    box = boxes.find(address.size, address.natural, strides, shape, address.offsets % address.stride, serves)
    return box, -1 if box is None else 0


def window(address: Address, box: Box, axis: int) -> tuple[tuple[int, ...], list[Index], tuple[int, ...]]:
    """Where a box is, in the shape of its storage if it is a box there: that shape, starts and spans.

    Arrays that are sliced and updated as they are, XLA updates in place; of a reshaped one that is read in another
    shape, too, it makes the update twice, of a copy each.
    """
    found = _in_own_shape(address, box)
    if found is not None:
        return address.natural, [index_of(table, address.indices) for table in found[0]], found[1]
    return box.radixes, _starts(address, box, axis), box.spans


def _in_own_shape(address: Address, box: Box) -> tuple[list[np.ndarray], tuple[int, ...]] | None:
    """Start tables and spans of a box in the shape of its storage, where that is not the box's own; or None."""
    same = box.radixes == address.natural or box.sizes == box.radixes or math.prod(address.natural) != address.size
    if same or address.scalar is not None or max(box.steps) > 1:
        return None
    return boxes.in_shape(box, box.starts(address.offsets), address.natural)


def _starts(address: Address, box: Box, axis: int) -> list[Index]:
    starts = [index_of(table, address.indices) for table in box.starts(address.offsets)]
    if address.scalar is not None:
        step = address.stride // box.units[axis]
        starts[axis] = starts[axis] + jnp.clip(address.scalar, 0, max(address.limit - 1, 0)).astype(
            np.int32
        ) * np.int32(step)
    return starts
