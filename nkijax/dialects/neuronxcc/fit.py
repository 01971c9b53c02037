"""Tiles in another shape: destination and value of an assignment in one, dimensions merged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from nkijax.dialects.neuronxcc.index import predicate_of
from nkijax.dialects.neuronxcc.predicate import Region, conjunction, region
from nkijax.dialects.neuronxcc.regions import flattened
from nkijax.dialects.neuronxcc.tensor import OPERATORS, Tensor, broadcast, face, operand
from nkijax.errors import KernelError
from nkijax.view import View


def fitted(dst: Tensor, value: Tensor, where: Region | None) -> tuple[Tensor, Callable[[View], View], Region | None]:
    """Destination and value in one shape: equal, broadcast from the left, or with another factoring of free sizes.

    The function makes the value's view one of the destination's shape.
    """
    if dst.shape == value.shape or broadcasts(value.shape, dst.shape):
        if where is not None and where.shape != dst.shape:
            where = _stretched(where, dst.shape)
        shape = dst.shape
        return dst, lambda v: broadcast(v, shape), where
    if dst.size == value.size and (where is None or rows_only(where)) and not dst.guards and not value.guards:
        rows = None if where is None or where.box[0] == (0, where.shape[0]) else where.box[0]
        if rows is None or dst.shape[0] == value.shape[0]:
            if not _reshapes(value, dst.shape):
                dst = face(operand(dst).reshape(value.shape))
            shape = dst.shape
            where = None if rows is None else Region(shape, (rows, *((0, n) for n in shape[1:])))
            return dst, lambda v: v.reshape(shape), where
    if dst.size == value.size and dst.shape[0] == value.shape[0] and dst.mask is None and _reshapes(dst, value.shape):
        return face(operand(dst).reshape(value.shape)), lambda v: v, where
    raise KernelError(f"assignment value: shape {value.shape} does not fit {dst.shape}")


def _reshapes(value: Tensor, shape: Sequence[int]) -> bool:
    try:
        operand(value).reshape(shape)
    except KernelError:
        return False
    return True


def broadcasts(own: Sequence[int], shape: Sequence[int]) -> bool:
    if len(own) > len(shape) and any(n != 1 for n in own[len(shape) :]):
        return False
    return all(a in (1, b) for a, b in zip(own, shape, strict=False))


def merged(x: Tensor, first: int, mask: Any = None) -> Tensor:
    """A tile under a mask with its dimensions from `first` on as one; a copy where its addresses do not allow that."""
    where = region(conjunction(mask, x.mask), x.shape)
    flat = flattened(where, first)
    shape = flat.shape
    if x.guards or not _reshapes(x, shape):
        x = OPERATORS["copy"](x, None, predicate_of(where))
        x = face(x.raw)  # what is hidden there may be anything
    return face(operand(x).reshape(shape), mask=None if flat.full else predicate_of(flat))


def _stretched(where: Region, shape: tuple[int, ...]) -> Region:
    """The region of a value that is broadcast to `shape`."""
    box = [(0, n) for n in shape]
    for axis, (have, n) in enumerate(zip(where.shape, shape, strict=False)):
        if have == n or where.box[axis][0] >= where.box[axis][1]:
            box[axis] = where.box[axis]
    rest = None if where.rest is None else where.rest
    return region(rest, shape) if rest is not None else Region(shape, tuple(box))


def rows_only(where: Region) -> bool:
    return where.rest is None and all(b == (0, n) for b, n in zip(where.box[1:], where.shape[1:], strict=True))
